"""`/v1/memory/graph` and `/v1/memory/diff`: a graph whole, and two sides of it compared. Contract §4."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from api.deps import Db, Limit, OtherTimeRangeDep, TimeRange
from api.errors import problem_responses
from api.selection import Fraction, SelectionDep
from api.strict_route import StrictRoute
from recorder import limits
from recorder.errors import ValidationFailed
from recorder.memory.queries.comparison import MIN_CHANGE, Side
from recorder.memory.views.formats import GraphFormat
from recorder.models.memory_queries import MemoryComparison
from recorder.models.wire import ActorKind
from recorder.recording import graph_views

router = APIRouter(prefix="/v1/memory", tags=["memory"], route_class=StrictRoute)

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
        "description": "The graph in the format asked for.",
        "content": {media_type: {} for media_type in _TYPES},
    },
    **problem_responses(401, 404, 422),
}


@router.get("/graph", responses=_GRAPH, response_class=Response)
def get_graph(
    db: Db, selection: SelectionDep, format: GraphFormat = "json", min_frequency: Fraction = 0.0
) -> Response:
    """Nodes and edges of a workflow's sessions, as data or as a drawing."""
    content, media_type = graph_views.render_graph(
        db, **selection.asked(), format=format, min_frequency=min_frequency
    )
    return Response(content, media_type=media_type)


async def get_sides(
    selection: SelectionDep,
    other_times: OtherTimeRangeDep,
    other_actor_kind: Annotated[ActorKind | None, Query(alias="against_actor.kind")] = None,
) -> tuple[Side, Side]:
    """The two sides of a comparison; the other one is like the first in what is not said of it.

    Raises:
        ValidationFailed: if nothing is said of the other side.
    """
    times = selection.times
    if other_times != _NO_TIMES:
        times = other_times
    elif other_actor_kind is None:
        text = "Name the other side: against_since and against_until, or against_actor.kind."
        raise ValidationFailed.of("against_since", "missing", message=text, where="query")
    return (
        Side(selection.times.since, selection.times.until, selection.actor_kind),
        Side(times.since, times.until, other_actor_kind or selection.actor_kind),
    )


@router.get("/diff", responses=problem_responses(401, 404, 422))
def compare_sessions(
    db: Db,
    selection: SelectionDep,
    sides: Annotated[tuple[Side, Side], Depends(get_sides)],
    min_change: Fraction = MIN_CHANGE,
    limit: Limit = limits.LIST_DEFAULT,
) -> MemoryComparison:
    """Paths, nodes and edges that appeared, disappeared or changed between two periods or kinds of actors."""
    selected, against = sides
    return graph_views.compare_sessions(
        db,
        **selection.place(),
        selected=selected,
        against=against,
        outcome=selection.outcome,
        min_change=min_change,
        limit=limit,
    )
