"""Work of a drain run on recoveries with candidates: one attempt after the other. Spec §4.6, contract §8.

Up to three candidates are tried dry, each by a replay that the same run works on; for a live recovery the
first that matches is then replayed live. Each step of a recovery is one transaction: a run that is killed
leaves a recovery that the next run continues.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import exists
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import NotFound
from recorder.models.recovery import RecoveryReason, RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionRow
from recorder.recording.sessions import find_session
from recorder.replay_service.requests.encrypted_inputs import decrypt_inputs, encrypt_inputs
from recorder.replay_service.requests.recoveries import end_recovery
from recorder.replay_service.requests.replay_rows import make_undeleted_replay_conditions
from recorder.replay_service.requests.replays import create_attempt_replay
from recorder.replay_service.scheduling.open_tenants import OPEN_RECOVERIES, list_open_rows_by_tenant
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease

#: Candidates that are tried dry.
MOST_ATTEMPTS = 3
_AT_ONCE = 20
_NODE = ("node_id", "event_id", "t_ms", "frame_id")


def list_due_recoveries(
    db: DbSession, *, limit: int = _AT_ONCE, without: Sequence[str] = ()
) -> list[RecoveryRow]:
    """Return open recoveries without an open attempt, the oldest of each workspace first.

    Those of suspended workspaces wait.
    """
    attempt = exists().where(col(ReplayRow.cause) == RecoveryRow.id, col(ReplayRow.finished_at).is_(None))
    due = [~attempt, col(RecoveryRow.id).not_in(without), *make_undeleted_replay_conditions(RecoveryRow)]
    return list_open_rows_by_tenant(db, OPEN_RECOVERIES, due, limit=limit)


def continue_recovery(
    runtime: Runtime,
    held: HeldLease,
    row: RecoveryRow,
    *,
    candidates: list[dict[str, Any]] | None = None,
) -> RecoveryRow | None:
    """Read the last attempt of a recovery, and start the next one or end it.

    Args:
        runtime: the deployment.
        held: the lease of the run.
        row: the recovery.
        candidates: those that a search found, the best first, where the recovery has none yet.

    Returns:
        The recovery if it ended.

    Raises:
        LeaseLost: if another run took over.
    """
    with held.transaction(runtime.database) as db:
        current = lock_recovery(db, row)
        if current is None:
            return None
        if current.candidates is None:
            current.candidates = candidates or []
        _continue_recovery_attempts(db, runtime, current)
        return current if current.finished_at is not None else None


def fail_recovery(
    runtime: Runtime, held: HeldLease, row: RecoveryRow, reason: RecoveryReason = "internal"
) -> RecoveryRow | None:
    """End a recovery that cannot be computed; return it unless it had ended.

    Raises:
        LeaseLost: if another run took over.
    """
    with held.transaction(runtime.database) as db:
        current = lock_recovery(db, row)
        if current is not None:
            end_recovery(db, current, reason=reason)
    return current


def lock_recovery(db: DbSession, row: RecoveryRow) -> RecoveryRow | None:
    """Return the current row of a recovery, locked; None if it was ended or removed since."""
    statement = select(RecoveryRow).where(RecoveryRow.id == row.id).with_for_update()
    current = db.exec(statement.execution_options(populate_existing=True)).one_or_none()
    return None if current is None or current.finished_at is not None else current


def _continue_recovery_attempts(db: DbSession, runtime: Runtime, row: RecoveryRow) -> None:
    """Start the attempt that follows the last one, or end the recovery."""
    assert row.candidates is not None
    last = _read_last_recovery_attempt(db, row)
    if last is None and row.went_live:
        # The purge of its donor removed the live attempt, which may have changed something.
        end_recovery(db, row, reason="live_replay_ended")
        return
    tried = [candidate for candidate in row.candidates if candidate["replay_id"] is not None]
    if last is not None and last.summary is not None:
        row.evidence = last.summary["evidence"]
    if last is not None and last.error is not None and last.error["type"] == "cancelled":
        end_recovery(db, row, reason="cancelled")
    elif last is not None and last.sandbox == row.sandbox and last.status == "completed":
        row.recovery_point = {name: tried[-1][name] for name in _NODE}
        end_recovery(db, row)
    elif last is not None and last.sandbox == "live":
        end_recovery(db, row, reason="live_replay_ended")
    elif last is not None and last.status == "completed":
        # Dry it matches; now the same live. The sandbox's worker ends the replay, and the recovery goes on.
        if not _start_recovery_attempt(db, runtime, row, tried[-1], "live"):
            end_recovery(db, row, reason="candidates_exhausted")
    else:
        _try_next_candidate(db, runtime, row)


def _try_next_candidate(db: DbSession, runtime: Runtime, row: RecoveryRow) -> None:
    """Start a dry attempt from the candidate after the last one tried, if any is left."""
    assert row.candidates is not None
    numbers = [number for number, candidate in enumerate(row.candidates, 1) if candidate["replay_id"]]
    for candidate in row.candidates[max(numbers, default=0) : MOST_ATTEMPTS]:
        if _start_recovery_attempt(db, runtime, row, candidate, "dry"):
            return
    reason: RecoveryReason = "candidates_exhausted" if row.candidates else "no_recovery_points"
    end_recovery(db, row, reason=reason)


def _start_recovery_attempt(
    db: DbSession, runtime: Runtime, row: RecoveryRow, candidate: dict[str, Any], sandbox: str
) -> bool:
    """Queue the replay of a candidate's donor; False if the donor was deleted.

    A live one gets the inputs of the recovery, which keeps none then; a dry one types nothing.
    """
    donor = candidate["donor"]
    try:
        session: SessionRow = find_session(db, row.tenant, donor["session_id"])
    except NotFound:
        return False
    start = None
    if candidate["event_id"] is not None:
        start = {"session_id": row.session_id, "event_id": candidate["event_id"]}
    secret = runtime.settings.secret
    inputs = decrypt_inputs(secret, row.id, row.input_values) if sandbox == "live" else {}
    replay = create_attempt_replay(
        db,
        session,
        sandbox=sandbox,
        attempt=len(row.replay_ids) + 1,
        cause=row.id,
        event_ids=(donor["event_id"], donor["until_event_id"]),
        start=start,
        policy=row.policy,
        request_id=row.request_id,
        input_names=row.input_names or [],
        encrypt=lambda replay_id: encrypt_inputs(secret, replay_id, inputs),
    )
    if sandbox == "live":
        row.input_values = None
    row.replay_ids = [*row.replay_ids, replay.id]
    row.went_live = row.went_live or sandbox == "live"
    assert row.candidates is not None
    row.candidates = [
        {**other, "replay_id": replay.id} if other["node_id"] == candidate["node_id"] else other
        for other in row.candidates
    ]
    db.add(row)
    return True


def _read_last_recovery_attempt(db: DbSession, row: RecoveryRow) -> ReplayRow | None:
    """Return the last attempt; None before the first, and where the purge of its donor removed it."""
    return db.get(ReplayRow, row.replay_ids[-1]) if row.replay_ids else None
