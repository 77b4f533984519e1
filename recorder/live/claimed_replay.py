"""Live replay under a lease: claimed once, run in a browser, its result stored. Design §3.

A replay is claimed once: whoever loses its lease stores nothing more, and it is never done again. The row of
a step is written before the action is sent, as one whose delivery is uncertain, and again once it is known.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, exists, literal, or_, text
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.access.keys import Caller, Scope
from recorder.access.rate_tiers import TIERS
from recorder.errors import NotFound
from recorder.fair_scheduling import compute_workspace_share
from recorder.live.browser import Browser, BrowserLost, NoBrowser, PageUnresponsive, StoredStateRefused
from recorder.live.hidden_inputs import HiddenInputs
from recorder.live.proxy import FilteringProxy
from recorder.live.replay_journal import LiveResult, ReplayJournal, ReplayStopped
from recorder.live.replay_plan import LiveReplayPlanner
from recorder.live.run_recording import ReplayRunRecorder
from recorder.live.step_execution import StepExecutor
from recorder.live.step_loop import LiveRun
from recorder.live.upload_files import InvalidFile, list_upload_contents
from recorder.masking.policies import load_workflow_masking
from recorder.models.operations import LeaseRow
from recorder.models.replay import LIVE_RUNNING, ReplayRow
from recorder.models.workspace import WorkspaceRow
from recorder.net.addresses import InvalidAllowList
from recorder.net.outbound_guard import AddressGuard
from recorder.net.reachable_hosts import ReachableHosts
from recorder.recording.sessions import find_session
from recorder.replay_service.dry.dry_tasks import find_replay_anchor, make_anchor, make_task_policy
from recorder.replay_service.dry.process_replies import ReplayNotComputed
from recorder.replay_service.recordings.recording_reads import read_recording
from recorder.replay_service.requests.encrypted_inputs import decrypt_inputs
from recorder.replay_service.requests.replay_and_recovery_rows import make_undeleted_session_conditions
from recorder.replay_service.requests.replay_wire_objects import queue_replay_events
from recorder.replay_service.requests.replays import end_replay_as_failed
from recorder.replay_service.requests.storage_state import StorageState, read_storage_state
from recorder.replay_service.scheduling.waiting_rows_by_tenant import (
    LIVE_REPLAYS_TO_RUN,
    list_waiting_rows_by_tenant,
)
from recorder.replays.budget import BudgetExceeded
from recorder.replays.recorded_session import InvalidRecording
from recorder.runtime import Runtime
from recorder.storage.conditions import in_tenant
from recorder.storage.database import Database
from recorder.storage.leases import (
    HeldLease,
    LeaseKeeper,
    LeaseLost,
    hold_lease,
    make_unexpired_condition,
    take_lease,
)

log = logging.getLogger("recorder.replays")

LEASE_MS = 30_000
LEASE_PREFIX = "replay/"
#: Replays that a worker tries to claim before it lists them again.
_MOST_CANDIDATES = 10
#: Replays that are ended in one transaction because their worker is gone.
MOST_LOST = 100
_RENEW_S = 5.0
#: Lease by whose row claims of guided replays wait for each other.
_GUIDED_CLAIMS = "guided_replays"
_NO_FILE = (
    "An input of an upload holds no file: send a text, or a URL such as "
    "data:application/pdf;base64,JVBERi0=; of several files a JSON array of as many as "
    "were recorded."
)
_STATE_REFUSED = (
    "The browser does not take the stored state that policy.storage_state_ref names; store it again with "
    "Playwright's context.storage_state()."
)
_WORKER_LOST = "The worker that ran the replay is gone; nothing is sent again. Ask for another replay."


def list_next_live_replays(
    db: DbSession, *, busy: Collection[str] = (), slots: int = 1, served: Sequence[str] = ()
) -> list[str]:
    """Return the ids of live replays that wait and can be claimed: of some workspaces the oldest one each.

    Workspaces take turns: the one that was served longest ago is first.

    Args:
        db: a transaction; it need not be a write transaction.
        busy: workspaces of the replays that the caller runs now, one for each.
        slots: replays that the caller runs at a time; a workspace gets at most half of them.
        served: workspaces of the replays that the caller has begun, the last one last.
    """
    share = compute_workspace_share(slots)
    full = [workspace for workspace, count in Counter(busy).items() if count >= share]
    last = {workspace: number for number, workspace in enumerate(served)}
    tenants = [tenant for tenant in LIVE_REPLAYS_TO_RUN.list_tenants(db) if tenant.workspace_id not in full]
    ids: list[str] = []
    for tenant in sorted(tenants, key=lambda tenant: last.get(tenant.workspace_id, -1)):
        waiting = select(ReplayRow.id).where(
            *in_tenant(ReplayRow, tenant),
            LIVE_REPLAYS_TO_RUN.make_conditions(),
            *make_undeleted_session_conditions(ReplayRow),
        )
        ids += db.exec(waiting.order_by(text(LIVE_REPLAYS_TO_RUN.order)).limit(1))
        if len(ids) >= _MOST_CANDIDATES:
            break
    return ids


def claim_live_replay(
    db: DbSession, owner: str, replay_ids: Sequence[str], *, has_one_guided: bool = False
) -> tuple[ReplayRow, HeldLease] | None:
    """Claim the first of some live replays that still waits, in a write transaction; None if none does.

    Args:
        db: a write transaction.
        owner: who claims it.
        replay_ids: the replays, in the order in which they are tried.
        has_one_guided: leave guided replays waiting while another one runs.
    """
    for replay_id in replay_ids:
        locked = select(ReplayRow).where(ReplayRow.id == replay_id, *_build_replay_claim_conditions())
        row = db.exec(locked.with_for_update(of=ReplayRow, skip_locked=True)).first()
        if row is None:
            continue  # another worker was faster
        if has_one_guided and is_guided_replay(row) and not _can_begin_guided_replay(db, owner):
            continue
        held = hold_lease(db, LEASE_PREFIX + row.id, owner, ttl_ms=LEASE_MS)
        if held is None:
            continue
        row.status, row.started_at = "running", clock.now()
        db.add(row)
        queue_replay_events(db, row)
        return row, held
    return None


def is_guided_replay(row: ReplayRow) -> bool:
    """Return whether a live replay may wait for decisions: it is guided, or asks at divergences."""
    return row.kind == "guided" or row.spec["policy"]["on_divergence"] == "ask"


def is_guided_replay_running(db: DbSession) -> bool:
    """Return whether a worker runs a live replay that may wait for decisions."""
    running = select(ReplayRow.id).where(text(LIVE_RUNNING), _build_guided_condition())
    return db.exec(running.limit(1)).first() is not None


def _build_guided_condition() -> ColumnElement[bool]:
    """Return the condition of the replays of `is_guided_replay`."""
    on_divergence = col(ReplayRow.spec)["policy"]["on_divergence"].as_string()
    return or_(col(ReplayRow.kind) == "guided", on_divergence == "ask")


def _can_begin_guided_replay(db: DbSession, owner: str) -> bool:
    """Return whether no guided replay runs; until this transaction ends, no other one is claimed so."""
    take_lease(db, _GUIDED_CLAIMS, owner, now_ms=clock.now_ms(), ttl_ms=0)
    return not is_guided_replay_running(db)


def list_waiting_live_replays(
    db: DbSession, *, each: int, limit: int, is_guided: bool | None = None
) -> list[ReplayRow]:
    """Return the oldest live replays that wait, of each workspace and mode some; suspended ones are left out.

    Args:
        db: a transaction; it need not be a write transaction.
        each: most replays of a workspace and mode.
        limit: most replays; many workspaces have equal shares of them.
        is_guided: whether those that may wait for decisions, or the others; None takes both.
    """
    conditions = make_undeleted_session_conditions(ReplayRow)
    if is_guided is not None:
        conditions.append(_build_guided_condition() if is_guided else ~_build_guided_condition())
    return list_waiting_rows_by_tenant(db, LIVE_REPLAYS_TO_RUN, conditions, limit=limit, most_each=each)


def list_leased_live_replays(db: DbSession, replay_ids: Collection[str]) -> set[str]:
    """Return the live replays among these whose lease a worker holds."""
    names = [LEASE_PREFIX + replay_id for replay_id in replay_ids]
    held = select(LeaseRow.name).where(
        col(LeaseRow.name).in_(names), make_unexpired_condition(clock.now_ms())
    )
    return {name.removeprefix(LEASE_PREFIX) for name in db.exec(held)}


def end_lost_live_replays(database: Database) -> int:
    """End replays whose worker is gone, a limited number at a time; return how many.

    The write transaction is opened only if there are any.
    """
    lease_name = literal(LEASE_PREFIX).concat(col(ReplayRow.id))
    is_held = exists().where(col(LeaseRow.name) == lease_name, make_unexpired_condition(clock.now_ms()))
    lost = select(ReplayRow.id).where(text(LIVE_RUNNING), ~is_held).order_by(col(ReplayRow.id))
    with database.transaction(write=False) as db:
        replay_ids = db.exec(lost.limit(MOST_LOST)).all()
    if not replay_ids:
        return 0
    with database.transaction(write=True) as db:
        return sum(_end_lost_live_replay(db, replay_id) for replay_id in replay_ids)


def _end_lost_live_replay(db: DbSession, replay_id: str) -> bool:
    """End a replay unless a worker holds its lease or it has ended; return whether it was ended."""
    name = LEASE_PREFIX + replay_id
    # The fencing number rises: a worker that was only suspended stores nothing more.
    if take_lease(db, name, "end_lost", now_ms=clock.now_ms(), ttl_ms=0) is None:
        return False
    locked = select(ReplayRow).where(ReplayRow.id == replay_id).with_for_update()
    row = db.exec(locked.execution_options(populate_existing=True)).one_or_none()
    is_lost = row is not None and row.finished_at is None
    if row is not None and is_lost:
        end_replay_as_failed(db, row, "internal", _WORKER_LOST)
    db.delete(db.get_one(LeaseRow, name))
    return is_lost


def run_claimed_replay(
    runtime: Runtime,
    row: ReplayRow,
    held: HeldLease,
    planner: LiveReplayPlanner,
    is_stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Do a claimed replay, and store what became of it.

    Args:
        runtime: the deployment.
        row: the replay, as it was claimed.
        held: its lease.
        planner: process that reads the recording.
        is_stopping: returns whether the worker is to end.
    """
    journal = ReplayJournal(runtime, row.id, held, is_stopping)
    try:
        with LeaseKeeper(runtime.database, lambda: [held], every_s=_RENEW_S):
            try:
                result = _perform_claimed_replay(runtime, row, journal, planner)
            except (NoBrowser, BrowserLost) as error:
                journal.fail("sandbox", str(error))
            except PageUnresponsive as error:
                journal.fail("timeout", str(error))
            except InvalidFile:
                journal.fail("input_missing", _NO_FILE)
            except StoredStateRefused:
                journal.fail("input_missing", _STATE_REFUSED)
            except InvalidRecording as error:
                journal.fail("invalid_recording", str(error))
            except BudgetExceeded:
                journal.fail("invalid_recording", "A page has too many elements for its targets to be found.")
            except (LeaseLost, ReplayStopped):
                raise
            except Exception as error:  # a defect of the service: the next replay may be without it
                log.exception("replay %s", row.id)
                kind = str(error) if isinstance(error, ReplayNotComputed) else type(error).__name__
                journal.fail("internal", f"The replay could not be done: {kind}.")
            else:
                if result is not None:
                    journal.finish(result)
    except ReplayStopped:
        pass
    except LeaseLost:
        log.warning("replay %s: its lease was lost", row.id)
    finally:
        journal.release()


def _perform_claimed_replay(
    runtime: Runtime, row: ReplayRow, journal: ReplayJournal, planner: LiveReplayPlanner
) -> LiveResult | None:
    policy = make_task_policy(row)
    ends_at = time.monotonic() + policy.max_ms / 1000
    with runtime.database.transaction(write=False) as db:
        try:
            session = find_session(db, row.tenant, row.session_id)
        except NotFound as error:
            raise ReplayStopped from error
        workspace = db.get_one(WorkspaceRow, row.workspace_id)
        hosts = workspace.live_hosts or []
        masking = load_workflow_masking(db, workspace, row.mode, row.workflow, secret=runtime.settings.secret)
    masker = None if masking is None else masking.masker()
    anchor, until = find_replay_anchor(row), make_anchor(row.spec["until"])
    plan = planner.plan(read_recording(runtime, session), anchor, until)
    typed = set(row.input_names) - {policy.storage_state_ref}
    missing = sorted({step.input_name for step in plan.steps if step.input_name} - typed)
    if policy.storage_state_ref not in (None, *row.input_names):
        missing.append(str(policy.storage_state_ref))
    if missing:
        text = f"The replay needs the inputs {', '.join(missing)[:500]}; send them as inputs."
        journal.fail("input_missing", text)
        return None
    inputs = decrypt_inputs(runtime.settings.secret, row.id, row.input_values)
    stored = inputs.pop(policy.storage_state_ref or "", None)
    narrowed = row.spec["policy"]["allow_hosts"]
    if narrowed is not None:
        whole = ReachableHosts(hosts)
        hosts = [host for host in narrowed if whole.contains_entry(host)]
    reachable = ReachableHosts(hosts, policy.allow_methods)
    shown = dict(inputs)
    for step in (*plan.steps, *plan.prefix):
        if step.type == "upload" and step.input_name in inputs:
            given = step.read().event.get("input") or {}
            for number, content in enumerate(list_upload_contents(given, inputs[step.input_name])):
                shown[f"{step.input_name} {number}"] = content
    state = None if stored is None else read_storage_state(stored).select(reachable)
    mask = _leave_replay_value_unmasked if masker is None else masker.mask_value
    hidden = HiddenInputs({**shown, **({} if state is None else state.list_secrets())}, mask)
    journal.set_steps(plan.total)
    with _open_sandbox(runtime, reachable, policy.viewport, state) as (browser, proxy):
        caller = Caller(row.tenant, row.id, Scope("write"), TIERS[workspace.tier])
        recording = ReplayRunRecorder(runtime, caller, journal.start_session(), masker)
        try:
            actor = StepExecutor(
                plan, policy, inputs, hidden, browser, proxy, mask, journal, recording, ends_at
            )
            return LiveRun(actor, row.kind).run()  # type: ignore[arg-type]
        except BrowserLost as error:
            # Playwright quotes what it was about to do.
            raise BrowserLost(hidden.hide_text(str(error).partition("\n")[0])) from None
        finally:
            recording.close()


@contextmanager
def _open_sandbox(
    runtime: Runtime, hosts: ReachableHosts, viewport: tuple[int, int], state: StorageState | None
) -> Iterator[tuple[Browser, FilteringProxy]]:
    """Yield a browser behind its proxy; both end with the block."""
    try:
        proxy = FilteringProxy(hosts, AddressGuard.of_browser(runtime.settings))
        proxy.start()
    except (InvalidAllowList, OSError) as error:
        raise NoBrowser(str(error)) from error
    try:
        browser = Browser(runtime.settings, proxy)
        try:
            browser.start(viewport, None if state is None else state.to_browser())
            yield browser, proxy
        finally:
            browser.close()
    finally:
        proxy.stop()


def _build_replay_claim_conditions() -> list[Any]:
    active = select(WorkspaceRow.id).where(col(WorkspaceRow.status) == "active")
    return [
        ReplayRow.sandbox == "live",
        ReplayRow.status == "queued",
        col(ReplayRow.finished_at).is_(None),
        col(ReplayRow.workspace_id).in_(active),
        *make_undeleted_session_conditions(ReplayRow),
    ]


def _leave_replay_value_unmasked(value: Any) -> Any:
    return value
