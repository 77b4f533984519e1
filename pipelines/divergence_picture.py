"""Pictures of a divergence in Dagster: the recorded page, and the page that the replay saw. Design §2."""

import base64
import io
import logging

import dagster as dg
from PIL import Image
from sqlmodel import select

from recorder.errors import RecorderError
from recorder.models.replay import ReplayRow
from recorder.recording.item_reads import read_image
from recorder.recording.sessions import find_session
from recorder.replay_service.rows import has_sessions
from recorder.runtime import Runtime

log = logging.getLogger("recorder.replays")

_MOST_PIXELS = 16_000_000
_SIZE = (640, 480)
_QUALITY = 60
_MOST_BYTES = 100_000


def show_divergence(runtime: Runtime, replay_id: str | None) -> dict[str, dg.MetadataValue]:
    """Return the metadata of the divergence of a replay, with its pictures; empty without a divergence.

    Pictures are Markdown, so that they go with the other texts of a run when recorded content is erased.
    """
    if replay_id is None:
        return {}
    with runtime.database.transaction(write=False) as db:
        row = db.exec(
            select(ReplayRow).where(ReplayRow.id == replay_id, *has_sessions(ReplayRow))
        ).one_or_none()
    if row is None or row.divergence is None:
        return {}
    divergence = row.divergence
    seen = (row.against_session_id, divergence.get("observed_frame_id"))
    if divergence.get("live_frame_id") is not None:
        seen = (row.result_session_id, divergence["live_frame_id"])
    recorded = _show_frame(runtime, row, row.session_id, divergence.get("frame_id"), name="recorded")
    observed = _show_frame(runtime, row, *seen, name="observed")
    line = f"{row.id}: {divergence['kind']} at step {divergence['step']}"
    table = f"| recorded | observed |\n|---|---|\n| {recorded} | {observed} |"
    return {"worst_divergence": dg.MetadataValue.md(f"{line}\n\n{table}")}


def _show_frame(
    runtime: Runtime, row: ReplayRow, session_id: str | None, frame_id: str | None, *, name: str
) -> str:
    """Return a frame as a data URL in Markdown; a dash where there is none, or it cannot be read."""
    if session_id is None or frame_id is None:
        return "–"
    try:
        with runtime.database.transaction(write=False) as db:
            session = find_session(db, row.tenant, session_id)
            data, _ = read_image(db, runtime.lake, runtime.blobs, session, frame_id)
        data = _shrink(data)
    except (RecorderError, OSError, ValueError, Image.DecompressionBombError) as error:
        # A picture is no reason for a run to fail.
        log.info("replay %s: its picture cannot be shown: %s", row.id, type(error).__name__)
        return "–"
    return f"![{name}](data:image/jpeg;base64,{base64.b64encode(data).decode()})"


def _shrink(data: bytes) -> bytes:
    """Return a small JPEG of a picture.

    Raises:
        OSError, ValueError: if it cannot be read, or is too large.
    """
    with Image.open(io.BytesIO(data)) as picture:
        if picture.width * picture.height > _MOST_PIXELS:
            raise ValueError("too many pixels")
        picture.draft("RGB", _SIZE)
        small = picture.convert("RGB")
    small.thumbnail(_SIZE)
    made = io.BytesIO()
    small.save(made, "JPEG", quality=_QUALITY)
    if made.tell() > _MOST_BYTES:
        raise ValueError("too many bytes")
    return made.getvalue()
