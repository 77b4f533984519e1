"""Checks of large request bodies, as they run in worker processes. Contract §3.

A body comes as a file: only small values cross between the processes. Nothing here knows the service: a
function takes a file and returns what the service needs of its content, or raises what the client is told.
"""

import asyncio
import gc
import mmap
import os
import resource
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from recorder import limits, strict_json
from recorder.errors import Problem, ValidationFailed, json_pointer
from recorder.models.frame import FrameItem
from recorder.models.wire import shorten
from recorder.recording.event_validation import check_events
from recorder.recording.frame_validation import (
    CheckedFrame,
    check_frames,
    frames_digest,
    read_frames_json,
    read_frames_part,
)

#: Private memory of a worker process: a body that needs more is refused.
WORKER_BYTES = 1024 * 1024 * 1024
#: The service's own process goes first where processor time is short.
_NICE = 5
_CHUNK = 1024 * 1024
_UNDECLARED = "No frame names this part: send the part `frames`, and one part for each name in it."

_is_bounded = False


@dataclass(frozen=True, slots=True)
class CheckedEvents:
    """Of a valid body of events: the time of each item, and index and id of those that name themselves."""

    times: list[int]
    named: list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class CheckedFrames:
    """Of a valid frame upload: its frames, and where the bytes of each lie in the file now.

    Attributes:
        frames: without their bytes and snapshots.
        places: offset and length of each picture, then of each snapshot, where the frame has one.
        digest: of the content, for the batch key.
    """

    frames: list[CheckedFrame]
    places: list[tuple[int, int, int | None, int]]
    digest: bytes


def check_event_file(path: str) -> CheckedEvents:
    """Check a body of `POST …/events`.

    Raises:
        RecorderError: as `check_events` does.
    """
    with _Bounds(), Path(path).open("rb") as file:
        items, named = check_events(file.read())
        return CheckedEvents([item.t_ms for item in items], named)


def check_json_file(path: str) -> None:
    """Check that a body is strict JSON.

    Raises:
        InvalidJson, ValidationFailed: if it is not.
    """
    with _Bounds(), Path(path).open("rb") as file:
        strict_json.parse(file.read())


def check_frames_file(path: str, content_type: str) -> CheckedFrames:
    """Check a frame upload, and replace the file's content by its pictures and snapshots.

    Args:
        path: the body.
        content_type: the whole header; JSON or multipart.

    Raises:
        RecorderError: as the body or a frame is wrong.
    """
    with _Bounds(), Path(path).open("r+b", buffering=0) as file:
        if content_type.partition(";")[0].strip().lower() == "application/json":
            items, parts = read_frames_json(file.read())
        else:
            items, parts = asyncio.run(read_multipart(_chunks(file.fileno()), content_type))
        frames = check_frames(items, parts)
        digest = frames_digest(frames)
        file.seek(0)
        file.truncate()
        places, end = [], 0
        for frame in frames:
            _write(file.fileno(), frame.data)
            length = len(frame.dom or b"")
            places.append(
                (end, len(frame.data), None if frame.dom is None else end + len(frame.data), length)
            )
            _write(file.fileno(), frame.dom or b"")
            end += len(frame.data) + length
        return CheckedFrames([_without_bytes(frame) for frame in frames], places, digest)


def with_bytes(checked: CheckedFrames, content: mmap.mmap) -> list[CheckedFrame]:
    """Return frames with their pictures, which stay where they are, and their snapshots."""
    view = memoryview(content)
    return [
        replace(
            frame,
            data=view[start : start + length],
            dom=None if dom_start is None else bytes(view[dom_start : dom_start + dom_length]),
        )
        for frame, (start, length, dom_start, dom_length) in zip(checked.frames, checked.places, strict=True)
    ]


async def read_multipart(
    chunks: AsyncIterator[bytes], content_type: str
) -> tuple[list[FrameItem], dict[str, bytes]]:
    """Return the items of a multipart upload, and the bytes of its parts by name.

    Raises:
        InvalidJson, ValidationFailed, EmptyBatch, BatchTooLarge: as the body is wrong.
    """
    # One part more than allowed gets through, so that a batch of 51 is told apart from a broken body.
    count = limits.FRAMES_PER_BATCH + 2
    # Latin-1 keeps every byte of a text part, so that the JSON reader sees what was sent.
    headers = Headers({"content-type": f"{content_type}; charset=latin-1"})
    reader = MultiPartParser(
        headers,
        chunks,  # type: ignore[arg-type]
        max_files=count,
        max_fields=count,
        max_part_size=limits.FRAMES_REQUEST_BYTES,
    )
    # Parts stay in memory, which is bounded, instead of going to files of their own.
    reader.spool_max_size = limits.FRAMES_REQUEST_BYTES
    try:
        form = await reader.parse()
    except MultiPartException as error:
        raise _broken() from error
    pairs = [(_name(name), await _content(part)) for name, part in form.multi_items()]
    await form.close()
    parts = dict(pairs)
    if "frames" not in parts or len(parts) != len(pairs):
        raise _broken()
    items = read_frames_part(parts.pop("frames"))
    declared = {item.part for item in items}
    undeclared = [
        Problem("body", json_pointer(shorten(name)), "unknown_field", _UNDECLARED)
        for name in parts
        if name not in declared
    ]
    if undeclared:
        raise ValidationFailed(undeclared)
    return items, parts


def _name(name: str) -> str:
    return name.encode("latin-1").decode("utf-8", "replace")


async def _content(part: UploadFile | str) -> bytes:
    return await part.read() if isinstance(part, UploadFile) else part.encode("latin-1")


def _broken() -> ValidationFailed:
    text = "Send one JSON part named `frames` and one binary part for each frame, each name once."
    return ValidationFailed.of("", "invalid_multipart", message=text)


def _without_bytes(frame: CheckedFrame) -> CheckedFrame:
    item = msgspec.structs.replace(frame.item, data=msgspec.UNSET, dom=msgspec.UNSET)
    return replace(frame, item=item, data=b"", dom=None)


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    while chunk := os.read(descriptor, _CHUNK):
        yield chunk


def _write(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class _Bounds:
    """Bounds the memory of this process once, and refuses a body that needs more."""

    def __enter__(self) -> None:
        global _is_bounded
        if not _is_bounded:
            resource.setrlimit(resource.RLIMIT_DATA, (WORKER_BYTES, WORKER_BYTES))
            os.nice(_NICE)
            # Parsed values form no cycles; the collector would walk through millions of them again and again.
            gc.disable()
            _is_bounded = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MemoryError):
            text = "Reading this body takes too much memory; send fewer values at once."
            raise ValidationFailed.of("", "too_large", message=text) from None
