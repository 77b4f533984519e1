"""Work on live replays: claim one under a lease, do it, and store what became of it. Design §3.

A replay is claimed once: whoever loses its lease stores nothing more, and it is never done again. The row of
a step is written before the action is sent, as one whose delivery is uncertain, and again once it is known.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import NotFound
from recorder.live.actions import list_needed_inputs
from recorder.live.browser import Browser, BrowserLost, NoBrowser, PageStuck
from recorder.live.journal import LiveResult
from recorder.live.proxy import FilteringProxy
from recorder.live.run import LiveRun
from recorder.masking.policies import load_policies
from recorder.models.operations import LeaseRow
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.models.workspace import WorkspaceRow
from recorder.net.addresses import InvalidAllowList
from recorder.net.guard import AddressGuard
from recorder.net.reachable_hosts import ReachableHosts
from recorder.recording.sessions import find_session
from recorder.replaying.dry_process import open_recording
from recorder.replaying.dry_tasks import make_policy, to_anchor
from recorder.replaying.inputs import decrypt_inputs
from recorder.replaying.queue import end, end_failed, has_sessions
from recorder.replaying.recording import read_recording
from recorder.replaying.wire_objects import emit
from recorder.replaying.work import DECISION_TIME
from recorder.replays.anchors import AnchorUnknown, EventPosition, find_anchor_event, find_until_event
from recorder.replays.budget import BudgetSpent
from recorder.replays.dry import MOST_STEPS
from recorder.replays.recordings import InvalidRecording, RecordedSession, RecordedStep, list_steps
from recorder.replays.results import Decision, Divergence, StepResult
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost, hold_lease, take_lease

log = logging.getLogger("recorder.replays")

LEASE_MS = 30_000
LEASE_PREFIX = "replay/"
_RENEW_S = 5.0
#: The row is looked at so often while a step waits.
_CHECK_S = 1.0
_ASK_S = 0.5
_WORKER_LOST = "The worker that ran the replay is gone; nothing is sent again. Ask for another replay."


class Stopped(Exception):
    """The replay was ended by others, or must not go on; what was to be stored is stored."""


def claim(
    db: DbSession, owner: str, *, replay_id: str | None = None, busy: Collection[str] = (), places: int = 1
) -> tuple[ReplayRow, HeldLease] | None:
    """Claim the oldest live replay that waits, in a write transaction; return None if there is none.

    Args:
        db: a write transaction.
        owner: who claims it.
        replay_id: the only one to claim.
        busy: workspaces of the replays that the caller runs now, one for each.
        places: replays that the caller runs at a time; a workspace gets at most half of them.
    """
    statement = _select_waiting()
    if replay_id is not None:
        statement = statement.where(ReplayRow.id == replay_id)
    full = [workspace for workspace, count in Counter(busy).items() if count >= max(1, places // 2)]
    if full:
        statement = statement.where(col(ReplayRow.workspace_id).not_in(full))
    row = db.exec(statement.limit(1).with_for_update(of=ReplayRow, skip_locked=True)).first()
    if row is None:
        return None
    held = hold_lease(db, LEASE_PREFIX + row.id, owner, ttl_ms=LEASE_MS)
    if held is None:
        return None
    row.status, row.started_at = "running", clock.now()
    db.add(row)
    emit(db, row)
    return row, held


def list_waiting(db: DbSession, *, limit: int) -> list[ReplayRow]:
    """Return the oldest live replays that wait; those of suspended workspaces are left out."""
    return list(db.exec(_select_waiting().limit(limit)))


def end_lost(db: DbSession) -> int:
    """End the replays whose worker is gone, in a write transaction; return how many."""
    now_ms = clock.now_ms()
    running = select(ReplayRow).where(
        ReplayRow.sandbox == "live", ReplayRow.status == "running", col(ReplayRow.finished_at).is_(None)
    )
    ended = 0
    for row in db.exec(running):
        name = LEASE_PREFIX + row.id
        # The fencing number rises: a worker that was only suspended stores nothing more.
        if take_lease(db, name, "end_lost", now_ms=now_ms, ttl_ms=0) is None:
            continue
        locked = select(ReplayRow).where(ReplayRow.id == row.id).with_for_update()
        current = db.exec(locked.execution_options(populate_existing=True)).one_or_none()
        if current is not None and current.finished_at is None:
            end_failed(db, current, "internal", _WORKER_LOST)
            ended += 1
        db.delete(db.get_one(LeaseRow, name))
    return ended


def run_replay(
    runtime: Runtime, row: ReplayRow, held: HeldLease, is_stopping: Callable[[], bool] = lambda: False
) -> None:
    """Do a claimed replay, and store what became of it.

    Args:
        runtime: the deployment.
        row: the replay, as it was claimed.
        held: its lease.
        is_stopping: returns whether the worker is to end.
    """
    journal = ReplayJournal(runtime, row.id, held, is_stopping)
    try:
        with LeaseKeeper(runtime.database, lambda: [held], every_s=_RENEW_S):
            try:
                result = _do_replay(runtime, row, journal)
            except (NoBrowser, BrowserLost) as error:
                journal.fail("sandbox", str(error))
            except PageStuck as error:
                journal.fail("timeout", str(error))
            except (InvalidRecording, AnchorUnknown) as error:
                journal.fail("invalid_recording", str(error))
            except BudgetSpent:
                journal.fail("invalid_recording", "A page has too many elements for its targets to be found.")
            except (LeaseLost, Stopped):
                raise
            except Exception as error:  # a defect of ours: the next replay may be without it
                log.exception("replay %s", row.id)
                journal.fail("internal", f"The replay could not be done: {type(error).__name__}.")
            else:
                if result is not None:
                    journal.finish(result)
    except Stopped:
        pass
    except LeaseLost:
        log.warning("replay %s: its lease was lost", row.id)
    finally:
        journal.release()


def _do_replay(runtime: Runtime, row: ReplayRow, journal: "ReplayJournal") -> LiveResult | None:
    with runtime.database.transaction(write=False) as db:
        try:
            session = find_session(db, row.tenant, row.session_id)
        except NotFound as error:
            raise Stopped from error
        workspace = db.get_one(WorkspaceRow, row.workspace_id)
        hosts = workspace.live_hosts or []
        policies = load_policies(db, workspace, row.mode, secret=runtime.settings.secret)
        masking = None if policies is None else policies.of(row.workflow)
    recording = open_recording(read_recording(runtime, session), runtime.blobs)
    anchor, until = _find_bounds(recording, row)
    steps = list_steps(recording)
    chosen = [step for step in steps if _is_between(step, anchor, until)]
    if len(chosen) > MOST_STEPS:
        text = f"A replay has at most {MOST_STEPS:,} steps; choose fewer with anchor and until."
        raise InvalidRecording(text)
    missing = sorted(list_needed_inputs(chosen) - set(row.input_names))
    if missing:
        text = f"The replay needs the inputs {', '.join(missing)[:500]}; send them as inputs."
        journal.fail("input_missing", text)
        return None
    inputs = decrypt_inputs(runtime.settings.secret, row.id, row.input_values)
    policy = make_policy(row)
    narrowed = row.spec["policy"]["allow_hosts"]
    if narrowed is not None:
        whole = ReachableHosts(hosts)
        hosts = [host for host in narrowed if whole.include(host)]
    journal.set_steps(len(steps))
    with _sandbox(runtime, hosts, policy.viewport) as (browser, proxy):
        return LiveRun(
            recording,
            chosen,
            [] if anchor is None else [step for step in steps if _get_position(step) < anchor],
            row.kind,  # type: ignore[arg-type]
            policy,
            inputs,
            browser,
            proxy,
            _keep if masking is None else masking.masker().mask_value,
            journal,
        ).run()


@contextmanager
def _sandbox(
    runtime: Runtime, hosts: list[str], viewport: tuple[int, int]
) -> Iterator[tuple[Browser, FilteringProxy]]:
    """Yield a browser behind its proxy; both end with the block."""
    try:
        proxy = FilteringProxy(ReachableHosts(hosts), AddressGuard.of_live(runtime.settings))
        proxy.start()
    except (InvalidAllowList, OSError) as error:
        raise NoBrowser(str(error)) from error
    try:
        browser = Browser(runtime.settings, proxy)
        try:
            browser.start(viewport)
            yield browser, proxy
        finally:
            browser.close()
    finally:
        proxy.stop()


class ReplayJournal:
    """Rows of a live replay; every write checks its lease, and that it was not ended."""

    def __init__(
        self, runtime: Runtime, replay_id: str, held: HeldLease, is_stopping: Callable[[], bool]
    ) -> None:
        self._database = runtime.database
        self._id = replay_id
        self._held = held
        self._is_stopping = is_stopping
        self._checked_s = 0.0

    def begin(self, step: int) -> None:
        """Note that a step begins.

        Raises:
            Stopped: if the replay must not go on.
            LeaseLost: if the worker counts as gone.
        """
        with self._open_row() as (db, row):
            row.step = step
            db.add(row)

    def check(self) -> None:
        """Check that the replay may go on; raises as `begin`."""
        if time.monotonic() - self._checked_s >= _CHECK_S:
            with self._open_row():
                pass

    def intend(self, result: StepResult) -> None:
        """Note an action before it is sent; raises as `begin`."""
        self.store(result)

    def store(self, result: StepResult) -> None:
        """Note what became of a step; raises as `begin`."""
        with self._open_row() as (db, _):
            db.merge(ReplayStepRow(replay_id=self._id, **asdict(result)))

    def set_steps(self, count: int) -> None:
        """Note the number of steps; raises as `begin`."""
        with self._open_row() as (db, row):
            row.steps = count
            db.add(row)

    def ask(self, step: int, divergence: Divergence | None) -> Decision | None:
        """Wait for the decision on a step; None if none comes in time. Raises as `begin`."""
        with self._open_row() as (db, row):
            row.awaiting_step, row.awaiting_until = step, clock.now() + DECISION_TIME
            row.decisions = {name: kept for name, kept in row.decisions.items() if name != str(step)}
            row.divergence = None if divergence is None else asdict(divergence)
            db.add(row)
        while True:
            time.sleep(_ASK_S)
            with self._open_row() as (_, row):
                decision = row.decisions.get(str(step))
                if decision is not None:
                    return Decision(**decision)
                if row.awaiting_until is None or row.awaiting_until <= clock.now():
                    return None

    def fail(self, type: str, message: str) -> None:
        """End the replay as failed; raises as `begin`."""
        with self._open_row() as (db, row):
            end_failed(db, row, type, message)

    def finish(self, result: LiveResult) -> None:
        """End the replay with its result; raises as `begin`."""
        with self._open_row() as (db, row):
            row.summary = asdict(result.summary)
            row.divergence = None if result.divergence is None else asdict(result.divergence)
            if result.error is not None:
                end_failed(db, row, result.error.type, result.error.message)
            else:
                end(db, row, result.status)

    def release(self) -> None:
        """Remove the lease, unless another owner took it: the replay is never claimed again."""
        with self._database.transaction(write=True) as db:
            lease = db.get(LeaseRow, self._held.lease.name)
            if lease is not None and lease.fence == self._held.fence:
                db.delete(lease)

    @contextmanager
    def _open_row(self) -> Iterator[tuple[DbSession, ReplayRow]]:
        with self._held.transaction(self._database) as db:
            statement = select(ReplayRow).where(ReplayRow.id == self._id).with_for_update(of=ReplayRow)
            row = db.exec(statement.execution_options(populate_existing=True)).one_or_none()
            reason = None if row is None or row.finished_at is not None else self._find_reason(db, row)
            if row is not None and reason is not None:
                end_failed(db, row, *reason)
            is_open = row is not None and row.finished_at is None
            if row is not None and is_open:
                yield db, row
        if not is_open:
            raise Stopped
        self._checked_s = time.monotonic()

    def _find_reason(self, db: DbSession, row: ReplayRow) -> tuple[str, str] | None:
        """Return type and text of the error with which an open replay must end now."""
        if self._is_stopping():
            return "internal", "The worker was stopped; ask for another replay."
        if db.get_one(WorkspaceRow, row.workspace_id).status != "active":
            return "cancelled", "The workspace was suspended."
        if db.exec(select(ReplayRow.id).where(ReplayRow.id == row.id, *has_sessions())).first() is None:
            return "cancelled", "The session was deleted."
        return None


def _select_waiting() -> Any:
    active = select(WorkspaceRow.id).where(col(WorkspaceRow.status) == "active")
    return (
        select(ReplayRow)
        .where(
            ReplayRow.sandbox == "live",
            ReplayRow.status == "queued",
            col(ReplayRow.finished_at).is_(None),
            col(ReplayRow.workspace_id).in_(active),
            *has_sessions(),
        )
        .order_by(col(ReplayRow.id))
    )


def _find_bounds(
    recording: RecordedSession, row: ReplayRow
) -> tuple[EventPosition | None, EventPosition | None]:
    """Return the events with which a replay begins and ends; None for those of the session.

    Raises:
        AnchorUnknown: if the session lacks one of them.
    """
    anchor, until = to_anchor(row.spec["anchor"]), to_anchor(row.spec["until"])
    return (
        None if anchor is None else find_anchor_event(recording, anchor),
        None if until is None else find_until_event(recording, until),
    )


def _is_between(step: RecordedStep, anchor: EventPosition | None, until: EventPosition | None) -> bool:
    position = _get_position(step)
    return (anchor is None or position >= anchor) and (until is None or position <= until)


def _get_position(step: RecordedStep) -> EventPosition:
    return EventPosition(step.event["t_ms"], step.event["id"])


def _keep(value: Any) -> Any:
    return value
