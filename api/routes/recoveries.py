"""`/v1/recoveries`: recoveries of failed sessions from the best nodes passed. Spec §4.6, contract §8."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlmodel import Session as DbSession

from api.dependencies import (
    CallerDep,
    Db,
    OriginDep,
    PagerDep,
    RuntimeDep,
    Workflows,
    read_before_transaction,
)
from api.errors import problem_responses
from api.gate.route_limits import limit_live_replay
from api.strict_routes import StrictRoute
from recorder.models.recovery import Recovery, RecoveryCreate, RecoveryRow, RecoveryStatus
from recorder.models.replay import Sandbox
from recorder.models.wire import Page
from recorder.replay_service.requests import recoveries, replay_and_recovery_rows
from recorder.replay_service.requests.request_checks import (
    EarlierLookup,
    check_replay_settings,
    look_up_recovery_point,
)

router = APIRouter(prefix="/v1/recoveries", tags=["recoveries"], route_class=StrictRoute)


async def get_admitted_recovery(request: Request, caller: CallerDep, body: RecoveryCreate) -> RecoveryCreate:
    """Return the body of a request that its key may send, after drawing on the limit of live replays.

    Raises:
        ValidationFailed, InsufficientScope: as `check_replay_settings`.
        RateLimited: if too many live replays were asked for.
    """
    check_replay_settings(caller, body.sandbox, body.policy, body.inputs)
    await limit_live_replay(request, body.sandbox)
    return body


# The route lists it before `db`: scope and limit come before idempotency and existence.
AdmittedRecovery = Annotated[RecoveryCreate, Depends(get_admitted_recovery)]


async def get_point_time(
    request: Request, admitted: AdmittedRecovery, caller: CallerDep, runtime: RuntimeDep
) -> EarlierLookup[int]:
    """Return the time of the recovery point that the request names, looked up before the transaction."""

    if admitted.recovery_point is None:
        return EarlierLookup()

    def read(db: DbSession) -> EarlierLookup[int]:
        return look_up_recovery_point(db, runtime, caller.tenant, admitted)

    return await read_before_transaction(request, runtime.database, read, slow="tag anchor")


RecoveryPointTime = Annotated[EarlierLookup[int], Depends(get_point_time)]


@router.post("", status_code=202, responses=problem_responses(403, 404, 409))
def create_recovery(
    admitted: AdmittedRecovery,
    point_time: RecoveryPointTime,
    db: Db,
    caller: CallerDep,
    origin: OriginDep,
    runtime: RuntimeDep,
) -> Recovery:
    """Recover a failed session: try the way to success from the best nodes that it passed."""
    return recoveries.recovery_to_wire(
        recoveries.create_recovery(db, runtime, caller, admitted, point_time=point_time, origin=origin)
    )


@router.get("", response_model=Page[Recovery])
def list_recoveries(
    pager: PagerDep,
    db: Db,
    caller: CallerDep,
    workflow: Workflows = [],  # noqa: B006
    status: RecoveryStatus | None = None,
    sandbox: Sandbox | None = None,
    session_id: Annotated[str | None, Query(description="Session that failed.")] = None,
) -> Response:
    """List the recoveries, newest first."""
    page = replay_and_recovery_rows.list_replays_or_recoveries(
        db,
        RecoveryRow,
        caller.tenant,
        filters={"status": status, "sandbox": sandbox, "session_id": session_id},
        workflows=workflow,
        before_id=pager.read_cursor(str),
        limit=pager.limit,
    )
    return pager.make_answer(page.convert(recoveries.recovery_to_wire))


@router.get("/{recovery_id}", responses=problem_responses(404))
def get_recovery(recovery_id: str, db: Db, caller: CallerDep) -> Recovery:
    """Return a recovery with its candidates."""
    return recoveries.recovery_to_wire(
        replay_and_recovery_rows.find_replay_or_recovery(db, RecoveryRow, caller.tenant, recovery_id)
    )


@router.post("/{recovery_id}/cancel", responses=problem_responses(403, 404, 409))
def cancel_recovery(recovery_id: str, db: Db, caller: CallerDep, origin: OriginDep) -> Recovery:
    """Cancel a recovery and its attempt: its status becomes `failed`, its reason `cancelled`."""
    return recoveries.recovery_to_wire(recoveries.cancel_recovery(db, caller, recovery_id, origin=origin))
