"""The screens that frames show: snapshots read, pictures digested, each distinct one once. Design §3."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import orjson
import xxhash
import zstandard

from recorder.memory.states import Screen, describe_screen
from recorder.models.frame import FrameRow
from recorder.sealing.pictures import dhash_all
from recorder.storage.blobs import Blobs

_KEPT = 20_000

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _Recent(OrderedDict[Key, Value], Generic[Key, Value]):
    """A dictionary that forgets what was put in longest ago."""

    def keep(self, key: Key, value: Value) -> None:
        self[key] = value
        if len(self) > _KEPT:
            self.popitem(last=False)


class SeenFrame(NamedTuple):
    """What a frame shows; `dhash` (signed) is None where its picture does not decode."""

    screen: Screen
    dhash: int | None


@dataclass
class _Upload:
    """The frames whose pictures, and those whose snapshots, lie in one object."""

    pictures: list[FrameRow] = field(default_factory=list)
    snapshots: list[FrameRow] = field(default_factory=list)


class ScreenReader:
    """Reads frames for one sealing run; remembers digests, never pictures or snapshots."""

    def __init__(self) -> None:
        self._dhashes: _Recent[str, int | None] = _Recent()
        self._screens: _Recent[int, Screen | None] = _Recent()

    def read(self, frames: list[FrameRow], blobs: Blobs) -> list[SeenFrame]:
        """What each frame of a session shows; one upload's object is in memory at a time."""
        by_dom: dict[str, Screen] = {}
        digests: dict[str, int | None] = {}
        for key, upload in _by_upload(frames).items():
            data = _fetch(blobs, key)
            digests |= self._digest(upload.pictures, data)
            for frame in upload.snapshots:
                screen = self._read_dom(frame, data)
                if screen is not None:
                    by_dom[frame.frame_id] = screen
        return [
            SeenFrame(
                by_dom.get(frame.frame_id) or _without_dom(frame, digests[frame.sha256]),
                digests[frame.sha256],
            )
            for frame in frames
        ]

    def _digest(self, frames: Iterable[FrameRow], data: bytes) -> dict[str, int | None]:
        """Digests of pictures by SHA-256; those not seen before are computed side by side."""
        pictures = {frame.sha256: data[frame.offset : frame.offset + frame.length] for frame in frames}
        fresh = {sha256: picture for sha256, picture in pictures.items() if sha256 not in self._dhashes}
        computed = dhash_all(fresh)
        known = {sha256: self._dhashes[sha256] for sha256 in pictures.keys() - fresh.keys()}
        for sha256, digest in computed.items():
            self._dhashes.keep(sha256, digest)
        return known | computed

    def _read_dom(self, frame: FrameRow, data: bytes) -> Screen | None:
        """The screen of a frame's DOM snapshot; None where it does not read as one."""
        assert frame.dom_offset is not None and frame.dom_length is not None
        packed = data[frame.dom_offset : frame.dom_offset + frame.dom_length]
        key = xxhash.xxh3_64_intdigest(packed)
        if key not in self._screens:
            found = describe_screen(dom=_unpack(packed), url=None, title=None, dhash=None)
            self._screens.keep(key, found if found.state_key is not None else None)
        return self._screens[key]


def _by_upload(frames: list[FrameRow]) -> dict[str, _Upload]:
    uploads: dict[str, _Upload] = {}
    for frame in frames:
        uploads.setdefault(frame.object, _Upload()).pictures.append(frame)
        if frame.dom_object is not None:
            uploads.setdefault(frame.dom_object, _Upload()).snapshots.append(frame)
    return uploads


def _fetch(blobs: Blobs, key: str) -> bytes:
    try:
        return blobs.get(key)
    except KeyError:
        # Gone for good: the rest of the session is still worth sealing.
        return b""


def _without_dom(frame: FrameRow, dhash: int | None) -> Screen:
    return describe_screen(dom=None, url=frame.url, title=None, dhash=dhash)


def _unpack(packed: bytes) -> Mapping[str, Any] | None:
    try:
        value = orjson.loads(zstandard.ZstdDecompressor().decompress(packed))
    except (zstandard.ZstdError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None
