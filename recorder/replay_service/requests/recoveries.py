"""Recoveries: create, cancel and end them; the row is the queue. Spec §4.6, contract §8."""

from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.access.keys import Caller
from recorder.audit.log import Origin
from recorder.errors import InvalidState, ValidationFailed
from recorder.ids import new_timed_id
from recorder.models.recovery import Recovery, RecoveryCreate, RecoveryReason, RecoveryRow
from recorder.models.replay import ReplayPolicyBody, ReplayRow
from recorder.replay_service.recordings.failed_sessions import find_session_failure
from recorder.replay_service.requests.encrypted_inputs import encrypt_inputs
from recorder.replay_service.requests.replay_and_recovery_rows import (
    check_open_row_limit,
    find_replay_or_recovery,
    record_live_change,
)
from recorder.replay_service.requests.replay_wire_objects import make_wire_policy
from recorder.replay_service.requests.replays import end_replay_as_failed
from recorder.replay_service.requests.request_checks import (
    EarlierLookup,
    check_requested_hosts,
    require_replay_scope,
    require_sealed_replay_session,
)
from recorder.request_context import continue_request_context, current_request_id
from recorder.runtime import Runtime
from recorder.webhooks.outbox import add_outbox_event

_COLUMNS = set(Recovery.model_fields) - {"candidates", "inputs", "policy"}


def create_recovery(
    db: DbSession,
    runtime: Runtime,
    caller: Caller,
    body: RecoveryCreate,
    *,
    point_time: EarlierLookup[int],
    origin: Origin,
) -> RecoveryRow:
    """Queue the recovery of a failed session.

    Args:
        db: a write transaction.
        runtime: the deployment.
        caller: the caller.
        body: the request.
        point_time: result of `look_up_recovery_point`.
        origin: origin of the request, for the audit log.

    Raises:
        NotFound: if a session, the failure tag, or the recovery point is unknown.
        SessionNotSealed: if a session is not sealed.
        ValidationFailed: if the session did not fail, or the recovery point is of another workflow.
        UrlNotAllowed: if live replays may reach no host, or the policy names one that they may not reach.
        LimitReached: if too many recoveries of the workspace have not ended.
    """
    tenant = caller.tenant
    session = require_sealed_replay_session(db, tenant, body.session_id)
    failure = find_session_failure(db, session, body.failure_tag, pointer="/session_id")
    check_requested_hosts(db, tenant, body)
    point_t_ms = None
    if body.recovery_point is not None:
        other = require_sealed_replay_session(db, tenant, body.recovery_point.session_id)
        if other.workflow != session.workflow:
            text = "The recovery point must be in a session of the same workflow as the failed one."
            raise ValidationFailed.of("/recovery_point/session_id", "invalid_value", message=text)
        point_t_ms = point_time.require()
    check_open_row_limit(db, RecoveryRow, tenant)
    recovery_id, now = new_timed_id("rcv")
    inputs = body.inputs if body.sandbox == "live" else {}  # a dry one types nothing
    row = RecoveryRow(
        id=recovery_id,
        workspace_id=tenant.workspace_id,
        mode=tenant.mode,
        workflow=session.workflow,
        session_id=session.id,
        failure_tag=failure.tag,
        failed_at_ms=failure.t_ms,
        sandbox=body.sandbox,
        status="started",
        point_session_id=None if body.recovery_point is None else body.recovery_point.session_id,
        point_t_ms=point_t_ms,
        replay_ids=[],
        input_names=sorted(body.inputs),
        input_values=encrypt_inputs(runtime.settings.secret, recovery_id, inputs),
        policy=body.policy.model_dump(mode="json"),
        request_id=current_request_id(),
        created_at=now,
    )
    db.add(row)
    _emit_recovery_event(db, row)
    record_live_change(db, origin, "recovery.create", row, details={"session_id": row.session_id})
    return row


def cancel_recovery(db: DbSession, caller: Caller, recovery_id: str, *, origin: Origin) -> RecoveryRow:
    """End a recovery as failed, for the reason `cancelled`, with its attempt. Needs a write transaction.

    Raises:
        NotFound, InsufficientScope: if there is no such recovery, or the key may not cancel it.
        InvalidState: if it has ended.
    """
    row = find_replay_or_recovery(db, RecoveryRow, caller.tenant, recovery_id, lock=True)
    require_replay_scope(caller, row.sandbox)
    if row.finished_at is not None:
        raise InvalidState(row.status, needed="recovery must be started")
    attempts = select(ReplayRow).where(ReplayRow.cause == row.id, col(ReplayRow.finished_at).is_(None))
    for attempt in db.exec(attempts.order_by(col(ReplayRow.id)).with_for_update()):
        end_replay_as_failed(db, attempt, "cancelled", "A client cancelled the recovery.")
    end_recovery(db, row, reason="cancelled")
    record_live_change(db, origin, "recovery.cancel", row)
    return row


def end_recovery(db: DbSession, row: RecoveryRow, *, reason: RecoveryReason | None = None) -> None:
    """End a recovery, failed for a reason or else succeeded, forget its inputs, and queue the event."""
    row.status, row.reason = "succeeded" if reason is None else "failed", reason
    row.input_values = None
    row.finished_at = clock.now()
    if reason is None:
        row.recovery_ms = clock.to_ms(row.finished_at) - clock.to_ms(row.created_at)
    # The attempts show their sessions; here the ids of other sessions would outlive them.
    row.candidates = _list_recovery_wire_candidates(row)
    db.add(row)
    _emit_recovery_event(db, row)


def recovery_to_wire(row: RecoveryRow) -> Recovery:
    """Return the recovery object."""
    policy = row.policy or ReplayPolicyBody().model_dump(mode="json")
    named = {
        "candidates": _list_recovery_wire_candidates(row),
        "inputs": row.input_names or [],
        "policy": make_wire_policy(policy, row.sandbox),
    }
    return Recovery.model_validate({**row.model_dump(include=_COLUMNS), **named})


def _list_recovery_wire_candidates(row: RecoveryRow) -> list[dict[str, Any]]:
    """Return the candidates of a recovery as clients see them."""
    return [
        {name: value for name, value in candidate.items() if name != "donor"}
        for candidate in row.candidates or ()
    ]


def _emit_recovery_event(db: DbSession, row: RecoveryRow) -> None:
    """Queue the event of the status that a recovery has just taken, with the whole object."""
    with continue_request_context(row.request_id):
        add_outbox_event(
            db,
            tenant=row.tenant,
            type=f"recovery.{row.status}",
            subject_id=row.id,
            data={"recovery": recovery_to_wire(row).model_dump(mode="json")},
        )


def lock_open_recovery(db: DbSession, row: RecoveryRow) -> RecoveryRow | None:
    """Return the current row of a recovery, locked; None if it was ended or removed since."""
    statement = select(RecoveryRow).where(RecoveryRow.id == row.id).with_for_update()
    current = db.exec(statement.execution_options(populate_existing=True)).one_or_none()
    return None if current is None or current.finished_at is not None else current
