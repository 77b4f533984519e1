"""`/v1/sessions`: create, list, read, start, stop, delete. Spec §4.1, contract §2."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from api.bodies.masking import MaskedSession
from api.dependencies import CallerDep, CursorText, Db, Limit, OriginDep, Pager, RuntimeDep, TimeRangeDep
from api.errors import problem_responses
from api.strict_routes import StrictRoute
from recorder import clock, limits
from recorder.errors import ValidationFailed
from recorder.models.session import (
    BatchStop,
    BatchStopResult,
    Session,
    SessionDetail,
    SessionStatus,
)
from recorder.models.wire import ActorKind, Outcome, Page
from recorder.recording import item_reads, session_list, sessions

router = APIRouter(prefix="/v1", tags=["sessions"], route_class=StrictRoute)

_INCLUDES = frozenset({"events", "tags", "frames_summary"})
_Workflow = Annotated[str, Query(pattern=limits.WORKFLOW_PATTERN)]


async def get_session_filter(
    times: TimeRangeDep,
    workflow: Annotated[list[_Workflow], Query(description="Repeat it for several.")] = [],  # noqa: B006
    status: SessionStatus | None = None,
    outcome: Outcome | None = None,
    actor_kind: Annotated[ActorKind | None, Query(alias="actor.kind")] = None,
    tag: Annotated[str | None, Query(min_length=1, max_length=limits.TAG_NAME_CHARACTERS)] = None,
    path: Annotated[str | None, Query(description="Id of a path of the memory graph.")] = None,
) -> session_list.SessionFilter:
    """The filters that a query names."""
    if tag is not None and not tag.isprintable():
        raise ValidationFailed.of(
            "tag", "invalid_string", message="tag takes printable characters.", where="query"
        )
    return session_list.SessionFilter(
        workflow=tuple(workflow),
        status=status,
        outcome=outcome,
        actor_kind=actor_kind,
        tag=tag,
        since=times.since,
        until=times.until,
        path=path,
    )


async def get_include(
    include: Annotated[str | None, Query(description="Of `events,tags,frames_summary`.")] = None,
) -> frozenset[str]:
    """The members that `include=` names.

    Raises:
        ValidationFailed: if one of them is unknown.
    """
    names = frozenset(include.split(",")) if include is not None else frozenset()
    if not names <= _INCLUDES:
        text = "include takes a comma-separated list of events, tags, frames_summary."
        raise ValidationFailed.of("include", "invalid_value", message=text, where="query")
    return names


@router.post("/sessions", status_code=201, responses=problem_responses(401, 422, 503))
def create_session(masked: MaskedSession, db: Db, caller: CallerDep) -> Session:
    """Create a session; with `start` it records at once."""
    return sessions.create_session(db, caller.tenant, masked.body, masked.changes)


@router.get("/sessions", responses=problem_responses(400, 401, 404, 422))
def list_sessions(
    request: Request,
    db: Db,
    caller: CallerDep,
    filters: Annotated[session_list.SessionFilter, Depends(get_session_filter)],
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> Page[Session]:
    """Sessions, newest first."""
    pager = Pager(request, caller)
    start = _ListPosition.of(pager.read(cursor), filters)
    page, has_more = session_list.list_sessions(
        db, caller.tenant, start.filters, before_id=start.before_id, limit=limit
    )
    return pager.page(page, start.behind(page[-1].id) if has_more else None)


@router.get(
    "/sessions/{session_id}", response_model_exclude_unset=True, responses=problem_responses(401, 404, 422)
)
def get_session(
    session_id: str,
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    include: Annotated[frozenset[str], Depends(get_include)],
) -> SessionDetail:
    """One session, with the related data that `include` names."""
    row = sessions.find_session(db, caller.tenant, session_id)
    return item_reads.describe_session(db, runtime.lake, row, include)


@router.post("/sessions/{session_id}/start", responses=problem_responses(401, 404, 409))
def start_session(session_id: str, db: Db, caller: CallerDep) -> Session:
    """Start recording; a recording session stays as it is."""
    return sessions.start_session(db, caller.tenant, session_id)


def _search_one(session_id: str, runtime: RuntimeDep, caller: CallerDep) -> sessions.Searches:
    return sessions.search_before_stop(runtime.database, caller.tenant, [session_id])


def _search_all(
    body: BatchStop, runtime: RuntimeDep, caller: CallerDep
) -> tuple[BatchStop, sessions.Searches]:
    ids = body.ids[: limits.BATCH_STOP_IDS]
    return body, sessions.search_before_stop(runtime.database, caller.tenant, ids)


# They run before the request's transaction begins, since they come before `db` in a route's parameters. Only
# one dependency of a route takes the body: each that does reports what is wrong with it.
_OneSearched = Annotated[sessions.Searches, Depends(_search_one)]
_AllSearched = Annotated[tuple[BatchStop, sessions.Searches], Depends(_search_all)]


@router.post("/sessions/{session_id}/stop", responses=problem_responses(401, 404, 409))
def stop_session(session_id: str, searches: _OneSearched, db: Db, caller: CallerDep) -> Session:
    """Stop recording; a stopped or sealed session stays as it is."""
    return sessions.stop_session(db, caller.tenant, session_id, searches)


@router.post("/sessions:batch_stop", response_model_exclude_unset=True, responses=problem_responses(401, 422))
def batch_stop(searched: _AllSearched, db: Db, caller: CallerDep) -> BatchStopResult:
    """Stop up to 500 sessions; each answers for itself."""
    body, searches = searched
    return sessions.batch_stop(db, caller.tenant, body.ids, searches)


@router.delete("/sessions/{session_id}", status_code=204, responses=problem_responses(401, 404, 422))
def delete_session(
    session_id: str,
    db: Db,
    caller: CallerDep,
    origin: OriginDep,
    hard: Literal["true", "false"] = "false",
) -> Response:
    """Soft-delete: gone from every read at once, purged after 30 days."""
    sessions.delete_session(db, origin, caller, session_id, hard=hard == "true")
    return Response(status_code=204)


@dataclass(frozen=True)
class _ListPosition:
    """Where a page begins; relative times keep the instant that the first page resolved them to."""

    before_id: str | None
    filters: session_list.SessionFilter

    @classmethod
    def of(cls, position: list[object] | None, filters: session_list.SessionFilter) -> "_ListPosition":
        if position is None:
            return cls(None, filters)
        before_id, since, until = position
        times = {
            "since": clock.from_ms(since) if isinstance(since, int) else None,
            "until": clock.from_ms(until) if isinstance(until, int) else None,
        }
        return cls(str(before_id), session_list.SessionFilter(**{**vars(filters), **times}))

    def behind(self, last_id: str) -> list[object]:
        since, until = self.filters.since, self.filters.until
        return [last_id, since and clock.to_ms(since), until and clock.to_ms(until)]
