"""Bodies of frame uploads: JSON with base64, or multipart with one binary part each. Contract §3."""

import anyio.to_thread
from fastapi import Request
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from recorder import limits
from recorder.errors import UnsupportedMediaType, ValidationFailed
from recorder.models.frame import FrameItem
from recorder.recording.frame_checks import read_frames_json, read_frames_part


async def read_upload(request: Request) -> tuple[list[FrameItem], dict[str, bytes]]:
    """The items of a frame upload, and the bytes of their parts by name.

    Raises:
        UnsupportedMediaType: if it is neither JSON nor multipart.
        InvalidJson, ValidationFailed, EmptyBatch, BatchTooLarge, PayloadTooLarge: as the body is wrong.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        # Up to 64 MB: read in a worker thread, so that other requests go on.
        return await anyio.to_thread.run_sync(read_frames_json, await request.body())
    if kind == "multipart/form-data":
        return await _read_multipart(request)
    raise UnsupportedMediaType("frames as application/json or multipart/form-data")


async def _read_multipart(request: Request) -> tuple[list[FrameItem], dict[str, bytes]]:
    # One part more than allowed gets through, so that a batch of 51 is told apart from a broken body.
    count = limits.FRAMES_PER_BATCH + 2
    # Latin-1 keeps every byte of a text part, so that the JSON reader sees what was sent.
    headers = Headers({"content-type": f"{request.headers['content-type']}; charset=latin-1"})
    reader = MultiPartParser(
        headers,
        request.stream(),
        max_files=count,
        max_fields=count,
        max_part_size=limits.FRAMES_REQUEST_BYTES,
    )
    try:
        form = await reader.parse()
    except MultiPartException as error:
        raise _broken() from error
    pairs = [(_name(name), await _content(part)) for name, part in form.multi_items()]
    await form.close()
    parts = dict(pairs)
    if "frames" not in parts or len(parts) != len(pairs):
        raise _broken()
    return await anyio.to_thread.run_sync(read_frames_part, parts.pop("frames")), parts


def _name(name: str) -> str:
    return name.encode("latin-1").decode("utf-8", "replace")


async def _content(part: UploadFile | str) -> bytes:
    return await part.read() if isinstance(part, UploadFile) else part.encode("latin-1")


def _broken() -> ValidationFailed:
    text = "Send one JSON part named `frames` and one binary part for each frame, each name once."
    return ValidationFailed.of("", "invalid_multipart", text)
