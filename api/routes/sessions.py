"""`/v1/sessions` and `/v1/sessions/{id}/tags`. Spec §2.2, §4.1; contract §2."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlmodel import Session as DbSession

from api.bodies.body_masking import MaskedBody, MaskedSession, MaskedTag
from api.dependencies import (
    CallerDep,
    Db,
    ListTimeRangeDep,
    OriginDep,
    PagerDep,
    RuntimeDep,
    Workflows,
    open_earlier_transaction,
    read_before_transaction,
    run_in_database_slot,
    run_slow_work,
)
from api.errors import problem_responses
from api.gate.idempotency import IdempotentRequest
from api.strict_routes import StrictRoute, check_tag_parameter
from recorder import limits
from recorder.access.concurrency import ConcurrencyLimiter
from recorder.access.keys import Caller
from recorder.errors import NotFound, ValidationFailed
from recorder.governance import session_deletion
from recorder.models.session import (
    BatchStop,
    BatchStopResult,
    Session,
    SessionDetail,
    SessionStatus,
    Tag,
    TagCreate,
)
from recorder.models.wire import ActorKind, Outcome, Page
from recorder.recording import item_reads, session_list, session_stops, sessions, tags
from recorder.recording.batch_stops import SessionBatchStop, check_number_of_stops
from recorder.recording.item_reads import find_anchor_time
from recorder.runtime import Runtime

router = APIRouter(prefix="/v1", tags=["sessions"], route_class=StrictRoute)
tag_router = APIRouter(prefix="/v1/sessions/{session_id}/tags", tags=["tags"], route_class=StrictRoute)

_INCLUDES = frozenset({"events", "tags", "frames_summary"})


async def get_session_filter(
    times: ListTimeRangeDep,
    workflow: Workflows = [],  # noqa: B006
    status: SessionStatus | None = None,
    outcome: Outcome | None = None,
    actor_kind: Annotated[ActorKind | None, Query(alias="actor.kind")] = None,
    tag: Annotated[str | None, Query(min_length=1, max_length=limits.TAG_NAME_CHARACTERS)] = None,
    path: Annotated[str | None, Query(description="Id of the path that sessions are counted on.")] = None,
    subpath: Annotated[
        str | None, Query(description="Id of a path whose nodes sessions took one directly after another.")
    ] = None,
) -> session_list.SessionFilter:
    """Return the filters that a query names.

    Raises:
        ValidationFailed: if no tag can have this name.
    """
    check_tag_parameter(tag)
    return session_list.SessionFilter(
        workflow=tuple(workflow),
        status=status,
        outcome=outcome,
        actor_kind=actor_kind,
        tag=tag,
        since=times.since,
        until=times.until,
        path=path,
        subpath=subpath,
    )


async def parse_session_include(
    include: Annotated[str | None, Query(description="Of `events,tags,frames_summary`.")] = None,
) -> frozenset[str]:
    """Return the members that `include=` names.

    Raises:
        ValidationFailed: if one of them is unknown.
    """
    names = frozenset(include.split(",")) if include is not None else frozenset()
    if not names <= _INCLUDES:
        text = "include takes a comma-separated list of events, tags, frames_summary."
        raise ValidationFailed.of("include", "invalid_value", message=text, where="query")
    return names


@router.post("/sessions", status_code=201)
def create_session(masked: MaskedSession, db: Db, caller: CallerDep) -> Session:
    """Create a session; with `start` it begins to record at once."""
    return sessions.create_session(db, caller.tenant, masked.body, masked.changes)


@router.get("/sessions", response_model=Page[Session], responses=problem_responses(404))
def list_sessions(
    pager: PagerDep,
    db: Db,
    caller: CallerDep,
    filters: Annotated[session_list.SessionFilter, Depends(get_session_filter)],
) -> Response:
    """List the sessions, newest first."""
    before_id = pager.read_cursor(str)
    return pager.make_answer(
        session_list.list_sessions(db, caller.tenant, filters, before_id=before_id, limit=pager.limit)
    )


@router.get("/sessions/{session_id}", response_model_exclude_unset=True, responses=problem_responses(404))
def get_session(
    session_id: str,
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    include: Annotated[frozenset[str], Depends(parse_session_include)],
) -> SessionDetail:
    """Return a session, with the related data that `include` names."""
    row = sessions.find_session(db, caller.tenant, session_id)
    return item_reads.describe_session(db, runtime.lake, row, include)


@router.post("/sessions/{session_id}/start", responses=problem_responses(404, 409))
def start_session(session_id: str, db: Db, caller: CallerDep) -> Session:
    """Start recording; a session that records already stays as it is."""
    return sessions.start_session(db, caller.tenant, session_id)


async def _search_session_for_stop_route(
    session_id: str, request: Request, runtime: RuntimeDep, caller: CallerDep
) -> session_stops.SessionsBeforeStop:
    return await _search_marks_for_session_route(request, runtime, caller, [session_id])


async def _search_marks_for_session_route(
    request: Request, runtime: Runtime, caller: Caller, ids: list[str]
) -> session_stops.SessionsBeforeStop:
    """Search the events of sessions before the transaction that stops them; many take slots of their own."""

    def read(db: DbSession) -> session_stops.SessionsBeforeStop:
        before = session_stops.SessionsBeforeStop(db, caller.tenant, ids)
        if not before.is_large:
            before.search(db)
        return before

    before = await read_before_transaction(request, runtime.database, read)
    if before.is_large:
        large_searches: ConcurrencyLimiter = request.app.state.large_searches
        search = partial(before.search_one_by_one, runtime.database)
        with large_searches.acquire(caller.key_id, caller.workspace_id):
            await run_slow_work(request, "stop search", search, workspace_id=caller.workspace_id)
    return before


async def _begin_batch_for_stop_route(
    body: BatchStop, request: Request, runtime: RuntimeDep, caller: CallerDep
) -> SessionBatchStop:
    """Stop sessions in transactions of a few each, all but those for the request's own transaction."""
    check_number_of_stops(body.ids)
    before = await _search_marks_for_session_route(request, runtime, caller, body.ids)
    batch = SessionBatchStop(caller.tenant, body.ids, before)

    def stop_part() -> None:
        with open_earlier_transaction(request, runtime.database, write=True) as db:
            batch.stop_part(db)

    keyed: IdempotentRequest | None = request.state.keyed
    with nullcontext() if keyed is None else keyed.running.hold_key(keyed.key):
        while not batch.is_last_part:
            await run_in_database_slot(request, stop_part)
    return batch


# The searches run before the transaction begins, since they precede `db` in a route's parameters.
_SearchedSession = Annotated[session_stops.SessionsBeforeStop, Depends(_search_session_for_stop_route)]
_BegunBatch = Annotated[SessionBatchStop, Depends(_begin_batch_for_stop_route)]


@router.post("/sessions/{session_id}/stop", responses=problem_responses(404, 409))
def stop_session(session_id: str, before: _SearchedSession, db: Db, caller: CallerDep) -> Session:
    """Stop recording; a stopped or sealed session stays as it is."""
    return session_stops.stop_session(db, caller.tenant, session_id, before.searches)


@router.post("/sessions:batch_stop", response_model_exclude_unset=True)
def batch_stop(batch: _BegunBatch, db: Db) -> BatchStopResult:
    """Stop up to 500 sessions; the answer has a result for each."""
    batch.stop_part(db)
    return batch.make_result()


@router.delete("/sessions/{session_id}", status_code=204, responses=problem_responses(404, 409))
async def delete_session(
    session_id: str,
    request: Request,
    runtime: RuntimeDep,
    caller: CallerDep,
    origin: OriginDep,
    hard: Annotated[
        Literal["true", "false"], Query(description="Delete it for good at once; needs an admin key.")
    ] = "false",
) -> Response:
    """Delete a session: hidden from every read at once, purged after 30 days, or now with `hard`."""
    if hard == "true":
        delete = partial(session_deletion.delete_session_for_good, runtime, origin, caller, session_id)
        await run_slow_work(request, "hard delete", delete, workspace_id=caller.workspace_id)
    else:
        hide = partial(session_deletion.delete_session_softly, runtime, origin, caller.tenant, session_id)
        await run_in_database_slot(request, hide)
    return Response(status_code=204)


@dataclass(frozen=True)
class AnchoredTag:
    """A tag, and the time of the event or frame that it names, or the error that this item is missing."""

    masked: MaskedBody[TagCreate]
    anchor: int | ValidationFailed | None


async def get_anchored_tag(
    session_id: str, request: Request, masked: MaskedTag, caller: CallerDep, runtime: RuntimeDep
) -> AnchoredTag:
    """Return the tag of a body with its time.

    The time is read before the transaction that writes, which must not wait. Stored items never change.
    """
    body = masked.body
    if body.event_id is None and body.frame_id is None:
        return AnchoredTag(masked, None)

    def find() -> int | ValidationFailed | None:
        return _find_anchor_for_tag_route(session_id, request, body, caller, runtime)

    anchor = await run_slow_work(request, "tag anchor", find, workspace_id=caller.workspace_id)
    return AnchoredTag(masked, anchor)


def _find_anchor_for_tag_route(
    session_id: str, request: Request, body: TagCreate, caller: Caller, runtime: Runtime
) -> int | ValidationFailed | None:
    try:
        with open_earlier_transaction(request, runtime.database) as db:
            row = sessions.find_session(db, caller.tenant, session_id)
            return find_anchor_time(db, runtime.lake, row, body)
    except ValidationFailed as error:
        return error  # raised after the transaction's own refusals: a missing session, its state
    except NotFound:
        return None  # the transaction raises the same, and keeps the answer


Anchored = Annotated[AnchoredTag, Depends(get_anchored_tag)]


@tag_router.post("", status_code=201, responses=problem_responses(404, 409))
def add_tag(session_id: str, tag: Anchored, db: Db, caller: CallerDep) -> Tag:
    """Tag a session while it records or later; a late tag updates the outcome."""
    masked = tag.masked
    return tags.add_tag(db, caller.tenant, session_id, masked.body, masked.changes, tag.anchor)


@tag_router.get("", response_model=Page[Tag], responses=problem_responses(404))
def list_tags(session_id: str, pager: PagerDep, db: Db, caller: CallerDep) -> Response:
    """List the tags of a session by `(t_ms, id)`."""
    after = pager.read_cursor(tuple[int, str])
    row = sessions.find_session(db, caller.tenant, session_id)
    return pager.make_answer(tags.list_tags(db, row.id, after=after, limit=pager.limit))
