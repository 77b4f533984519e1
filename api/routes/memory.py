"""`/v1/memory`: graph, paths, outliers, similar sessions, recovery points, diff. Spec §4.2; contract §4."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from api.dependencies import (
    CallerDep,
    Db,
    Limit,
    ListTimeRangeDep,
    OtherTimeRangeDep,
    PagerDep,
    RuntimeDep,
    TimeRange,
    TimeRangeDep,
)
from api.errors import problem_responses
from api.strict_routes import StrictRoute
from recorder import limits
from recorder.errors import ValidationFailed
from recorder.memory.queries import common_paths as queries
from recorder.memory.queries.comparison import MIN_CHANGE, SessionSelection
from recorder.memory.queries.outliers import THRESHOLD, Rank
from recorder.memory.views.formats import GraphFormat
from recorder.memory_service import graph_requests, recovery_points, session_rankings
from recorder.models.memory import (
    MemoryComparison,
    MemoryPathList,
    OutlierSession,
    RecoveryPointList,
    SimilarSearch,
    SimilarSession,
)
from recorder.models.wire import ActorKind, Outcome, Page
from recorder.tenant import Tenant

WorkflowName = Annotated[str, Query(pattern=limits.WORKFLOW_PATTERN)]
Fraction = Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)]


@dataclass(frozen=True)
class MemorySelection:
    """Selected sessions: a workflow of the caller, and the filters that all queries of its graph take."""

    tenant: Tenant
    workflow: str
    times: TimeRange
    outcome: Outcome | None
    actor_kind: ActorKind | None

    def as_arguments(self) -> dict[str, Any]:
        """Return the arguments of a query of the graph."""
        return {
            "tenant": self.tenant,
            "workflow": self.workflow,
            "since": self.times.since,
            "until": self.times.until,
            "outcome": self.outcome,
            "actor_kind": self.actor_kind,
        }


async def get_memory_selection(
    caller: CallerDep,
    times: TimeRangeDep,
    workflow: WorkflowName,
    outcome: Outcome | None = None,
    actor_kind: Annotated[ActorKind | None, Query(alias="actor.kind")] = None,
) -> MemorySelection:
    """Return the selection that a query names."""
    return MemorySelection(caller.tenant, workflow, times, outcome, actor_kind)


async def get_memory_list_selection(
    caller: CallerDep,
    times: ListTimeRangeDep,
    workflow: WorkflowName,
    outcome: Outcome | None = None,
    actor_kind: Annotated[ActorKind | None, Query(alias="actor.kind")] = None,
) -> MemorySelection:
    """Return the selection of a list request, whose relative times mean the same on every page."""
    return MemorySelection(caller.tenant, workflow, times, outcome, actor_kind)


SelectionDep = Annotated[MemorySelection, Depends(get_memory_selection)]
ListSelectionDep = Annotated[MemorySelection, Depends(get_memory_list_selection)]


router = APIRouter(prefix="/v1/memory", tags=["memory"], route_class=StrictRoute)


@router.get("/paths", responses=problem_responses(404))
def list_paths(
    db: Db,
    selection: SelectionDep,
    min_frequency: Fraction = 0.0,
    limit: Limit = limits.LIST_DEFAULT,
) -> MemoryPathList:
    """List the paths that sessions of a workflow take, most frequent first."""
    paths = queries.list_paths(db, **selection.as_arguments(), min_frequency=min_frequency, limit=limit)
    return MemoryPathList(data=paths)


@router.get("/outliers", response_model=Page[OutlierSession], responses=problem_responses(404))
def list_outliers(
    pager: PagerDep,
    db: Db,
    selection: ListSelectionDep,
    request: Request,
    rank: Rank = "path",
    threshold: Fraction = THRESHOLD,
) -> Response:
    """List outliers, the least typical first.

    With `rank=path` these are the sessions whose path has a share below `threshold`, with `rank=typicality`
    all sessions.
    """
    if rank == "typicality" and "threshold" in request.query_params:
        text = "It selects sessions by their path; leave it out with `rank=typicality`."
        raise ValidationFailed.of("threshold", "invalid_value", message=text, where="query")
    return pager.make_answer(
        session_rankings.rank_outliers(
            db,
            **selection.as_arguments(),
            rank=rank,
            threshold=threshold,
            after=pager.read_cursor(tuple[int, int]),
            limit=pager.limit,
        )
    )


@router.post("/similar", responses=problem_responses(404, 409))
def list_similar(body: SimilarSearch, db: Db, caller: CallerDep) -> Page[SimilarSession]:
    """List the other sessions whose way through the graph is most similar to that of a session."""
    similar = session_rankings.rank_similar_sessions(
        db, tenant=caller.tenant, session_id=body.session_id, limit=body.limit
    )
    return Page(data=similar, next_cursor=None, has_more=False)


async def get_memory_failure_tag(
    failure_tag: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=limits.TAG_NAME_CHARACTERS,
            description="By default each of the workflow's error tags.",
        ),
    ] = None,
) -> str | None:
    """Return the name of the tag that marks failures.

    Raises:
        ValidationFailed: if no tag can have this name.
    """
    if failure_tag is not None and not failure_tag.isprintable():
        text = "failure_tag takes printable characters."
        raise ValidationFailed.of("failure_tag", "invalid_string", message=text, where="query")
    return failure_tag


@router.get("/recovery_points", responses=problem_responses(404))
def list_recovery_points(
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    times: TimeRangeDep,
    workflow: WorkflowName,
    failure_tag: Annotated[str | None, Depends(get_memory_failure_tag)],
    limit: Limit = limits.LIST_DEFAULT,
) -> RecoveryPointList:
    """List the nodes at which failed sessions returned to success, the most frequent first."""
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


_NO_TIMES = TimeRange(None, None)
_TYPES = (
    "application/json",
    "application/graphml+xml",
    "text/vnd.mermaid",
    "text/vnd.graphviz",
    "image/svg+xml",
)
_GRAPH: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The graph in the requested format.",
        "content": {media_type: {} for media_type in _TYPES},
    },
    **problem_responses(404),
}


@router.get("/graph", responses=_GRAPH, response_class=Response)
def get_graph(
    db: Db, selection: SelectionDep, format: GraphFormat = "json", min_frequency: Fraction = 0.0
) -> Response:
    """Return nodes and edges of a workflow's sessions, as data or as a drawing."""
    content, media_type = graph_requests.render_graph(
        db, **selection.as_arguments(), format=format, min_frequency=min_frequency
    )
    return Response(content, media_type=media_type)


async def get_memory_diff_sides(
    selection: SelectionDep,
    other_times: OtherTimeRangeDep,
    other_actor_kind: Annotated[ActorKind | None, Query(alias="against_actor.kind")] = None,
) -> tuple[SessionSelection, SessionSelection]:
    """Return the two sides of a comparison; the second has the filters of the first by default.

    Raises:
        ValidationFailed: if no parameter names the second side.
    """
    times = selection.times
    if other_times != _NO_TIMES:
        times = other_times
    elif other_actor_kind is None:
        text = "Name the other side: against_since and against_until, or against_actor.kind."
        raise ValidationFailed.of("against_since", "missing", message=text, where="query")
    return (
        SessionSelection(selection.times.since, selection.times.until, selection.actor_kind),
        SessionSelection(times.since, times.until, other_actor_kind or selection.actor_kind),
    )


@router.get("/diff", responses=problem_responses(404))
def compare_sessions(
    db: Db,
    selection: SelectionDep,
    sides: Annotated[tuple[SessionSelection, SessionSelection], Depends(get_memory_diff_sides)],
    min_change: Fraction = MIN_CHANGE,
    limit: Limit = limits.LIST_DEFAULT,
) -> MemoryComparison:
    """Compare two periods or kinds of actors: new, missing and changed paths, nodes and edges."""
    selected, against = sides
    return graph_requests.read_graph_view_comparison(
        db,
        tenant=selection.tenant,
        workflow=selection.workflow,
        selected=selected,
        against=against,
        outcome=selection.outcome,
        min_change=min_change,
        limit=limit,
    )
