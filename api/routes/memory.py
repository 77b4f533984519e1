"""`/v1/memory/*`: common paths, outliers, similar sessions, recovery points. Spec §4.2, contract §4."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from api.deps import CallerDep, CursorText, Db, Limit, RuntimeDep, TimeRangeDep
from api.errors import problem_responses
from api.paging import Pager
from api.selection import Fraction, Selection, SelectionDep, WorkflowName
from api.strict_route import StrictRoute
from recorder import clock, limits
from recorder.errors import ValidationFailed
from recorder.memory.queries import paths as queries
from recorder.memory.queries.outliers import THRESHOLD
from recorder.models.memory import MemoryPathList
from recorder.models.memory_queries import OutlierSession, RecoveryPointList, SimilarSearch, SimilarSession
from recorder.models.wire import Page
from recorder.recording import graph_lists, recovery_points

router = APIRouter(prefix="/v1/memory", tags=["memory"], route_class=StrictRoute)


@router.get("/paths", responses=problem_responses(401, 404, 422))
def list_paths(
    db: Db,
    selection: SelectionDep,
    min_frequency: Fraction = 0.0,
    limit: Limit = limits.LIST_DEFAULT,
) -> MemoryPathList:
    """The paths that sessions of a workflow take, most frequent first."""
    paths = queries.list_paths(db, **selection.asked(), min_frequency=min_frequency, limit=limit)
    return MemoryPathList(data=paths)


@router.get("/outliers", responses=problem_responses(400, 401, 404, 422))
def list_outliers(
    request: Request,
    db: Db,
    caller: CallerDep,
    selection: SelectionDep,
    threshold: Fraction = THRESHOLD,
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> Page[OutlierSession]:
    """Sessions whose path fewer than `threshold` of all take, the least typical first."""
    pager = Pager(request, caller)
    position = _position(selection, pager.read(cursor))
    page = graph_lists.list_outliers(
        db, **{**selection.asked(), **position}, threshold=threshold, limit=limit
    )
    times = [position["since"], position["until"]]
    following = [page.graph_version, *(moment and clock.to_ms(moment) for moment in times), page.next_offset]
    return pager.page(page.sessions, None if page.next_offset is None else following)


@router.post("/similar", responses=problem_responses(401, 404, 409, 422))
def list_similar(body: SimilarSearch, db: Db, caller: CallerDep) -> Page[SimilarSession]:
    """The sessions whose way through the graph is most like a session's, which itself is left out."""
    found = graph_lists.list_similar(
        db,
        tenant=caller.tenant,
        session_id=body.session_id,
        limit=body.limit,
    )
    return Page(data=found, next_cursor=None, has_more=False)


async def get_failure_tag(
    failure_tag: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=limits.TAG_NAME_CHARACTERS,
            description="By default each of the workflow's error tags.",
        ),
    ] = None,
) -> str | None:
    """The tag that says where sessions failed.

    Raises:
        ValidationFailed: if no tag can have this name.
    """
    if failure_tag is not None and not failure_tag.isprintable():
        text = "failure_tag takes printable characters."
        raise ValidationFailed.of("failure_tag", "invalid_string", message=text, where="query")
    return failure_tag


@router.get("/recovery_points", responses=problem_responses(401, 404, 422))
def list_recovery_points(
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    times: TimeRangeDep,
    workflow: WorkflowName,
    failure_tag: Annotated[str | None, Depends(get_failure_tag)],
    limit: Limit = limits.LIST_DEFAULT,
) -> RecoveryPointList:
    """Where sessions that failed came back to success, the most frequent place first."""
    points = recovery_points.list_recovery_points(
        db,
        runtime.lake,
        tenant=caller.tenant,
        workflow=workflow,
        failure_tag=failure_tag,
        since=times.since,
        until=times.until,
        limit=limit,
    )
    return RecoveryPointList(data=points)


def _position(selection: Selection, position: list[Any] | None) -> dict[str, Any]:
    """Where a page begins; relative times keep the instant that the first page resolved them to."""
    if position is None:
        times = selection.times
        return {"version": None, "since": times.since, "until": times.until, "offset": 0}
    version, since, until, offset = position
    return {
        "version": version,
        "since": None if since is None else clock.from_ms(since),
        "until": None if until is None else clock.from_ms(until),
        "offset": offset,
    }
