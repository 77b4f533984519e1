"""Work of a drain run: dry replays that wait, each result stored in one transaction. Design §3.

One run at a time works, under a lease. Every transaction that writes checks it, so a run that lost it stores
nothing; the replays it left are replayed again, which touches nothing and gives the same result.
"""

import logging
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import timedelta

from sqlalchemy import or_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import NotFound, RecorderError, Unavailable
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.recording.sessions import find_session
from recorder.replaying.queue import end, end_failed, has_sessions
from recorder.replaying.recording import read_recording
from recorder.replaying.wire_objects import emit
from recorder.replays.anchors import (
    AnchorUnknown,
    EventPosition,
    ReplayAnchor,
    find_anchor_event,
    find_until_event,
)
from recorder.replays.dry import replay_dry
from recorder.replays.policy import ReplayPolicy
from recorder.replays.recordings import InvalidRecording, RecordedSession
from recorder.replays.results import Decision, DryResult
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, hold_lease, is_lease_held

log = logging.getLogger("recorder.replays")

LEASE = "replays"
LEASE_MS = 60_000
#: Replays that are claimed in one transaction.
_AT_ONCE = 50
#: Time for the decision on a step of a guided replay.
DECISION_TIME = timedelta(minutes=15)


@dataclass
class ReplayReport:
    """Counts of the replays that a run ended."""

    statuses: Counter[str] = field(default_factory=Counter)
    #: Divergences by kind.
    divergences: Counter[str] = field(default_factory=Counter)
    #: Replays by tenth of their least similarity: 0 to 9.
    similarities: Counter[int] = field(default_factory=Counter)

    def count(self, row: ReplayRow) -> None:
        """Count a replay that ended."""
        self.statuses[row.status] += 1
        if row.divergence is not None:
            self.divergences[row.divergence["kind"]] += 1
        least = None if row.summary is None else row.summary["min_similarity"]
        if least is not None:
            self.similarities[min(9, int(least * 10))] += 1


class ReplayRun:
    """The work of one run, under its lease."""

    def __init__(self, runtime: Runtime, owner: str) -> None:
        self._runtime = runtime
        self._owner = owner
        self._held: HeldLease | None = None
        self.report = ReplayReport()

    def take(self) -> bool:
        """Take the lease; False while another run has it."""
        with self._runtime.database.transaction(write=True) as db:
            self._held = hold_lease(db, LEASE, self._owner, ttl_ms=LEASE_MS)
        return self._held is not None

    def release(self) -> None:
        """Give the lease back."""
        if self._held is not None:
            with self._runtime.database.transaction(write=True) as db:
                self._held.release(db)
            self._held = None

    def work(self) -> bool:
        """Replay some of what waits; return False if nothing does.

        Raises:
            LeaseLost: if another run took over.
            Unavailable: if a store does not answer; what was claimed is replayed later.
        """
        assert self._held is not None
        with self._held.transaction(self._runtime.database) as db:
            rows = _list_due(db, limit=_AT_ONCE, lock=True)
            for row in rows:
                if row.status == "queued":
                    row.status, row.started_at = "running", clock.now()
                    db.add(row)
                    emit(db, row)
        for row in rows:
            self._replay(row)
        return bool(rows)

    def _replay(self, row: ReplayRow) -> None:
        if row.awaiting_step is not None:
            self._fail(row, "timeout", "No decision came within 15 minutes.")
            return
        try:
            result = _replay_dry(self._runtime, row)
        except (InvalidRecording, AnchorUnknown) as error:
            self._fail(row, "invalid_recording", str(error))
        except NotFound:
            return  # deleted meanwhile: the purge of the session removes the replay
        except Unavailable:
            raise  # replayed once the store answers
        except (RecorderError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.exception("replay %s", row.id)
            self._fail(row, "internal", f"The replay could not be computed: {type(error).__name__}.")
        else:
            self._store(row, result)

    def _fail(self, row: ReplayRow, type: str, message: str) -> None:
        with self._held_transaction() as db:
            current = _lock_open(db, row)
            if current is not None:
                end_failed(db, current, type, message)
                self.report.count(current)

    def _store(self, row: ReplayRow, result: DryResult) -> None:
        """Store steps, result and event of a replay together, unless it was ended or steered since."""
        with self._held_transaction() as db:
            current = _lock_open(db, row)
            if current is None:
                return
            for step in db.exec(select(ReplayStepRow).where(ReplayStepRow.replay_id == row.id)):
                db.delete(step)
            db.flush()
            for made in result.steps:
                db.add(ReplayStepRow(replay_id=row.id, **asdict(made)))
            current.summary = asdict(result.summary)
            current.divergence = None if result.divergence is None else asdict(result.divergence)
            current.step = current.steps = len(result.steps)
            if result.status == "awaiting":
                current.steps = None
                current.awaiting_step = result.awaiting_step
                current.awaiting_until = clock.now() + DECISION_TIME
                db.add(current)
                return
            if result.error is not None:
                end_failed(db, current, result.error.type, result.error.message)
            else:
                end(db, current, result.status)
            self.report.count(current)

    def _held_transaction(self) -> AbstractContextManager[DbSession]:
        assert self._held is not None
        return self._held.transaction(self._runtime.database)


def has_waiting(db: DbSession) -> bool:
    """Return whether replays wait and no run is at work."""
    return not is_lease_held(db, LEASE, now_ms=clock.now_ms()) and bool(_list_due(db, limit=1))


def _list_due(db: DbSession, *, limit: int, lock: bool = False) -> list[ReplayRow]:
    """Return the oldest dry replays that need work; those of suspended workspaces wait."""
    active = select(WorkspaceRow.id).where(col(WorkspaceRow.status) == "active")
    statement = (
        select(ReplayRow)
        .where(
            col(ReplayRow.finished_at).is_(None),
            ReplayRow.sandbox == "dry",
            or_(col(ReplayRow.awaiting_step).is_(None), col(ReplayRow.awaiting_until) <= clock.now()),
            col(ReplayRow.workspace_id).in_(active),
            *has_sessions(),
        )
        .order_by(col(ReplayRow.id))
        .limit(limit)
    )
    return list(db.exec(statement.with_for_update(of=ReplayRow) if lock else statement))


def _lock_open(db: DbSession, row: ReplayRow) -> ReplayRow | None:
    """Return the current row of a replay, locked; None if it was ended, steered or removed since."""
    statement = select(ReplayRow).where(ReplayRow.id == row.id).with_for_update()
    current = db.exec(statement.execution_options(populate_existing=True)).one_or_none()
    if current is None or current.finished_at is not None or current.decisions != row.decisions:
        return None
    return current


def _replay_dry(runtime: Runtime, row: ReplayRow) -> DryResult:
    with runtime.database.transaction(write=False) as db:
        session = find_session(db, row.tenant, row.session_id)
        other: SessionRow | None = None
        if row.against_session_id is not None:
            other = find_session(db, row.tenant, row.against_session_id)
    recording = read_recording(runtime, session)
    anchor, until = find_bounds(recording, row)
    return replay_dry(
        recording,
        mode=row.kind,  # type: ignore[arg-type]
        anchor=anchor,
        until=until,
        policy=make_policy(row),
        input_names=frozenset(row.input_names),
        against=None if other is None else read_recording(runtime, other),
        decisions={int(step): Decision(**decision) for step, decision in row.decisions.items()},
    )


def find_bounds(
    recording: RecordedSession, row: ReplayRow
) -> tuple[EventPosition | None, EventPosition | None]:
    """Return the events with which a replay begins and ends; None for those of the session.

    Raises:
        AnchorUnknown: if the session lacks one of them.
    """
    anchor, until = row.spec["anchor"], row.spec["until"]
    return (
        None if anchor is None else find_anchor_event(recording, _to_anchor(anchor)),
        None if until is None else find_until_event(recording, _to_anchor(until)),
    )


def _to_anchor(position: dict[str, str]) -> ReplayAnchor:
    ((member, name),) = position.items()
    return ReplayAnchor(member.removesuffix("_id"), name)  # type: ignore[arg-type]


def make_policy(row: ReplayRow) -> ReplayPolicy:
    """Return the policy of a replay."""
    sent = dict(row.spec["policy"])
    thresholds, viewport = sent.pop("thresholds"), sent.pop("viewport")
    return ReplayPolicy(
        **sent
        | {"allow_hosts": tuple(sent["allow_hosts"] or ()), "viewport": (viewport["w"], viewport["h"])},
        **thresholds,
    )
