"""WebDataset files: tar archives of frames with pictures and events. Spec §4.3 (format `webdataset`).

The tar format is written and read here instead of by `tarfile`: writing with `tarfile` takes more than twice
the time (`benchmarks/exports/`), and reading with it follows extensions that this writer never uses and
believes their sizes. An archive that is read may be hostile.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar

import msgspec
import orjson
import polars as pl

from recorder.datasets.errors import DatasetUnreadable
from recorder.datasets.jsonl import json_forms, typed_jsonl_row
from recorder.datasets.row_values import (
    FRAME_FACTS,
    SPLIT,
    RowOutput,
    convert_row_read_errors,
    frame_image_names,
    frame_keys,
    iterate_frame_images,
)
from recorder.datasets.schemas import EVENTS
from recorder.storage.blobs import Blobs

_BLOCK = 512
_RECORD = 20 * _BLOCK
_ZEROS = bytes(_RECORD)
# The fields of a header but name, size and sum: mode, owner and group; time; kind of file, and what follows.
_OWNERS = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_REST = (b"0" + bytes(100) + b"ustar\x0000").ljust(_BLOCK - 156, b"\0")
# The sum counts its own field as spaces.
_FIXED_SUM = sum(_OWNERS) + sum(_TIME) + sum(_REST) + 8 * ord(" ")
_PIECE_BYTES = 1024 * 1024
#: Larger than any text of one frame.
_TEXT_BYTES = 1024 * 1024 * 1024
#: Events that are formatted together.
_EVENTS_AT_ONCE = 4_000
_IMAGES = (".jpg", ".png", ".webp")
_Text = TypeVar("_Text")


def write_samples(frames: pl.DataFrame, events: pl.DataFrame, blobs: Blobs, file: RowOutput) -> None:
    """Write a WebDataset archive; no more than some hundred frames with pictures are in memory.

    A sample's members are `<key>.events.json` (list of events, may be empty), `<key>.jpg`, `.png` or `.webp`
    (missing once the bytes have expired) and `<key>.json` (the frame).

    Args:
        frames: columns of `schemas.FRAMES` but `image`, and `object`, `offset`, `length`, in the order of
            its sort key.
        events: columns of `schemas.EVENTS`, those bound to the frames, in the order of its sort key.
        blobs: store of the pictures.
        file: file to write to.
    """
    write_sample_portions([(frames, events)], blobs, file)


def write_sample_portions(
    portions: Iterable[tuple[pl.DataFrame, pl.DataFrame]], blobs: Blobs, file: RowOutput
) -> None:
    """Write a WebDataset archive from portions of its frames, each with all events bound to them.

    The bytes do not depend on how the frames are divided.
    """
    with TarWriter(file) as archive:
        for frames, events in portions:
            _add_samples(archive, frames, _number_events_by_frame(frames, events), blobs)


def _add_samples(archive: "TarWriter", frames: pl.DataFrame, numbered: pl.DataFrame, blobs: Blobs) -> None:
    """Write the samples of frames to a tar archive: image, frame and bound events of each."""
    start = 0
    for images in iterate_frame_images(frames, blobs):
        part = frames[start : start + len(images)]
        lists = _format_bound_events(numbered, start, len(images))
        start += len(images)
        samples = zip(
            images, frame_keys(part), frame_image_names(part), _format_frames(part), lists, strict=True
        )
        for image, key, name, text, bound in samples:
            members: list[tuple[str, bytes | memoryview]] = [(f"{key}.events.json", bound)]
            if image is None:
                text = text.replace(f'"image":"{name}"', '"image":null')
            else:
                members.append((name, image))
            members.append((f"{key}.json", text.encode()))
            for member, content in sorted(members, key=itemgetter(0)):
                archive.add(member, content)


def _number_events_by_frame(frames: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return the events bound to the frames, by frame, with the number of the frame as `frame`."""
    numbers = frames.select("session_id", pl.col("seq").alias("frame_seq")).with_row_index("frame")
    joined = events.join(numbers, on=["session_id", "frame_seq"], how="inner", maintain_order="left")
    return joined.sort("frame", maintain_order=True)


def _format_bound_events(numbered: pl.DataFrame, start: int, count: int) -> list[bytes]:
    """Return the JSON list of the events bound to each of some frames.

    As JSON, and joined, the payloads take several times their memory: only those of some frames do at once.

    Args:
        numbered: result of `_number_events_by_frame`.
        start: number of the first of the frames.
        count: number of frames.
    """
    first, end = numbered["frame"].search_sorted(start), numbered["frame"].search_sorted(start + count)
    lists: list[list[bytes]] = [[] for _ in range(count)]
    for part in numbered[first:end].iter_slices(_EVENTS_AT_ONCE):
        texts = json_forms(part).select(
            "frame", pl.struct(sorted(EVENTS.names)).struct.json_encode().alias("events")
        )
        joined = texts.group_by("frame", maintain_order=True).agg(pl.col("events").str.join(","))
        for number, text in joined.iter_rows():
            lists[number - start].append(text.encode())
    return [b"[%b]" % b",".join(parts) for parts in lists]


def _format_frames(frames: pl.DataFrame) -> list[str]:
    """Return each frame as JSON, with the name of its picture."""
    facts = json_forms(frames.select(FRAME_FACTS.names)).with_columns(
        image=pl.Series(frame_image_names(frames))
    )
    return facts.select(pl.struct(sorted(facts.columns)).struct.json_encode()).to_series().to_list()


class TarWriter:
    """Writer of a tar archive."""

    def __init__(self, file: RowOutput) -> None:
        self._file = file
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the archive, if nothing went wrong."""
        if error is None:
            # Two empty blocks end an archive, which is a whole number of records long.
            size = self._size + 2 * _BLOCK
            self._file.write(_ZEROS[: 2 * _BLOCK] + _ZEROS[: -size % _RECORD])

    def add(self, name: str, content: bytes | memoryview) -> None:
        """Append a member.

        Raises:
            ValueError: if the name has more than 100 bytes or the content more than 8 GiB.
            OSError, DiskFull: if earlier bytes could not be written.
        """
        length = len(content)
        padding = -length % _BLOCK
        self._file.write(format_tar_header(name.encode(), length))
        self._file.write(content)
        self._file.write(_ZEROS[:padding])
        self._size += _BLOCK + length + padding


def format_tar_header(name: bytes, size: int) -> bytes:
    """Return the tar header of a member: name and size, nothing about the time or the machine."""
    if len(name) > 100 or size >= 8**11:
        raise ValueError(f"A tar header has no room for {name.decode()} of {size} bytes.")
    digits = b"%011o\0" % size
    total = sum(name) + sum(digits) + _FIXED_SUM
    return b"%b%b%b%b%06o\0 %b" % (name.ljust(100, b"\0"), _OWNERS, digits, _TIME, total, _REST)


class Sample(NamedTuple):
    """Members of a sample that the row set covers, and the digest of its picture."""

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
    """Name and size of a member, while the file is at its content."""

    name: str
    size: int


def read_webdataset_samples(path: Path) -> Iterator[Sample]:
    """Yield the samples of a WebDataset archive, in its order, checked against each other.

    Raises:
        DatasetUnreadable: if the archive is broken.
    """
    with convert_row_read_errors(), path.open("rb") as file:
        for key, members in _group_sample_members(file):
            yield _read_sample(file, key, members)


def read_webdataset_rows(path: Path, *, start: int = 0, split: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the samples of an archive as rows: members of the frame, `__key__`, `image` and `events`.

    Args:
        path: archive to read.
        start: number of samples to skip; of the split, if there is one.
        split: yield the samples of this split only.

    Raises:
        DatasetUnreadable: if the archive is broken.
    """
    with path.open("rb") as file:
        for number, (key, members) in enumerate(_group_sample_members(file)):
            if split is None and number < start:
                continue
            row = _read_sample_row(file, key, members)
            if split is not None and (row[SPLIT] != split or (start := start - 1) >= 0):
                continue
            yield row


def read_tar_members(file: BinaryIO) -> Iterator[Member]:
    """Yield the members of a tar archive, with the file at the content of each, which need not be read.

    Raises:
        DatasetUnreadable: if the archive is broken, or not of this writer.
    """
    end_of_file = file.seek(0, os.SEEK_END)
    file.seek(0)
    while True:
        header = file.read(_BLOCK)
        if header == bytes(_BLOCK):
            return
        name, size = _parse_tar_header(header)
        end = file.tell() + size
        if end > end_of_file:
            raise DatasetUnreadable(f"ends within a member ({name!r:.120})")
        yield Member(name, size)
        file.seek(end + -size % _BLOCK)


def _group_sample_members(file: BinaryIO) -> Iterator[tuple[str, Iterator[Member]]]:
    """Yield the key of each sample with its members."""
    return groupby(read_tar_members(file), key=lambda member: member.name.partition(".")[0])


def _read_sample(file: BinaryIO, key: str, members: Iterator[Member]) -> Sample:
    """Return the sample of one key from its tar members: frame, bound events and image."""
    frame: _FrameText | None = None
    events: list[_EventText] | None = None
    image = image_sha256 = None
    for name, size in members:
        match name.removeprefix(key):
            case ".json" if frame is None:
                frame = _decode_tar_member(file, name, size, _FrameText)
            case ".events.json" if events is None:
                events = _decode_tar_member(file, name, size, list[_EventText])
            case ending if ending in _IMAGES and image is None:
                image, image_sha256 = name, _hash_tar_member(file, size)
            case _:
                raise DatasetUnreadable(f"holds a member that belongs to no sample ({name!r:.120})")
    if frame is None or events is None:
        raise DatasetUnreadable(f"lacks the frame or the events of a sample ({key!r:.120})")
    if key != f"{frame.session_id}-{frame.seq:06d}" or frame.image != image:
        raise DatasetUnreadable(
            f"holds members of another sample than the row of the frame says ({key!r:.120})"
        )
    if any((event.bound_frame_id, event.frame_seq) != (frame.frame_id, frame.seq) for event in events):
        raise DatasetUnreadable(f"holds an event that is bound to another frame ({key!r:.120})")
    event_ids = [event.event_id for event in events]
    actions = sum(event.is_action for event in events)
    return Sample(frame.session_id, frame.frame_id, frame.sha256, event_ids, actions, image_sha256)


def _read_sample_row(file: BinaryIO, key: str, members: Iterator[Member]) -> dict[str, Any]:
    frame: dict[str, Any] = {}
    image, events = None, []
    for member in members:
        data = file.read(member.size)
        match member.name.removeprefix(f"{key}."):
            case "json":
                frame = typed_jsonl_row(orjson.loads(data))
            case "events.json":
                events = [typed_jsonl_row(event) for event in orjson.loads(data)]
            case _:
                image = {"bytes": data, "path": member.name}
    return {"__key__": key, **frame, "image": image, "events": events}


def _parse_tar_header(header: bytes) -> tuple[str, int]:
    """Return name and size of a plain file; the writer makes no other members."""
    if len(header) < _BLOCK:
        raise DatasetUnreadable("ends without the mark of an archive's end")
    total = sum(header) - sum(header[148:156]) + 8 * 32
    if header[257:263] != b"ustar\0" or header[148:155] != b"%06o\0" % total or header[156:157] != b"0":
        raise DatasetUnreadable("holds a member that is no plain file of a ustar archive")
    size = header[124:135]
    if not size.isdigit() or any(header[345:]):
        raise DatasetUnreadable("holds a member that is no plain file of a ustar archive")
    return header[:100].rstrip(b"\0").decode(), int(size, 8)


def _decode_tar_member(file: BinaryIO, name: str, size: int, kind: type[_Text]) -> _Text:
    if size > _TEXT_BYTES:
        raise DatasetUnreadable(f"holds a text of {size} bytes ({name!r:.120})")
    try:
        return msgspec.json.decode(file.read(size), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DatasetUnreadable(f"holds a broken member ({name!r:.120}): {error}") from error


def _hash_tar_member(file: BinaryIO, size: int) -> str:
    digest = hashlib.sha256()
    while size and (piece := file.read(min(size, _PIECE_BYTES))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()
