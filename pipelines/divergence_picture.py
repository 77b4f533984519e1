"""Pictures of a divergence in Dagster: the recorded page, and the page that the replay saw. Design §2."""

import base64
import logging

import dagster as dg
from sqlmodel import select

from recorder.errors import RecorderError
from recorder.models.replay import ReplayRow
from recorder.recording.item_reads import find_image
from recorder.recording.sessions import find_session
from recorder.replay_service.recordings.thumbnails import ThumbnailProcess
from recorder.replay_service.requests.replay_and_recovery_rows import make_undeleted_session_conditions
from recorder.runtime import Runtime

log = logging.getLogger("recorder.replays")


def make_divergence_metadata(runtime: Runtime, replay_id: str | None) -> dict[str, dg.MetadataValue]:
    """Return the metadata of the divergence of a replay, with its pictures; empty without a divergence.

    Pictures are Markdown, so that they go with the other texts of a run when recorded content is erased.
    """
    if replay_id is None:
        return {}
    with runtime.database.transaction(write=False) as db:
        row = db.exec(
            select(ReplayRow).where(ReplayRow.id == replay_id, *make_undeleted_session_conditions(ReplayRow))
        ).one_or_none()
    if row is None or row.divergence is None:
        return {}
    divergence = row.divergence
    seen = (row.against_session_id, divergence.get("observed_frame_id"))
    if divergence.get("live_frame_id") is not None:
        seen = (row.result_session_id, divergence["live_frame_id"])
    thumbnails = ThumbnailProcess()
    try:
        recorded, observed = (
            _show_divergence_frame(runtime, row, frame, thumbnails, name=name)
            for name, frame in (
                ("recorded", (row.session_id, divergence.get("frame_id"))),
                ("observed", seen),
            )
        )
    finally:
        thumbnails.end()
    line = f"{row.id}: {divergence['kind']} at step {divergence['step']}"
    table = f"| recorded | observed |\n|---|---|\n| {recorded} | {observed} |"
    return {"worst_divergence": dg.MetadataValue.md(f"{line}\n\n{table}")}


def _show_divergence_frame(
    runtime: Runtime,
    row: ReplayRow,
    frame: tuple[str | None, str | None],
    thumbnails: ThumbnailProcess,
    *,
    name: str,
) -> str:
    """Return a frame, given by session and id, as a picture in Markdown; a dash if it cannot be shown."""
    session_id, frame_id = frame
    if session_id is None or frame_id is None:
        return "–"
    try:
        with runtime.database.transaction(write=False) as db:
            session = find_session(db, row.tenant, session_id)
            image = find_image(db, runtime.lake, runtime.blobs, session, frame_id)
            data = image.read(0, image.size)
    except RecorderError as error:
        # A picture is no reason for a run to fail.
        log.info("replay %s: its picture cannot be read: %s", row.id, type(error).__name__)
        return "–"
    small = thumbnails.make(data)
    if small is None:
        return "–"
    return f"![{name}](data:image/jpeg;base64,{base64.b64encode(small).decode()})"
