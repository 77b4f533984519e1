"""Checks of large request bodies inside a worker process of bounded memory: JSON, events, multipart frames.

Contract §3.

A body is passed as a file, so that only small values cross between the processes. Each function takes a file
and returns the values that the service needs, or raises the error that the client receives.
"""

import asyncio
import gc
import mmap
import os
import resource
from collections import Counter
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from api.validation_problems import convert_validation_details
from recorder import limits, strict_json
from recorder.errors import Problem, UnsupportedMediaType, ValidationFailed, json_pointer
from recorder.media_types import names_no_other_charset
from recorder.models.frame import FrameItem
from recorder.models.wire import shorten_wire_name
from recorder.recording.event_validation import validate_event_body
from recorder.recording.frame_validation import (
    CheckedFrame,
    hash_frame_upload,
    validate_frames,
    validate_frames_json,
    validate_frames_part,
)

#: Private memory of a worker process: a body that needs more is refused.
WORKER_BYTES = 1024 * 1024 * 1024
_CHUNK = 1024 * 1024
_SHOWN_PARTS = 5
#: Headers of a part, whose parameters take long to read: 4 KB of them took 12 ms.
_PART_HEADERS_BYTES = 2_048
_PARTS_NEEDED = "Send one JSON part named `frames` and one binary part for each frame; each name once."
_UNDECLARED = "No frame names this part: send the part `frames`, and one part for each name in it."

_is_bounded = False


@dataclass(frozen=True, slots=True)
class CheckedEventBody:
    """Valid body of events: the time of each item, and index and id of items with an id."""

    times: list[int]
    named: list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class CheckedFrameUpload:
    """Valid frame upload: its frames, and the offsets of their bytes in the file.

    Attributes:
        frames: without their bytes and snapshots.
        offsets: offset and length of each picture, then of its snapshot, if the frame has one.
        digest: of the content, for the batch key.
    """

    frames: list[CheckedFrame]
    offsets: list[tuple[int, int, int | None, int]]
    digest: bytes


def check_event_body_file(path: str) -> CheckedEventBody:
    """Check a body of `POST …/events`.

    Raises:
        RecorderError: if the body or an event is invalid.
    """
    with _WorkerMemoryLimit(), Path(path).open("rb") as file:
        items, named = validate_event_body(file.read())
        return CheckedEventBody([item.t_ms for item in items], named)


def check_json_body_file(path: str, model: Any) -> None:
    """Check that a body is strict JSON and as a route takes it.

    Args:
        path: the body.
        model: the type of the route's body.

    Raises:
        InvalidJson, ValidationFailed, InvalidTime: if it is not.
    """
    with _WorkerMemoryLimit(), Path(path).open("rb") as file:
        content = file.read()
        body = strict_json.parse(content)
        if content.count(b"[") + content.count(b"{") > limits.BODY_CONTAINERS:
            raise make_too_many_values_error(f"{limits.BODY_CONTAINERS} lists and objects")
        if not isinstance(body, dict):  # refused by the route, without a list of problems
            return
        try:
            _make_type_adapter(model).validate_python(body, from_attributes=True)
        except ValidationError as error:
            listed = error.errors(include_url=False)
            details = [{**detail, "loc": ("body", *detail["loc"])} for detail in listed]
            raise convert_validation_details(details, model, body) from None


def make_too_many_values_error(most: str) -> ValidationFailed:
    """Return the refusal of a large body with too many values of a kind."""
    text = f"A body may hold at most {most}; send fewer at once."
    return ValidationFailed.of("", "too_large", message=text)


@cache
def _make_type_adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def check_frame_upload_file(path: str, content_type: str) -> CheckedFrameUpload:
    """Check a frame upload, and replace the file's content with its pictures and snapshots.

    Args:
        path: the body.
        content_type: the whole header; JSON or multipart.

    Raises:
        RecorderError: if the body or a frame is invalid.
    """
    with _WorkerMemoryLimit(), Path(path).open("r+b", buffering=0) as file:
        if content_type.partition(";")[0].strip().lower() == "application/json":
            items, parts = validate_frames_json(file.read())
        else:
            items, parts = asyncio.run(read_multipart_upload(_read_body_chunks(file.fileno()), content_type))
        frames = validate_frames(items, parts)
        digest = hash_frame_upload(frames)
        file.seek(0)
        file.truncate()
        offsets, end = [], 0
        for frame in frames:
            _write_checked_body_bytes(file.fileno(), frame.data)
            length = len(frame.dom or b"")
            offsets.append(
                (end, len(frame.data), None if frame.dom is None else end + len(frame.data), length)
            )
            _write_checked_body_bytes(file.fileno(), frame.dom or b"")
            end += len(frame.data) + length
        return CheckedFrameUpload([frame.without_bytes() for frame in frames], offsets, digest)


def restore_frame_bytes(checked: CheckedFrameUpload, content: mmap.mmap) -> list[CheckedFrame]:
    """Return the frames with their pictures, as views of `content`, and their snapshots."""
    view = memoryview(content)
    return [
        replace(
            frame,
            data=view[start : start + length],
            dom=None if dom_start is None else bytes(view[dom_start : dom_start + dom_length]),
        )
        for frame, (start, length, dom_start, dom_length) in zip(checked.frames, checked.offsets, strict=True)
    ]


def read_multipart_body(content_type: str, body: bytes) -> tuple[list[FrameItem], dict[str, bytes]]:
    """Return the items of a whole multipart body, and the bytes of its parts by name; for worker threads.

    Raises:
        RecorderError: as `read_multipart_upload`.
    """

    async def yield_once() -> AsyncIterator[bytes]:
        yield body

    return asyncio.run(read_multipart_upload(yield_once(), content_type))


async def read_multipart_upload(
    chunks: AsyncIterator[bytes], content_type: str
) -> tuple[list[FrameItem], dict[str, bytes]]:
    """Return the items of a multipart upload, and the bytes of its parts by name.

    Raises:
        InvalidJson, ValidationFailed, EmptyBatch, BatchTooLarge: if the body is invalid.
        UnsupportedMediaType: if a part names another charset than UTF-8.
    """
    if not parse_options_header(content_type)[1].get(b"boundary"):
        raise _make_multipart_error("Content-Type lacks its boundary; let your HTTP library set it.")
    # One part more than allowed is read, so that a batch of 51 gets its own error.
    count = limits.FRAMES_PER_BATCH + 2
    # Latin-1 keeps every byte of a text part for the JSON reader.
    headers = Headers({"content-type": f"{content_type}; charset=latin-1"})
    reader = _MultipartReader(
        headers,
        chunks,  # type: ignore[arg-type]
        max_files=count,
        max_fields=count,
        max_part_size=limits.FRAMES_REQUEST_BYTES,
    )
    # Parts are kept in memory, which is bounded, instead of in separate files.
    reader.spool_max_size = limits.FRAMES_REQUEST_BYTES
    try:
        form = await reader.parse()
    except MultiPartException as error:
        text = f"The multipart body is malformed, or has more than {count - 1} parts. {_PARTS_NEEDED}"
        raise _make_multipart_error(text) from error
    pairs = [
        (_decode_multipart_name(name), await _read_multipart_part(part)) for name, part in form.multi_items()
    ]
    await form.close()
    parts = dict(pairs)
    given = Counter(name for name, _ in pairs)
    if repeated := [name for name, times in given.items() if times > 1]:
        raise _make_multipart_error(f"Send each name once; repeated: {_list_part_names(repeated)}.")
    if "frames" not in parts:
        raise _make_multipart_error(f"The part `frames` is missing; the body has {_list_part_names(parts)}.")
    items = validate_frames_part(parts.pop("frames"))
    declared = {item.part for item in items}
    undeclared = [
        Problem("body", json_pointer(shorten_wire_name(name)), "unknown_field", _UNDECLARED)
        for name in parts
        if name not in declared
    ]
    if undeclared:
        raise ValidationFailed(undeclared)
    return items, parts


class _MultipartReader(MultiPartParser):
    """Reader of multipart bodies whose parts are UTF-8 or bytes."""

    def on_headers_finished(self) -> None:
        """Refuse a part that names another charset, or two types, or has large headers."""
        if (
            sum(len(name) + len(value) for name, value in self._current_part.item_headers)
            > _PART_HEADERS_BYTES
        ):
            raise _make_multipart_error(f"The headers of a part hold at most {_PART_HEADERS_BYTES} bytes.")
        types = [value for name, value in self._current_part.item_headers if name == b"content-type"]
        if len(types) > 1 or not all(names_no_other_charset(value.decode("latin-1")) for value in types):
            raise UnsupportedMediaType("each part with one Content-Type or none, in UTF-8")
        super().on_headers_finished()


def _decode_multipart_name(name: str) -> str:
    return name.encode("latin-1").decode("utf-8", "replace")


async def _read_multipart_part(part: UploadFile | str) -> bytes:
    return await part.read() if isinstance(part, UploadFile) else part.encode("latin-1")


def _list_part_names(names: Collection[str]) -> str:
    """Return the first names of parts for a sentence, without characters that a terminal acts on."""
    shown = [
        f"`{_replace_unprintable_part_name(shorten_wire_name(name))}`" for name in islice(names, _SHOWN_PARTS)
    ]
    if len(names) > len(shown):
        shown.append(f"{len(names) - len(shown)} more")
    return ", ".join(shown) or "no parts"


def _replace_unprintable_part_name(name: str) -> str:
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)


def _make_multipart_error(text: str) -> ValidationFailed:
    return ValidationFailed.of("", "invalid_multipart", message=text)


async def _read_body_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield the bytes of the file in which the API process stored a large body."""
    while chunk := os.read(descriptor, _CHUNK):
        yield chunk


def _write_checked_body_bytes(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class _WorkerMemoryLimit:
    """Limit on the memory of this process, set once; a body that needs more is refused."""

    def __enter__(self) -> None:
        global _is_bounded
        if not _is_bounded:
            resource.setrlimit(resource.RLIMIT_DATA, (WORKER_BYTES, WORKER_BYTES))
            # Parsed values form no cycles; the collector would visit millions of them repeatedly.
            gc.disable()
            _is_bounded = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MemoryError):
            text = "This body takes too much memory to read; send fewer values at once."
            raise ValidationFailed.of("", "too_large", message=text) from None
