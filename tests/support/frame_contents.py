"""Frames in a blob store without a service, for the digest pool, and what their digests have to be."""

import hashlib
import io
from collections.abc import Sequence

from PIL import Image

from recorder.models.frame import FrameRow
from recorder.sealing.digest_messages import DigestBudget
from recorder.sealing.frame_digests import (
    FrameDigest,
    compute_frame_digests,
    compute_snapshot_screen,
    read_cells_of_frame_picture,
)
from recorder.storage.blobs import Blobs


def store_frames(
    blobs: Blobs,
    session_id: str,
    pictures: Sequence[bytes],
    snapshots: Sequence[bytes | None] = (),
    *,
    upload: str = "first",
) -> list[FrameRow]:
    """Store pictures, and snapshots beside them, as one upload object; returns their rows."""
    key, data, rows = f"frames/{session_id}/{upload}.pack", b"", []
    for number, picture in enumerate(pictures):
        width, height = _size_of(picture)
        row = FrameRow(
            session_id=session_id,
            frame_id=f"frm_{upload}{number}",
            position=number,
            t_ms=number,
            content_type="image/png",
            width=width,
            height=height,
            bytes=len(picture),
            sha256=hashlib.sha256(picture).hexdigest(),
            object=key,
            offset=len(data),
            length=len(picture),
        )
        data += picture
        snapshot = snapshots[number] if snapshots else None
        if snapshot is not None:
            row.dom_object, row.dom_offset, row.dom_length = key, len(data), len(snapshot)
            data += snapshot
        rows.append(row)
    blobs.put(key, data)
    return rows


def digest_alone(blobs: Blobs, frames: Sequence[FrameRow]) -> list[FrameDigest]:
    """Return the digests of frames as this process computes them, one by one."""
    return [_digest_one(blobs, frame) for frame in frames]


def _digest_one(blobs: Blobs, frame: FrameRow) -> FrameDigest:
    cells = read_cells_of_frame_picture(blobs.get(frame.object, frame.offset, frame.length))
    screen = None
    if frame.dom_object is not None:
        assert frame.dom_offset is not None
        packed = blobs.get(frame.dom_object, frame.dom_offset, frame.dom_length)
        screen = compute_snapshot_screen(packed, DigestBudget())
    return compute_frame_digests(screen, frame.url, cells)


def _size_of(picture: bytes) -> tuple[int, int]:
    """Return width and height, as checked at upload; (1, 1) of what is no picture."""
    try:
        with Image.open(io.BytesIO(picture)) as image:
            return image.size
    except Exception:
        return (1, 1)
