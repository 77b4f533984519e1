"""Work of a drain run: dry replays that wait, each result stored in one transaction. Design §3.

One run at a time works, under a lease. Every transaction that writes checks it, so a run that lost it stores
nothing; the replays it left are replayed again, which touches nothing and gives the same result. Workspaces
take turns, and each replay is computed in a process that the kernel ends: a recording that takes too long
ends its own replay alone.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from polars.exceptions import PanicException
from sqlalchemy import delete, func, insert, or_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import NotFound, Unavailable
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.recording.sessions import find_session
from recorder.replaying.candidates import find_candidates
from recorder.replaying.dry_process import (
    DryProcess,
    DryTask,
    GraphMessage,
    RecordingMessage,
    ReplayNotComputed,
    StartMessage,
)
from recorder.replaying.failures import find_failure
from recorder.replaying.graph_evidence import read_evidence
from recorder.replaying.queue import end, end_failed, has_sessions
from recorder.replaying.recording import read_recording
from recorder.replaying.recovery_work import continue_recovery, fail_recovery, list_due_recoveries
from recorder.replaying.wire_objects import emit
from recorder.replays.anchors import ReplayAnchor
from recorder.replays.policy import ReplayPolicy
from recorder.replays.recordings import InvalidRecording
from recorder.replays.results import Decision, DryResult
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost, hold_lease, is_lease_held

log = logging.getLogger("recorder.replays")

LEASE = "replays"
LEASE_MS = 60_000
#: Replays that are claimed in one transaction.
_AT_ONCE = 50
#: Time for the decision on a step of a guided replay.
DECISION_TIME = timedelta(minutes=15)
#: Time for a store to answer again, and the pause between two attempts.
STORE_TIME, _STORE_PAUSE = timedelta(minutes=10), timedelta(seconds=30)
_MOST_PAUSED = 1_000
#: After so long the run lists anew what waits, so that workspaces take turns.
_TURN_S = 10.0
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
    """The work of one run, under its lease, which a thread renews."""

    def __init__(self, runtime: Runtime, owner: str) -> None:
        self._runtime = runtime
        self._owner = owner
        self._held: HeldLease | None = None
        self._keeper: LeaseKeeper | None = None
        self._process = DryProcess()
        #: Replays that wait for a store, with the time of the next attempt.
        self._paused: dict[str, datetime] = {}
        #: Recoveries that a store did not answer, with the first time.
        self._unavailable_since: dict[str, datetime] = {}
        self.report = ReplayReport()

    def take(self) -> bool:
        """Take the lease; False while another run has it."""
        database = self._runtime.database
        with database.transaction(write=True) as db:
            held = self._held = hold_lease(db, LEASE, self._owner, ttl_ms=LEASE_MS)
        if held is None:
            return False
        self._keeper = LeaseKeeper(database, lambda: [held], every_s=LEASE_MS / 4_000)
        self._keeper.start()
        return True

    @property
    def held(self) -> HeldLease:
        """The lease, which was taken."""
        assert self._held is not None
        return self._held

    def release(self) -> None:
        """End the process and the renewals, and give the lease back."""
        self._process.end()
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper.join()
        if self._held is not None:
            with self._runtime.database.transaction(write=True) as db:
                self._held.release(db)
            self._held = self._keeper = None

    def work(self) -> bool:
        """Continue recoveries, and replay some of what waits; return False if nothing does.

        Raises:
            LeaseLost: if another run took over.
            Unavailable: if many replays wait for a store; what was claimed is replayed later.
        """
        now = clock.now()
        self._paused = {replay_id: until for replay_id, until in self._paused.items() if until > now}
        until_s = time.monotonic() + _TURN_S
        has_recoveries = self._continue_recoveries(until_s)
        with self._held_transaction() as db:
            rows = _list_due(db, limit=_AT_ONCE, without=list(self._paused))
            for row in rows:
                if row.status == "queued":
                    row.status, row.started_at = "running", clock.now()
                    db.add(row)
                    emit(db, row)
        for row in rows:
            self._replay(row)
            if time.monotonic() > until_s:
                break  # the rest is listed again, in the turns of that moment
        return bool(rows) or has_recoveries

    def _continue_recoveries(self, until_s: float) -> bool:
        """Continue the recoveries that wait for no attempt; return False if there are none.

        Args:
            until_s: time of this process's monotonic clock after which none is begun.
        """
        assert self._held is not None
        with self._runtime.database.transaction(write=False) as db:
            due = list_due_recoveries(db, without=list(self._paused))
        for row in due:
            try:
                ended = continue_recovery(self._runtime, self._held, self._process, row)
            except Unavailable:
                ended = self._pause_recovery(row)
            except LeaseLost:
                raise
            except (
                Exception,
                PanicException,
            ):  # a defect of ours, or damaged files: the run goes on with the others
                log.exception("recovery %s", row.id)
                ended = fail_recovery(self._runtime, self._held, row)
            if ended is not None:
                self.report.recoveries[ended.reason or ended.status] += 1
            if time.monotonic() > until_s:
                break
        return bool(due)

    def _pause_recovery(self, row: RecoveryRow) -> RecoveryRow | None:
        """Let a recovery wait, because a store did not answer; after some minutes it fails.

        Raises:
            Unavailable: if many wait for a store.
        """
        assert self._held is not None
        now = clock.now()
        if now - self._unavailable_since.setdefault(row.id, now) >= STORE_TIME:
            return fail_recovery(self._runtime, self._held, row)
        self._wait_for_store(row.id)
        return None

    def _wait_for_store(self, row_id: str) -> None:
        if len(self._paused) >= _MOST_PAUSED:
            raise Unavailable("The blob store")
        self._paused[row_id] = clock.now() + _STORE_PAUSE

    def _replay(self, row: ReplayRow) -> None:
        if row.awaiting_step is not None:
            self._fail(row, "timeout", "No decision came within 15 minutes.")
            return
        try:
            task = _read_task(self._runtime, self._process, row)
            self._store(row, self._process.replay(task), _find_anchor_event(task))
        except InvalidRecording as error:
            self._fail(row, "invalid_recording", str(error))
        except NotFound:
            return  # deleted meanwhile: the purge of the session removes the replay
        except Unavailable:
            self._pause(row)
        except LeaseLost:
            raise
        except (
            Exception,
            PanicException,
        ) as error:  # a defect of ours, or damaged files: the run goes on with the others
            log.exception("replay %s", row.id)
            kind = str(error) if isinstance(error, ReplayNotComputed) else type(error).__name__
            self._fail(row, "internal", f"The replay could not be computed: {kind}.")

    def _pause(self, row: ReplayRow) -> None:
        """Let a replay wait, because a store did not answer; after some minutes it fails.

        Raises:
            Unavailable: if many replays wait for a store.
        """
        if row.started_at is None or clock.now() - row.started_at < STORE_TIME:
            self._wait_for_store(row.id)
        else:
            minutes = STORE_TIME.seconds // 60
            self._fail(row, "internal", f"A store did not answer for {minutes} minutes; replay it again.")

    def _fail(self, row: ReplayRow, type: str, message: str) -> None:
        with self._held_transaction() as db:
            current = _lock_open(db, row)
            if current is not None:
                end_failed(db, current, type, message)
                self.report.count(current)

    def _store(self, row: ReplayRow, result: DryResult, anchor_event: dict[str, Any] | None) -> None:
        """Store steps, result and event of a replay together, unless it was ended or steered since."""
        with self._held_transaction() as db:
            current = _lock_open(db, row)
            if current is None:
                return
            db.connection().execute(delete(ReplayStepRow).where(col(ReplayStepRow.replay_id) == row.id))
            steps = [{"replay_id": row.id, **asdict(step)} for step in result.steps]
            if steps:
                db.connection().execute(insert(ReplayStepRow), steps)
            current.anchor_event = current.anchor_event or anchor_event
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
    has_replays = db.exec(select(ReplayRow.id).where(*_are_due()).limit(1)).first() is not None
    return has_replays or bool(list_due_recoveries(db, limit=1))


def _are_due() -> list[Any]:
    """Return the conditions of dry replays that need work; those of suspended workspaces wait."""
    active = select(WorkspaceRow.id).where(col(WorkspaceRow.status) == "active")
    return [
        ReplayRow.sandbox == "dry",
        col(ReplayRow.finished_at).is_(None),
        or_(col(ReplayRow.awaiting_step).is_(None), col(ReplayRow.awaiting_until) <= clock.now()),
        col(ReplayRow.workspace_id).in_(active),
        *has_sessions(),
    ]


def _list_due(db: DbSession, *, limit: int, without: Sequence[str]) -> list[ReplayRow]:
    """Lock and return replays that need work: the oldest of each workspace first."""
    tenant = (col(ReplayRow.workspace_id), col(ReplayRow.mode))
    turn = func.row_number().over(partition_by=tenant, order_by=col(ReplayRow.id)).label("turn")
    turns = select(ReplayRow.id, turn).where(*_are_due(), col(ReplayRow.id).not_in(without)).subquery()
    statement = (
        select(ReplayRow)
        .join(turns, turns.c.id == ReplayRow.id)
        .order_by(turns.c.turn, turns.c.id)
        .limit(limit)
        .with_for_update(of=ReplayRow)
    )
    return list(db.exec(statement))


def _lock_open(db: DbSession, row: ReplayRow) -> ReplayRow | None:
    """Return the current row of a replay, locked; None if it was ended, steered or removed since."""
    statement = select(ReplayRow).where(ReplayRow.id == row.id).with_for_update()
    current = db.exec(statement.execution_options(populate_existing=True)).one_or_none()
    if current is None or current.finished_at is not None or current.decisions != row.decisions:
        return None
    return current


def _read_task(runtime: Runtime, process: DryProcess, row: ReplayRow) -> DryTask:
    """Return the task of a dry replay.

    Raises:
        InvalidRecording: if a session is too large to be replayed, not in the graph that it is compared
            with, or has no candidate for an automatic anchor.
        NotFound: if a session was deleted.
        Unavailable: if a store does not answer.
    """
    against, start = row.spec["against"] or {}, row.spec.get("start")
    compared: RecordingMessage | GraphMessage | None = None
    with runtime.database.transaction(write=False) as db:
        session = find_session(db, row.tenant, row.session_id)
        other: SessionRow | None = None
        if row.against_session_id is not None:
            other = find_session(db, row.tenant, row.against_session_id)
        if "path_id" in against or "graph" in against:
            compared = read_evidence(db, runtime, session, against.get("path_id"))
    recording = None if other is None else read_recording(runtime, other)
    return DryTask(
        blob_url=runtime.settings.blob_url,
        archive_url=runtime.settings.cold_url,
        recording=read_recording(runtime, session),
        against=recording if start is None and recording is not None else compared,
        start=None if start is None or recording is None else StartMessage(recording, start["event_id"]),
        mode=row.kind,  # type: ignore[arg-type]
        anchor=_find_anchor(runtime, process, session, row),
        until=to_anchor(row.spec["until"]),
        policy=make_policy(row),
        input_names=row.input_names,
        decisions={int(step): Decision(**decision) for step, decision in row.decisions.items()},
    )


def _find_anchor(
    runtime: Runtime, process: DryProcess, session: SessionRow, row: ReplayRow
) -> ReplayAnchor | None:
    """Return the anchor of a replay; an automatic one is the best candidate, and stays what it was found."""
    position = row.spec["anchor"]
    if position is None or "auto" not in position:
        return to_anchor(position)
    if row.anchor_event is not None:
        return ReplayAnchor("event", row.anchor_event["event_id"])
    with runtime.database.transaction(write=False) as db:
        failure = find_failure(db, session, None, pointer="/anchor/auto")
    for candidate in find_candidates(runtime, process, session, failure):
        if candidate["event_id"] is not None:
            return ReplayAnchor("event", candidate["event_id"])
    raise InvalidRecording(_NO_CANDIDATE)


def _find_anchor_event(task: DryTask) -> dict[str, Any] | None:
    """Return the event of an anchor that names one."""
    if task.anchor is None or task.anchor.kind != "event":
        return None
    times = {event.id: event.t_ms for event in task.recording.events}
    return {"event_id": task.anchor.name, "t_ms": times[task.anchor.name]}


def to_anchor(position: dict[str, str] | None) -> ReplayAnchor | None:
    """Return a place as a replay's request has it, as an anchor."""
    if position is None:
        return None
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
