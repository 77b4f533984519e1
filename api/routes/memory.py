"""`/v1/memory/*`: what the graph knows about a workflow. Spec §4.2, contract §4."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.deps import CallerDep, Db, Limit, TimeRangeDep
from api.errors import problem_responses
from api.strict_route import StrictRoute
from recorder import limits
from recorder.memory import queries
from recorder.models.memory import MemoryPathList
from recorder.models.wire import Outcome

router = APIRouter(prefix="/v1/memory", tags=["memory"], route_class=StrictRoute)


@router.get("/paths", responses=problem_responses(401, 404, 422))
def list_paths(
    db: Db,
    caller: CallerDep,
    times: TimeRangeDep,
    workflow: Annotated[str, Query(pattern=limits.WORKFLOW_PATTERN)],
    outcome: Outcome | None = None,
    min_frequency: Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)] = 0.0,
    limit: Limit = limits.LIST_DEFAULT,
) -> MemoryPathList:
    """The paths that sessions of a workflow take, most frequent first."""
    paths = queries.list_paths(
        db,
        workspace_id=caller.workspace_id,
        mode=caller.mode,
        workflow=workflow,
        since=times.since,
        until=times.until,
        outcome=outcome,
        min_frequency=min_frequency,
        limit=limit,
    )
    return MemoryPathList(data=paths)
