"""Bodies of frame uploads: JSON with base64, or multipart with one binary part each. Contract §3."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import anyio.to_thread
from fastapi import Request

from api.bodies.checks import check_frames_file, read_multipart, with_bytes
from api.bodies.worker_pool import LARGE_BYTES, BodyFile, BodyWorkers, body_file
from recorder.access.keys import Caller
from recorder.ids import encode, id_range, reserve
from recorder.media_types import JSON, require_type
from recorder.models.frame import FrameItem
from recorder.recording.frame_validation import CheckedFrame, read_frames_json, unpack_dom


@dataclass(frozen=True, slots=True)
class Upload:
    """A frame upload as it was read.

    Attributes:
        items: of a small upload, in which no frame was checked yet.
        parts: bytes of its frames, by part name.
        checked: of a large one: its frames, checked, and the digest of its content.
    """

    items: list[FrameItem] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)
    checked: tuple[list[CheckedFrame], bytes] | None = None


async def read_upload(request: Request, caller: Caller, workers: BodyWorkers) -> Upload:
    """Read a frame upload; a large one is read and checked in a worker process.

    Raises:
        UnsupportedMediaType: if it is neither JSON nor multipart.
        InvalidJson, ValidationFailed, EmptyBatch, BatchTooLarge, PayloadTooLarge: as the body is wrong.
    """
    content_type = request.headers.get("content-type", "")
    needed = "frames as application/json or multipart/form-data"
    kind = require_type(content_type, JSON, "multipart/form-data", needed=needed)
    stream, first, size = request.stream(), list[bytes](), 0
    async for part in stream:
        first.append(part)
        size += len(part)
        if size > LARGE_BYTES:
            with body_file() as file:
                return await _read_large(file, first, stream, content_type, caller, workers)
    body = b"".join(first)
    if kind == JSON:
        return Upload(*await anyio.to_thread.run_sync(read_frames_json, body))
    return Upload(*await read_multipart(_only(body), content_type))


async def _read_large(
    file: BodyFile,
    first: list[bytes],
    rest: AsyncIterator[bytes],
    content_type: str,
    caller: Caller,
    workers: BodyWorkers,
) -> Upload:
    for part in first:
        file.write(part)
    first.clear()
    async for part in rest:
        file.write(part)
    checked = await workers.check(caller.workspace_id, check_frames_file, file, content_type)
    content = file.map()
    frames = await anyio.to_thread.run_sync(_take_over, with_bytes(checked, content), caller)
    return Upload(checked=(frames, checked.digest))


def _take_over(frames: list[CheckedFrame], caller: Caller) -> list[CheckedFrame]:
    """Return frames with ids of this process, which rise, and with what masking needs."""
    given = id_range(f"frm_{encode(reserve(len(frames)))}", len(frames))
    named = [
        frame if isinstance(frame.item.id, str) else replace(frame, id=new)
        for frame, new in zip(frames, given, strict=True)
    ]
    return named if caller.masking is None else [unpack_dom(frame) for frame in named]


async def _only(body: bytes) -> AsyncIterator[bytes]:
    yield body
