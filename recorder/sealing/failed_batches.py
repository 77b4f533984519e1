"""Batches that fail as a whole: counted, deleted from the lake, divided down to one session. Design §3."""

import logging
from datetime import timedelta

from sqlmodel import col, select

from recorder import clock
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing import batches, quarantine
from recorder.sealing.batches import ClaimedBatch
from recorder.sealing.failures import SealErrorCode
from recorder.sealing.turns import Turn, Turns
from recorder.storage.lake_schemas import LAYOUTS

log = logging.getLogger("recorder.sealing")

#: A batch is divided after so many failures, or after so many runs were killed while they worked on it.
_MAX_FAILURES = 3
#: A single session is set aside after so many kills of the run that worked on it. More than failures, since a
#: run may be killed for another reason.
_MAX_KILLS = 6
RETRY_AFTER = timedelta(milliseconds=200)


def is_given_up(batch: ClaimedBatch) -> bool:
    """Return whether a batch is to be divided instead of tried again."""
    max_kills = _MAX_FAILURES if len(batch.session_ids) > 1 else _MAX_KILLS
    return batch.state == "undoing" or batch.kills >= max_kills


def count_failure(runtime: Runtime, turns: Turns, turn: Turn, error: Exception) -> None:
    """Count a failure that no single session is known to have caused, and give the lane back."""
    log.exception("batch %d of lane %s failed", turn.batch.number, turn.lane.name)
    with runtime.database.transaction(write=True) as db:
        turns.hold(db, turn)
        row = batches.read_batch(db, turn.batch)
        row.failures, row.ended = row.failures + 1, row.begun
        row.not_before = clock.now() + RETRY_AFTER
        if row.failures >= _MAX_FAILURES:
            row.state = "undoing"
            row.last_error = type(error).__name__
        db.add(row)
        turns.end(db, turn)


def divide(runtime: Runtime, turns: Turns, turn: Turn) -> None:
    """Delete what a batch wrote, then divide it; a session that is alone is set aside."""
    batch = turn.batch
    if batch.state != "undoing":
        # Stored first: a run that is killed while it deletes rows must not seal the rest of them.
        with runtime.database.transaction(write=True) as db:
            turns.hold(db, turn)
            row = batches.read_batch(db, batch)
            row.state, row.last_error = "undoing", _KILLED
            db.add(row)
    delete_rows(runtime, batch, batch.session_ids)
    with runtime.database.transaction(write=True) as db:
        turns.hold(db, turn)
        row = batches.read_batch(db, batch)
        if len(batch.session_ids) > 1:
            batches.split_batch(db, batch)
        else:
            row.state, row.ended = "done", row.begun
            db.add(row)
            quarantine.set_aside(db, batch.session_ids[0], *_describe_cause(row.last_error))
        turns.continue_or_end(db, turn)


def delete_rows(runtime: Runtime, batch: ClaimedBatch, session_ids: list[str]) -> None:
    """Delete the rows of some sessions of a batch from the lake."""
    if not session_ids:
        return
    with runtime.database.transaction(write=False) as db:
        rows = select(SessionRow.workflow).where(col(SessionRow.id).in_(session_ids)).distinct()
        workflows = list(db.exec(rows))
    for kind in LAYOUTS:
        for workflow in workflows:
            runtime.lake.delete_sessions(
                kind,
                batch.tenant,
                workflow=workflow,
                date=batch.date,
                session_ids=session_ids,
            )


_KILLED = "killed"


def _describe_cause(last_error: str | None) -> tuple[SealErrorCode, str]:
    if last_error == _KILLED:
        return "worker_killed", (
            "The process that sealed this session was killed each time. Look for memory limits in the "
            "operator's logs, then reseal it."
        )
    return "content_unreadable", (
        f"Sealing this session failed each time ({last_error}). The operator's log has the details."
    )
