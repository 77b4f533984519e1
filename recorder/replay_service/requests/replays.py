"""Replays: create, cancel, steer and end them; the row is the queue. Spec §4.6, contract §8."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, select, update

from recorder import clock
from recorder.access.keys import Caller
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import (
    InvalidState,
    NotFound,
    ValidationFailed,
)
from recorder.ids import new_timed_id
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import (
    ReplayCreate,
    ReplayDecision,
    ReplayPlace,
    ReplayPolicyBody,
    ReplayRow,
    ReplayStep,
    ReplayStepRow,
)
from recorder.models.session import SessionRow
from recorder.recording.session_stops import stop_session
from recorder.replay_service.requests.encrypted_inputs import encrypt_inputs
from recorder.replay_service.requests.replay_and_recovery_rows import (
    check_open_row_limit,
    find_replay_or_recovery,
    record_live_change,
)
from recorder.replay_service.requests.replay_wire_objects import queue_replay_events
from recorder.replay_service.requests.request_checks import (
    EarlierLookup,
    check_compared_replay_session,
    check_replay_settings,
    check_requested_hosts,
    require_replay_scope,
    require_sealed_replay_session,
)
from recorder.request_context import current_request_id
from recorder.runtime import Runtime
from recorder.storage.list_pages import FetchedPage, fetch_statement_page


def check_replay_request(caller: Caller, body: ReplayCreate) -> None:
    """Check what needs no look-up: that modes and anchors fit, and the scope of a live replay.

    Raises:
        ValidationFailed: if the mode needs an anchor, or takes none, an input is too long, or a member of
            the policy has no effect.
        InsufficientScope: if the key may not start live replays.
    """
    if body.mode == "partial" and body.anchor is None:
        text = "A partial replay needs the anchor at which it begins."
        raise ValidationFailed.of("/anchor", "missing", message=text)
    if body.mode == "full" and body.anchor is not None:
        text = "A full replay begins with the first event; send mode partial or guided with an anchor."
        raise ValidationFailed.of("/anchor", "invalid_value", message=text)
    if body.sandbox == "live" and body.anchor is not None and body.anchor.auto:
        text = "A live replay takes no automatic anchor; recover the session with POST /v1/recoveries."
        raise ValidationFailed.of("/anchor/auto", "invalid_value", message=text)
    if body.sandbox == "live" and body.against is not None:
        text = "A live replay is compared with the recording itself; leave against out, or replay dry."
        raise ValidationFailed.of("/against", "invalid_value", message=text)
    against = body.against
    is_compared = against is not None and against.session_id is None
    check_replay_settings(caller, body.sandbox, body.policy, body.inputs, is_compared=is_compared)


def create_attempt_replay(
    db: DbSession,
    session: SessionRow,
    *,
    sandbox: str,
    attempt: int,
    cause: str,
    event_ids: tuple[str, str],
    start: dict[str, Any] | None,
    policy: dict[str, Any] | None,
    request_id: str | None,
    input_names: list[str],
    secret: bytes,
    inputs: dict[str, str],
) -> ReplayRow:
    """Queue an attempt of a recovery. Needs a write transaction.

    Args:
        db: the transaction.
        session: the donor.
        sandbox: `dry`, or `live`, where it is guided.
        attempt: its number within the recovery, from 1 on.
        cause: id of the recovery.
        event_ids: ids of the first and the last event.
        start: session and event of the failed session before which it begins.
        policy: the policy of the recovery; None for the default one.
        request_id: the POST that asked for the recovery.
        input_names: names of the inputs.
        secret: the deployment's, under which the inputs are encrypted.
        inputs: values of the inputs; none for a dry attempt, which types nothing.
    """
    replay_id, now = new_timed_id("rpl")
    row = ReplayRow(
        id=replay_id,
        workspace_id=session.workspace_id,
        mode=session.mode,
        workflow=session.workflow,
        session_id=session.id,
        sandbox=sandbox,
        kind="guided" if sandbox == "live" else "partial",
        status="queued",
        spec={
            "anchor": {"event_id": event_ids[0]},
            "until": {"event_id": event_ids[1]},
            "policy": policy or ReplayPolicyBody().model_dump(mode="json"),
            "against": None,
            "start": start,
        },
        against_session_id=None if start is None else start["session_id"],
        input_names=input_names,
        input_values=encrypt_inputs(secret, replay_id, inputs),
        decisions={},
        cause=cause,
        attempt=attempt,
        request_id=request_id,
        created_at=now,
    )
    db.add(row)
    queue_replay_events(db, row)
    return row


def create_replay(
    db: DbSession,
    runtime: Runtime,
    caller: Caller,
    body: ReplayCreate,
    *,
    first_event: EarlierLookup[dict[str, Any]],
    origin: Origin,
) -> ReplayRow:
    """Queue the replay of a checked request.

    Args:
        db: a write transaction.
        runtime: the deployment.
        caller: the caller.
        body: the request.
        first_event: result of `look_up_replay_range`.
        origin: origin of the request, for the audit log.

    Raises:
        NotFound: if a session, a path, or the tag, frame or event of an anchor is unknown.
        ValidationFailed: if an automatic anchor is asked for and the session did not fail.
        SessionNotSealed: if a session is not sealed.
        InvalidRange: if the replay would end before it begins.
        UrlNotAllowed: if a live replay may reach no host, or names one that it may not reach.
        LimitReached: if too many replays of the workspace have not ended.
    """
    tenant = caller.tenant
    session = require_sealed_replay_session(db, tenant, body.session_id)
    other = check_compared_replay_session(db, session, body)
    check_requested_hosts(db, tenant, body)
    anchor_event = first_event.require()
    check_open_row_limit(db, ReplayRow, tenant)
    replay_id, now = new_timed_id("rpl")
    inputs = body.inputs if body.sandbox == "live" else {}  # a dry one types nothing
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
            "anchor": _describe_replay_place(body.anchor),
            "until": _describe_replay_place(body.until),
            "policy": body.policy.model_dump(mode="json"),
            "against": None if body.against is None else body.against.model_dump(exclude_none=True),
        },
        anchor_event=anchor_event,
        against_session_id=None if other is None else other.id,
        input_names=sorted(body.inputs),
        input_values=encrypt_inputs(runtime.settings.secret, replay_id, inputs),
        decisions={},
        request_id=current_request_id(),
        created_at=now,
    )
    db.add(row)
    queue_replay_events(db, row)
    details = {"session_id": row.session_id, "mode": row.kind}
    record_live_change(db, origin, "replay.create", row, details=details)
    return row


def list_stored_replay_steps(
    db: DbSession, row: ReplayRow, *, after: int | None, limit: int
) -> FetchedPage[ReplayStep, int]:
    """Return a page of the steps of a replay, in their order."""
    statement = select(ReplayStepRow).where(ReplayStepRow.replay_id == row.id)
    if after is not None:
        statement = statement.where(col(ReplayStepRow.step) > after)
    statement = statement.order_by(col(ReplayStepRow.step))
    page = fetch_statement_page(db, statement, limit=limit, position_of=lambda step: step.step)
    return page.convert(lambda step: ReplayStep.model_validate(step.model_dump(exclude={"replay_id"})))


def cancel_replay(db: DbSession, caller: Caller, replay_id: str, *, origin: Origin) -> ReplayRow:
    """End a replay as failed, with the error type `cancelled`. Needs a write transaction.

    Raises:
        NotFound, InsufficientScope: if there is no such replay, or the key may not cancel it.
        InvalidState: if it has ended.
    """
    row = find_replay_or_recovery(db, ReplayRow, caller.tenant, replay_id, lock=True)
    require_replay_scope(caller, row.sandbox)
    if row.finished_at is not None:
        raise InvalidState(row.status, needed="replay must be queued or running")
    end_replay_as_failed(db, row, "cancelled", "A client cancelled the replay.")
    record_live_change(db, origin, "replay.cancel", row)
    return row


def store_replay_decision(
    db: DbSession, caller: Caller, replay_id: str, body: ReplayDecision, *, origin: Origin
) -> ReplayRow:
    """Store the decision on the step that a guided replay awaits; it goes on from there.

    Raises:
        NotFound, InsufficientScope: if there is no such replay, or the key may not steer it.
        InvalidState: if it awaits no decision, one on another step, or the time for it is over.
    """
    row = find_replay_or_recovery(db, ReplayRow, caller.tenant, replay_id, lock=True)
    require_replay_scope(caller, row.sandbox)
    is_awaited = row.awaiting_step == body.step and row.awaiting_until is not None
    if not is_awaited or row.awaiting_until <= clock.now():  # type: ignore[operator]
        raise InvalidState(row.status, needed=f"replay must await a decision on step {body.step}")
    decision = {"action": body.action, "selector": body.selector}
    row.decisions = {**row.decisions, str(body.step): decision}
    row.awaiting_step = row.awaiting_until = None
    db.add(row)
    details = {"step": body.step, "action": body.action}
    record_audit_entry(
        db, origin, "replay.decide", resource_type="replay", resource_id=row.id, details=details
    )
    return row


def lock_open_replays(db: DbSession, rows: Sequence[ReplayRow]) -> dict[str, ReplayRow]:
    """Return the current rows of replays by id, locked, without those ended, steered or removed since."""
    decisions = {row.id: row.decisions for row in rows}
    statement = select(ReplayRow).where(col(ReplayRow.id).in_(decisions)).order_by(col(ReplayRow.id))
    current = db.exec(statement.with_for_update().execution_options(populate_existing=True))
    return {row.id: row for row in current if row.finished_at is None and row.decisions == decisions[row.id]}


def end_replay_as_failed(db: DbSession, row: ReplayRow, type: str, message: str) -> None:
    """End a replay that could not run, or was ended, and forget its inputs."""
    row.error = {"type": type, "message": message}
    end_replay(db, row, "failed")


def end_replay(db: DbSession, row: ReplayRow, status: str) -> None:
    """End a replay in a status, forget its inputs, stop its recording, and queue the event."""
    set_replay_ended(row, status)
    db.add(row)
    publish_ended_replays(db, row)
    if row.result_session_id is not None:
        with suppress(NotFound):  # deleted since
            stop_session(db, row.tenant, row.result_session_id)


def set_replay_ended(row: ReplayRow, status: str) -> None:
    """Set the columns of a replay that ended in a status, and forget its inputs."""
    row.status, row.finished_at = status, clock.now()
    row.input_values = row.awaiting_step = row.awaiting_until = None


def publish_ended_replays(db: DbSession, *rows: ReplayRow) -> None:
    """Queue the events of replays that ended, and make the recoveries due whose attempts they are."""
    queue_replay_events(db, *rows)
    release_recoveries_of_attempts(db, *rows)


def release_recoveries_of_attempts(db: DbSession, *ended: ReplayRow) -> None:
    """Make the recoveries due whose attempts ended or were removed. Needs a write transaction.

    Recoveries are locked before their attempts, everywhere. One that another transaction holds is ended or
    removed by it.
    """
    causes = [row.cause for row in ended if row.cause is not None]
    if causes:
        free = select(RecoveryRow.id).where(col(RecoveryRow.id).in_(causes)).with_for_update(skip_locked=True)
        statement = update(RecoveryRow).where(col(RecoveryRow.id).in_(free)).values(attempt_is_open=False)
        db.exec(statement, execution_options={"synchronize_session": False})


def _describe_replay_place(position: ReplayPlace | None) -> dict[str, Any] | None:
    return None if position is None else position.model_dump(exclude_none=True)
