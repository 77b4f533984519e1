"""Work of a replay drain run on recoveries with candidates, one attempt at a time. Spec §4.6, contract §8.

Up to three candidates are tried dry, each by a replay that the same run works on; for a live recovery the
first that matches is then replayed live. Each step of a recovery is one transaction: a run that is killed
leaves a recovery that the next run continues.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import exists
from sqlmodel import Session as DbSession
from sqlmodel import col, select, update

from recorder.errors import NotFound
from recorder.models.recovery import RecoveryReason, RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionRow
from recorder.recording.sessions import find_session
from recorder.replay_service.requests.encrypted_inputs import decrypt_inputs
from recorder.replay_service.requests.recoveries import end_recovery, lock_open_recovery
from recorder.replay_service.requests.replay_and_recovery_rows import make_undeleted_session_conditions
from recorder.replay_service.requests.replays import create_attempt_replay
from recorder.replay_service.scheduling.waiting_rows_by_tenant import (
    DUE_RECOVERIES,
    list_waiting_rows_by_tenant,
)
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease
from recorder.tenant import Tenant

#: Candidates that are tried dry.
MOST_ATTEMPTS = 3
_AT_ONCE = 20
#: Recoveries that a run makes due when it begins.
_RELEASED_AT_ONCE = 1_000
_NODE = ("node_id", "event_id", "t_ms", "frame_id")


def list_due_recoveries(
    db: DbSession,
    *,
    limit: int = _AT_ONCE,
    without: Sequence[str] = (),
    full: Collection[Tenant] = (),
) -> list[RecoveryRow]:
    """Return open recoveries without an open attempt, the oldest of each workspace first.

    Those of suspended workspaces wait.

    Args:
        db: database session.
        limit: most recoveries.
        without: ids of recoveries to leave out.
        full: workspaces and modes to leave out.
    """
    due = [col(RecoveryRow.id).not_in(without), *make_undeleted_session_conditions(RecoveryRow)]
    return list_waiting_rows_by_tenant(db, DUE_RECOVERIES, due, limit=limit, full=full)


def list_recoveries_without_attempt(db: DbSession) -> list[str]:
    """Return ids of open recoveries whose attempt counts as under way and is not, the first ones."""
    stuck = select(RecoveryRow.id).where(*_make_stuck_recovery_conditions()).order_by(col(RecoveryRow.id))
    return list(db.exec(stuck.limit(_RELEASED_AT_ONCE)))


def release_recoveries_without_attempt(db: DbSession, recovery_ids: Collection[str]) -> None:
    """Make the open recoveries among these due whose attempt is not under way. Needs a write transaction.

    It covers attempts whose end was stored while another transaction held their recovery, and failed later.
    """
    stuck = (col(RecoveryRow.id).in_(recovery_ids), *_make_stuck_recovery_conditions())
    db.exec(update(RecoveryRow).where(*stuck).values(attempt_is_open=False))


def _make_stuck_recovery_conditions() -> list[Any]:
    """Return SQL conditions of open recoveries whose attempt counts as open, though its replay has ended."""
    attempt = exists().where(col(ReplayRow.cause) == RecoveryRow.id, col(ReplayRow.finished_at).is_(None))
    return [col(RecoveryRow.finished_at).is_(None), col(RecoveryRow.attempt_is_open), ~attempt]


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
        current = lock_open_recovery(db, row)
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
        current = lock_open_recovery(db, row)
        if current is not None:
            end_recovery(db, current, reason=reason)
    return current


def _continue_recovery_attempts(db: DbSession, runtime: Runtime, row: RecoveryRow) -> None:
    """Start the attempt that follows the last one, or end the recovery."""
    assert row.candidates is not None
    last = _read_last_recovery_attempt(db, row)
    if last is not None and last.finished_at is None:
        return
    if last is None and row.went_live:
        # The purge of its donor removed the live attempt, which may have changed something.
        end_recovery(db, row, reason="live_replay_ended")
        return
    tried = [candidate for candidate in row.candidates if candidate["replay_id"] is not None]
    if last is not None and last.summary is not None:
        # Without snapshots an attempt compares nothing: the graph alone chose its candidate.
        row.evidence = last.summary["evidence"] or row.evidence or "graph"
    if last is not None and last.error is not None and last.error["type"] == "cancelled":
        end_recovery(db, row, reason="cancelled")
    elif last is not None and last.sandbox == row.sandbox and _has_matched(last):
        row.recovery_point = {name: tried[-1][name] for name in _NODE}
        end_recovery(db, row)
    elif last is not None and last.sandbox == "live":
        end_recovery(db, row, reason="live_replay_ended")
    elif last is not None and _has_matched(last):
        # Dry it matches; now the same live. The sandbox's worker ends the replay, and the recovery goes on.
        if not _start_recovery_attempt(db, runtime, row, tried[-1], "live"):
            end_recovery(db, row, reason="candidates_exhausted")
    else:
        _try_next_candidate(db, runtime, row)


def _has_matched(attempt: ReplayRow) -> bool:
    """Return whether an attempt was completed, a dry one without a step that its policy skipped.

    At each divergence of a live attempt a person decides.
    """
    return attempt.status == "completed" and (attempt.sandbox == "live" or attempt.divergence is None)


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
        secret=secret,
        inputs=inputs,
    )
    if sandbox == "live":
        row.input_values = None
    row.replay_ids = [*row.replay_ids, replay.id]
    row.attempt_is_open = True
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
