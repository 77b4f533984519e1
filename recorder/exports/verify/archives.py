"""The samples of a WebDataset archive, with care: it may come from anywhere. Spec §2.5.

Read by hand: `tarfile` follows extensions that the writer never uses, and takes their sizes at their word.
"""

import hashlib
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from recorder.exports.verify.contents import Unreadable, told_apart

_BLOCK = 512
_PIECE_BYTES = 1024 * 1024
#: No text of one frame comes near it.
_TEXT_BYTES = 1024 * 1024 * 1024
_Text = TypeVar("_Text")
_IMAGES = (".jpg", ".png", ".webp")


class Sample(NamedTuple):
    """What the row set covers of a sample, and the digest of the picture that is there."""

    session_id: str
    frame_id: str
    sha256: str
    event_ids: list[str]
    actions: int
    image_sha256: str | None


class _FrameText(msgspec.Struct):
    session_id: str
    seq: int
    frame_id: str
    sha256: str
    image: str | None


class _EventText(msgspec.Struct):
    event_id: str
    bound_frame_id: str
    frame_seq: int
    is_action: bool


class Member(NamedTuple):
    """A member, while the file stands at its content."""

    name: str
    size: int


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples of an archive, in its order.

    Raises:
        Unreadable: where it is broken.
    """
    with told_apart(), path.open("rb") as file:
        for key, members in groupby(members_of(file), key=lambda member: member.name.partition(".")[0]):
            yield _sample(file, key, members)


def _sample(file: BinaryIO, key: str, members: Iterator[Member]) -> Sample:
    frame: _FrameText | None = None
    events: list[_EventText] | None = None
    image = image_sha256 = None
    for name, size in members:
        match name.removeprefix(key):
            case ".json" if frame is None:
                frame = _decoded(file, name, size, _FrameText)
            case ".events.json" if events is None:
                events = _decoded(file, name, size, list[_EventText])
            case ending if ending in _IMAGES and image is None:
                image, image_sha256 = name, _digest(file, size)
            case _:
                raise Unreadable(f"holds a member that belongs to no sample ({name!r:.120})")
    if frame is None or events is None:
        raise Unreadable(f"lacks the frame or the events of a sample ({key!r:.120})")
    if key != f"{frame.session_id}-{frame.seq:06d}" or frame.image != image:
        raise Unreadable(f"holds members of another sample than the row of the frame says ({key!r:.120})")
    if any((event.bound_frame_id, event.frame_seq) != (frame.frame_id, frame.seq) for event in events):
        raise Unreadable(f"holds an event that is bound to another frame ({key!r:.120})")
    event_ids = [event.event_id for event in events]
    actions = sum(event.is_action for event in events)
    return Sample(frame.session_id, frame.frame_id, frame.sha256, event_ids, actions, image_sha256)


def members_of(file: BinaryIO) -> Iterator[Member]:
    """The members, with the file at the content of each; the next one follows, whatever is read of it.

    Raises:
        Unreadable: where the archive is broken, or none of ours.
    """
    end_of_file = file.seek(0, os.SEEK_END)
    file.seek(0)
    while True:
        header = file.read(_BLOCK)
        if header == bytes(_BLOCK):
            return
        name, size = _parsed(header)
        end = file.tell() + size
        if end > end_of_file:
            raise Unreadable(f"ends within a member ({name!r:.120})")
        yield Member(name, size)
        file.seek(end + -size % _BLOCK)


def _parsed(header: bytes) -> tuple[str, int]:
    """Name and size of a plain file; the writer makes no other members."""
    if len(header) < _BLOCK:
        raise Unreadable("ends without the mark of an archive's end")
    total = sum(header) - sum(header[148:156]) + 8 * 32
    if header[257:263] != b"ustar\0" or header[148:155] != b"%06o\0" % total or header[156:157] != b"0":
        raise Unreadable("holds a member that is no plain file of a ustar archive")
    size = header[124:135]
    if not size.isdigit() or any(header[345:]):
        raise Unreadable("holds a member that is no plain file of a ustar archive")
    return header[:100].rstrip(b"\0").decode(), int(size, 8)


def _decoded(file: BinaryIO, name: str, size: int, kind: type[_Text]) -> _Text:
    if size > _TEXT_BYTES:
        raise Unreadable(f"holds a text of {size} bytes ({name!r:.120})")
    try:
        return msgspec.json.decode(file.read(size), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"holds a broken member ({name!r:.120}): {error}") from error


def _digest(file: BinaryIO, size: int) -> str:
    digest = hashlib.sha256()
    while size and (piece := file.read(min(size, _PIECE_BYTES))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()
