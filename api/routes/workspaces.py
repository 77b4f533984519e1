"""`/v1/workspaces/current`: the caller's workspace and its settings. Spec §2.10, §4.5; contract §7."""

from fastapi import APIRouter

from api.body_masking import AdmittedWorkspace
from api.callers import ForgettingDep
from api.deps import CallerDep, Db, OriginDep
from api.errors import problem_responses
from api.strict_route import StrictRoute
from recorder.access import workspaces
from recorder.models.workspace import Workspace

router = APIRouter(prefix="/v1/workspaces", tags=["workspaces"], route_class=StrictRoute)


@router.get("/current", responses=problem_responses(401, 403))
def get_workspace(db: Db, caller: CallerDep) -> Workspace:
    """The workspace of the key."""
    return workspaces.get_workspace(db, caller.workspace_id)


@router.patch("/current", responses=problem_responses(401, 403, 422, 503))
def update_workspace(
    body: AdmittedWorkspace,
    forgetting: ForgettingDep,
    db: Db,
    caller: CallerDep,
    origin: OriginDep,
) -> Workspace:
    """Change retention, masking or the hosts of live replays; members that are not sent stay."""
    forgetting.workspace(caller.workspace_id)
    return workspaces.update_workspace(db, caller, origin, body)
