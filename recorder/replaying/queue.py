"""Queue of replays: create, find, list, cancel and decide; the row is the queue. Spec §4.6, contract §8."""

from typing import Any

from sqlalchemy import exists, or_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.access.keys import LIVE_REPLAY, Caller
from recorder.audit.log import Origin, record
from recorder.errors import (
    InsufficientScope,
    InvalidRange,
    InvalidState,
    NotFound,
    SessionNotSealed,
    UrlNotAllowed,
    ValidationFailed,
)
from recorder.ids import is_id, new_timed_id
from recorder.models.replay import (
    ReplayCreate,
    ReplayDecision,
    ReplayPlace,
    ReplayRow,
    ReplayStep,
    ReplayStepRow,
)
from recorder.models.session import SessionRow, TagCreate, TagRow
from recorder.models.workspace import WorkspaceRow
from recorder.net.reachable_hosts import ReachableHosts
from recorder.recording.item_reads import find_anchor_time
from recorder.recording.session_events import read_events_page
from recorder.recording.sessions import find_session
from recorder.replaying.inputs import encrypt_inputs
from recorder.replaying.wire_objects import emit
from recorder.request_context import current_request_id
from recorder.runtime import Runtime
from recorder.storage.conditions import in_tenant
from recorder.storage.pages import FetchedPage, fetch_page
from recorder.tenant import Tenant


def check_request(caller: Caller, body: ReplayCreate) -> None:
    """Check what needs no look-up: that modes and anchors fit, and the scope of a live replay.

    Raises:
        ValidationFailed: if the mode needs an anchor, or takes none.
        InsufficientScope: if the key may not start live replays.
    """
    if body.mode == "partial" and body.anchor is None:
        text = "A partial replay needs the anchor at which it begins."
        raise ValidationFailed.of("/anchor", "missing", message=text)
    if body.mode == "full" and body.anchor is not None:
        text = "A full replay begins with the first event; send mode partial or guided with an anchor."
        raise ValidationFailed.of("/anchor", "invalid_value", message=text)
    if body.sandbox == "live" and body.against is not None:
        text = "A live replay is compared with the recording itself; leave against out, or replay dry."
        raise ValidationFailed.of("/against", "invalid_value", message=text)
    require_scope(caller, body.sandbox)


def require_scope(caller: Caller, sandbox: str) -> None:
    """Check that a key may start, cancel and steer replays of a sandbox.

    Raises:
        InsufficientScope: if the sandbox is live and the key lacks its scope.
    """
    if sandbox == "live" and not caller.scope.live_replay:
        raise InsufficientScope(LIVE_REPLAY)


def create_replay(
    db: DbSession, runtime: Runtime, caller: Caller, body: ReplayCreate, *, origin: Origin
) -> ReplayRow:
    """Queue the replay of a checked request. Needs a write transaction.

    Raises:
        NotFound: if a session, or the tag, frame or event of an anchor is unknown.
        SessionNotSealed: if a session is not sealed.
        InvalidRange: if the replay would end before it begins.
        UrlNotAllowed: if a live replay may reach no host, or names one that it may not reach.
    """
    tenant = caller.tenant
    session = _find_sealed(db, tenant, body.session_id)
    other = None if body.against is None else _find_sealed(db, tenant, body.against.session_id)
    if body.sandbox == "live":
        _check_hosts(db, tenant, body)
    anchor_event = _check_places(db, runtime, session, body)
    replay_id, now = new_timed_id("rpl")
    row = ReplayRow(
        id=replay_id,
        workspace_id=tenant.workspace_id,
        mode=tenant.mode,
        workflow=session.workflow,
        session_id=session.id,
        sandbox=body.sandbox,
        kind=body.mode,
        status="queued",
        spec={
            "anchor": _describe_place(body.anchor),
            "until": _describe_place(body.until),
            "policy": body.policy.model_dump(mode="json"),
        },
        anchor_event=anchor_event,
        against_session_id=None if other is None else other.id,
        input_names=sorted(body.inputs),
        input_values=encrypt_inputs(runtime.settings.secret, replay_id, body.inputs),
        decisions={},
        request_id=current_request_id(),
        created_at=now,
    )
    db.add(row)
    emit(db, row)
    if row.sandbox == "live":
        details = {"session_id": row.session_id, "mode": row.kind}
        record(db, origin, "replay.create", resource_type="replay", resource_id=row.id, details=details)
    return row


def find_replay(db: DbSession, tenant: Tenant, replay_id: str, *, lock: bool = False) -> ReplayRow:
    """Return a replay of the caller's workspace and mode.

    Raises:
        NotFound: if it is missing, of another workspace or mode, or of a deleted session.
    """
    if not is_id(replay_id, "rpl"):
        raise NotFound("replay")
    statement = select(ReplayRow).where(
        ReplayRow.id == replay_id, *in_tenant(ReplayRow, tenant), *has_sessions()
    )
    row = db.exec(statement.with_for_update(of=ReplayRow) if lock else statement).one_or_none()
    if row is None:
        raise NotFound("replay")
    return row


def list_replays(
    db: DbSession,
    tenant: Tenant,
    *,
    filters: dict[str, str],
    workflows: tuple[str, ...],
    before_id: str | None,
    limit: int,
) -> FetchedPage[ReplayRow, str]:
    """Return a page of replays, newest first; its position is the id of the last one.

    Args:
        db: database session.
        tenant: workspace and mode of the replays.
        filters: columns with the value that they must have.
        workflows: replays of one of them; empty takes all.
        before_id: the last id of the page before.
        limit: most replays of a page.
    """
    statement = select(ReplayRow).where(*in_tenant(ReplayRow, tenant), *has_sessions())
    for name, value in filters.items():
        statement = statement.where(getattr(ReplayRow, name) == value)
    if workflows:
        statement = statement.where(col(ReplayRow.workflow).in_(workflows))
    if before_id is not None:
        statement = statement.where(col(ReplayRow.id) < before_id)
    statement = statement.order_by(col(ReplayRow.id).desc())
    return fetch_page(
        lambda count: db.exec(statement.limit(count)), limit=limit, position_of=lambda row: row.id
    )


def list_steps(
    db: DbSession, row: ReplayRow, *, after: int | None, limit: int
) -> FetchedPage[ReplayStep, int]:
    """Return a page of the steps of a replay, in their order."""
    statement = select(ReplayStepRow).where(ReplayStepRow.replay_id == row.id)
    if after is not None:
        statement = statement.where(col(ReplayStepRow.step) > after)
    statement = statement.order_by(col(ReplayStepRow.step))
    page = fetch_page(
        lambda count: db.exec(statement.limit(count)), limit=limit, position_of=lambda step: step.step
    )
    return page.convert(lambda step: ReplayStep.model_validate(step.model_dump(exclude={"replay_id"})))


def cancel_replay(db: DbSession, caller: Caller, replay_id: str, *, origin: Origin) -> ReplayRow:
    """End a replay as failed, with the error type `cancelled`. Needs a write transaction.

    Raises:
        NotFound, InsufficientScope: if there is no such replay, or the key may not cancel it.
        InvalidState: if it has ended.
    """
    row = find_replay(db, caller.tenant, replay_id, lock=True)
    require_scope(caller, row.sandbox)
    if row.finished_at is not None:
        raise InvalidState(row.status, needed="replay must be queued or running")
    end_failed(db, row, "cancelled", "A client cancelled the replay.")
    if row.sandbox == "live":
        record(db, origin, "replay.cancel", resource_type="replay", resource_id=row.id)
    return row


def decide(
    db: DbSession, caller: Caller, replay_id: str, body: ReplayDecision, *, origin: Origin
) -> ReplayRow:
    """Store the decision on the step that a guided replay awaits; it goes on from there.

    Raises:
        NotFound, InsufficientScope: if there is no such replay, or the key may not steer it.
        InvalidState: if it awaits no decision, one on another step, or the time for it is over.
    """
    row = find_replay(db, caller.tenant, replay_id, lock=True)
    require_scope(caller, row.sandbox)
    is_awaited = row.awaiting_step == body.step and row.awaiting_until is not None
    if not is_awaited or row.awaiting_until <= clock.now():  # type: ignore[operator]
        raise InvalidState(row.status, needed=f"replay must await a decision on step {body.step}")
    decision = {"action": body.action, "selector": body.selector}
    row.decisions = {**row.decisions, str(body.step): decision}
    row.awaiting_step = row.awaiting_until = None
    db.add(row)
    details = {"step": body.step, "action": body.action}
    record(db, origin, "replay.decide", resource_type="replay", resource_id=row.id, details=details)
    return row


def end_failed(db: DbSession, row: ReplayRow, type: str, message: str) -> None:
    """End a replay that could not run, or was ended, and forget its inputs."""
    row.error = {"type": type, "message": message}
    end(db, row, "failed")


def end(db: DbSession, row: ReplayRow, status: str) -> None:
    """End a replay in a status, forget its inputs, and queue the event."""
    row.status, row.finished_at = status, clock.now()
    row.input_values = row.awaiting_step = row.awaiting_until = None
    db.add(row)
    emit(db, row)


def has_sessions() -> list[Any]:
    """Return the conditions that the sessions of a replay are not deleted."""
    alive = col(SessionRow.deleted_at).is_(None)
    source = exists().where(col(SessionRow.id) == ReplayRow.session_id, alive)
    other = exists().where(col(SessionRow.id) == ReplayRow.against_session_id, alive)
    return [source, or_(col(ReplayRow.against_session_id).is_(None), other)]


def _find_sealed(db: DbSession, tenant: Tenant, session_id: str) -> SessionRow:
    row = find_session(db, tenant, session_id)
    if row.status != "sealed":
        raise SessionNotSealed(row.status)
    return row


def _check_hosts(db: DbSession, tenant: Tenant, body: ReplayCreate) -> None:
    allowed = db.get_one(WorkspaceRow, tenant.workspace_id).live_hosts or []
    if not allowed:
        raise UrlNotAllowed(
            "The workspace allows no host to live replays; an admin key adds some with PATCH "
            "/v1/workspaces/current, member live_replay.allow_hosts.",
            "/sandbox",
        )
    reachable = ReachableHosts(allowed)
    for index, host in enumerate(body.policy.allow_hosts or []):
        if not reachable.include(host):
            text = "The workspace's live_replay.allow_hosts lacks this host; a replay only narrows that list."
            raise UrlNotAllowed(text, f"/policy/allow_hosts/{index}")


def _check_places(
    db: DbSession, runtime: Runtime, session: SessionRow, body: ReplayCreate
) -> dict[str, Any] | None:
    """Check anchor and until of a request; return the event with which the replay begins."""
    anchor = None if body.anchor is None else _find_time(db, runtime, session, body.anchor)
    until = None if body.until is None else _find_time(db, runtime, session, body.until)
    if anchor is not None and until is not None and until < anchor:
        raise InvalidRange("/until", "/anchor", where="body", detail="until is before anchor.")
    if anchor is None:
        return None
    # Ids are longer than "": the page begins with the first event at that time.
    after = (anchor, "")
    page = read_events_page(db, runtime.lake, session, after=after, limit=1)
    if not page.items:
        raise NotFound("event", "The session has no event at or after this anchor; name an earlier one.")
    first = page.items[0]
    if body.anchor is not None and body.anchor.event_id is not None:
        return {"event_id": body.anchor.event_id, "t_ms": anchor}
    return {"event_id": first.id, "t_ms": first.t_ms}


def _find_time(db: DbSession, runtime: Runtime, session: SessionRow, position: ReplayPlace) -> int:
    if position.tag is not None:
        named = select(TagRow.t_ms).where(TagRow.session_id == session.id, TagRow.name == position.tag)
        t_ms = db.exec(named.order_by(col(TagRow.t_ms).desc()).limit(1)).first()
        kind = "tag"
    else:
        kind = "event" if position.event_id is not None else "frame"
        tag = TagCreate(name="anchor", event_id=position.event_id, frame_id=position.frame_id)
        try:
            t_ms = find_anchor_time(db, runtime.lake, session, tag)
        except ValidationFailed:
            t_ms = None
    if t_ms is None:
        raise NotFound(kind, f"The session has no such {kind}.")
    return t_ms


def _describe_place(position: ReplayPlace | None) -> dict[str, Any] | None:
    return None if position is None else position.model_dump(exclude_none=True)
