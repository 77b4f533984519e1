"""Work of a drain run: replays that wait, each result stored in one transaction. Design §3.

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
from recorder.replaying.candidates import find_candidates
from recorder.replaying.failures import find_failure
from recorder.replaying.graph_evidence import read_evidence
from recorder.replaying.queue import end, end_failed, has_sessions
from recorder.replaying.recording import read_recording
from recorder.replaying.recovery_work import continue_recovery, list_due_recoveries
from recorder.replaying.wire_objects import emit
from recorder.replays.anchors import (
    AnchorUnknown,
    EventPosition,
    ReplayAnchor,
    find_anchor_event,
    find_until_event,
)
from recorder.replays.comparisons import GraphEvidence
from recorder.replays.dry import ReplayStart, replay_dry
from recorder.replays.policy import ReplayPolicy
from recorder.replays.recordings import InvalidRecording, RecordedSession
from recorder.replays.results import Decision, DryResult
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseKeeper, hold_lease, is_lease_held

log = logging.getLogger("recorder.replays")

LEASE = "replays"
LEASE_MS = 60_000
_RENEWAL_S = 15
#: Replays that are claimed in one transaction.
_AT_ONCE = 50
#: Time for the decision on a step of a guided replay.
DECISION_TIME = timedelta(minutes=15)
_NO_SANDBOX = (
    "This deployment has no live sandbox; replay with sandbox dry, which compares the session with its "
    "snapshots."
)


_NO_CANDIDATE = (
    "No node that the session passed before its failure leads to success in the memory graph; name an anchor."
)


@dataclass
class ReplayReport:
    """Counts of the replays that a run ended."""

    statuses: Counter[str] = field(default_factory=Counter)
    #: Divergences by kind.
    divergences: Counter[str] = field(default_factory=Counter)
    #: Ended recoveries by status, failed ones by reason.
    recoveries: Counter[str] = field(default_factory=Counter)
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
        self._keeper: LeaseKeeper | None = None
        self.report = ReplayReport()

    def take(self) -> bool:
        """Take the lease, and renew it while one replay takes long; False while another run has it."""
        with self._runtime.database.transaction(write=True) as db:
            self._held = hold_lease(db, LEASE, self._owner, ttl_ms=LEASE_MS)
        if self._held is not None:
            held = self._held
            self._keeper = LeaseKeeper(self._runtime.database, lambda: [held], every_s=_RENEWAL_S)
            self._keeper.start()
        return self._held is not None

    def release(self) -> None:
        """Give the lease back."""
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper.join()
            self._keeper = None
        if self._held is not None:
            with self._runtime.database.transaction(write=True) as db:
                self._held.release(db)
            self._held = None

    def work(self) -> bool:
        """Continue recoveries, and replay some of what waits; return False if nothing does.

        Raises:
            LeaseLost: if another run took over.
            Unavailable: if a store does not answer; what was claimed is replayed later.
        """
        assert self._held is not None
        with self._runtime.database.transaction(write=False) as db:
            recoveries = list_due_recoveries(db)
        for recovery in recoveries:
            ended = continue_recovery(self._runtime, self._held, recovery)
            if ended is not None:
                self.report.recoveries[ended.reason or ended.status] += 1
        with self._held.transaction(self._runtime.database) as db:
            rows = _list_due(db, limit=_AT_ONCE, lock=True)
            for row in rows:
                if row.status == "queued":
                    row.status, row.started_at = "running", clock.now()
                    db.add(row)
                    emit(db, row)
        for row in rows:
            self._replay(row)
        return bool(rows) or bool(recoveries)

    def _replay(self, row: ReplayRow) -> None:
        if row.awaiting_step is not None:
            self._fail(row, "timeout", "No decision came within 15 minutes.")
            return
        if row.sandbox == "live":
            self._fail(row, "sandbox", _NO_SANDBOX)
            return
        try:
            result, anchor = _replay_dry(self._runtime, row)
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
            self._store(row, result, anchor)

    def _fail(self, row: ReplayRow, type: str, message: str) -> None:
        with self._held_transaction() as db:
            current = _lock_open(db, row)
            if current is not None:
                end_failed(db, current, type, message)
                self.report.count(current)

    def _store(self, row: ReplayRow, result: DryResult, anchor: EventPosition | None) -> None:
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
            if anchor is not None:
                current.anchor_event = {"event_id": anchor.event_id, "t_ms": anchor.t_ms}
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
    """Return whether replays or recoveries wait and no run is at work."""
    if is_lease_held(db, LEASE, now_ms=clock.now_ms()):
        return False
    return bool(_list_due(db, limit=1)) or bool(list_due_recoveries(db, limit=1))


def _list_due(db: DbSession, *, limit: int, lock: bool = False) -> list[ReplayRow]:
    """Return the oldest replays that need work; those of suspended workspaces wait."""
    active = select(WorkspaceRow.id).where(col(WorkspaceRow.status) == "active")
    statement = (
        select(ReplayRow)
        .where(
            col(ReplayRow.finished_at).is_(None),
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


def _replay_dry(runtime: Runtime, row: ReplayRow) -> tuple[DryResult, EventPosition | None]:
    """Replay a session; return the result, and the event with which the replay began, if it has an anchor."""
    against, start = row.spec["against"] or {}, row.spec.get("start")
    evidence: GraphEvidence | None = None
    with runtime.database.transaction(write=False) as db:
        session = find_session(db, row.tenant, row.session_id)
        other: SessionRow | None = None
        if row.against_session_id is not None:
            other = find_session(db, row.tenant, row.against_session_id)
        if "path_id" in against or "graph" in against:
            evidence = read_evidence(db, runtime, session, against.get("path_id"))
    recording = read_recording(runtime, session)
    compared = None if other is None else read_recording(runtime, other)
    anchor = _find_anchor(runtime, session, recording, row)
    result = replay_dry(
        recording,
        mode=row.kind,  # type: ignore[arg-type]
        anchor=anchor,
        until=_find_until(recording, row),
        policy=_make_policy(row),
        input_names=frozenset(row.input_names),
        against=evidence if start is not None or evidence is not None else compared,
        start=None if start is None or compared is None else _find_start(compared, start["event_id"]),
        decisions={int(step): Decision(**decision) for step, decision in row.decisions.items()},
    )
    return result, anchor


def _find_start(recording: RecordedSession, event_id: str) -> ReplayStart:
    return ReplayStart(recording, find_anchor_event(recording, ReplayAnchor("event", event_id)))


def _find_anchor(
    runtime: Runtime, session: SessionRow, recording: RecordedSession, row: ReplayRow
) -> EventPosition | None:
    position = row.spec["anchor"]
    if position is None:
        return None
    if row.anchor_event is not None:  # known since the request, or since a guided replay began
        return EventPosition(row.anchor_event["t_ms"], row.anchor_event["event_id"])
    if "auto" not in position:
        return find_anchor_event(recording, _to_anchor(position))
    with runtime.database.transaction(write=False) as db:
        failure = find_failure(db, session, None, pointer="/anchor/auto")
    for candidate in find_candidates(runtime, session, failure):
        if candidate["event_id"] is not None:
            return find_anchor_event(recording, ReplayAnchor("event", candidate["event_id"]))
    raise InvalidRecording(_NO_CANDIDATE)


def _find_until(recording: RecordedSession, row: ReplayRow) -> EventPosition | None:
    position = row.spec["until"]
    return None if position is None else find_until_event(recording, _to_anchor(position))


def _to_anchor(position: dict[str, str]) -> ReplayAnchor:
    ((member, name),) = position.items()
    return ReplayAnchor(member.removesuffix("_id"), name)  # type: ignore[arg-type]


def _make_policy(row: ReplayRow) -> ReplayPolicy:
    sent = dict(row.spec["policy"])
    thresholds, viewport = sent.pop("thresholds"), sent.pop("viewport")
    return ReplayPolicy(
        **sent
        | {"allow_hosts": tuple(sent["allow_hosts"] or ()), "viewport": (viewport["w"], viewport["h"])},
        **thresholds,
    )
