"""`/v1/replays`: replays of sealed sessions, their steps and decisions. Spec §4.6, contract §8."""

from typing import Annotated, Any

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
from recorder.models.replay import (
    Replay,
    ReplayCreate,
    ReplayDecision,
    ReplayRow,
    ReplayStatus,
    ReplayStep,
    Sandbox,
)
from recorder.models.wire import Page
from recorder.replay_service.requests import replay_and_recovery_rows, replay_wire_objects, replays
from recorder.replay_service.requests.request_checks import EarlierLookup, look_up_replay_range

router = APIRouter(prefix="/v1/replays", tags=["replays"], route_class=StrictRoute)


async def admit_replay_request(request: Request, caller: CallerDep, body: ReplayCreate) -> ReplayCreate:
    """Check the scopes and the limit of live replays for a requested replay; return the request's body.

    Raises:
        ValidationFailed, InsufficientScope: as `replays.check_replay_request`.
        RateLimited: if too many live replays were asked for.
    """
    replays.check_replay_request(caller, body)
    await limit_live_replay(request, body.sandbox)
    return body


# Routes list it before `db`: scope and limit come before idempotency and existence.
AdmittedReplay = Annotated[ReplayCreate, Depends(admit_replay_request)]


async def get_first_event(
    request: Request, admitted: AdmittedReplay, caller: CallerDep, runtime: RuntimeDep
) -> EarlierLookup[dict[str, Any]]:
    """Return the event with which the requested replay begins, looked up before the transaction."""

    if admitted.anchor is None and admitted.until is None:
        return EarlierLookup()

    def read(db: DbSession) -> EarlierLookup[dict[str, Any]]:
        return look_up_replay_range(db, runtime, caller.tenant, admitted)

    return await read_before_transaction(request, runtime.database, read, slow="tag anchor")


FirstEvent = Annotated[EarlierLookup[dict[str, Any]], Depends(get_first_event)]


@router.post("", status_code=202, responses=problem_responses(403, 404, 409))
def create_replay(
    admitted: AdmittedReplay,
    first_event: FirstEvent,
    db: Db,
    caller: CallerDep,
    origin: OriginDep,
    runtime: RuntimeDep,
) -> Replay:
    """Queue a replay of a sealed session: `dry` compares it with its snapshots, and touches nothing."""
    return replay_wire_objects.replay_to_wire(
        replays.create_replay(db, runtime, caller, admitted, first_event=first_event, origin=origin)
    )


@router.get("", response_model=Page[Replay])
def list_replays(
    pager: PagerDep,
    db: Db,
    caller: CallerDep,
    workflow: Workflows = [],  # noqa: B006
    status: ReplayStatus | None = None,
    sandbox: Sandbox | None = None,
    session_id: Annotated[str | None, Query(description="Session that is replayed.")] = None,
    cause: Annotated[str | None, Query(description="Recovery that asked for it.")] = None,
) -> Response:
    """List the replays, newest first."""
    page = replay_and_recovery_rows.list_replays_or_recoveries(
        db,
        ReplayRow,
        caller.tenant,
        filters={"status": status, "sandbox": sandbox, "session_id": session_id, "cause": cause},
        workflows=workflow,
        before_id=pager.read_cursor(str),
        limit=pager.limit,
    )
    return pager.make_answer(page.convert(replay_wire_objects.replay_to_wire))


@router.get("/{replay_id}", responses=problem_responses(404))
def get_replay(replay_id: str, db: Db, caller: CallerDep) -> Replay:
    """Return a replay, with the present labels of the memory graph that it was compared with."""
    row = replay_and_recovery_rows.find_replay_or_recovery(db, ReplayRow, caller.tenant, replay_id)
    return replay_wire_objects.read_labelled_replay(db, row)


@router.get("/{replay_id}/steps", response_model=Page[ReplayStep], responses=problem_responses(404))
def list_replay_steps(replay_id: str, pager: PagerDep, db: Db, caller: CallerDep) -> Response:
    """List the steps of a replay, in their order."""
    after = pager.read_cursor(int)
    row = replay_and_recovery_rows.find_replay_or_recovery(db, ReplayRow, caller.tenant, replay_id)
    return pager.make_answer(replays.list_stored_replay_steps(db, row, after=after, limit=pager.limit))


@router.post("/{replay_id}/cancel", responses=problem_responses(403, 404, 409))
def cancel_replay(replay_id: str, db: Db, caller: CallerDep, origin: OriginDep) -> Replay:
    """Cancel a replay: its status becomes `failed`, with the error type `cancelled`."""
    return replay_wire_objects.replay_to_wire(replays.cancel_replay(db, caller, replay_id, origin=origin))


@router.post("/{replay_id}/decision", responses=problem_responses(403, 404, 409))
def decide_replay_step(
    replay_id: str, body: ReplayDecision, db: Db, caller: CallerDep, origin: OriginDep
) -> Replay:
    """Decide on the step that a guided replay awaits; it goes on from there."""
    return replay_wire_objects.replay_to_wire(
        replays.store_replay_decision(db, caller, replay_id, body, origin=origin)
    )
