"""The caller's workspace: settings, limits, quota and webhook event types. Spec §2.10, §4.5; contract §7."""

from fastapi import APIRouter

from api.bodies.masking import AdmittedWorkspace
from api.dependencies import CallerDep, Db, OriginDep, RuntimeDep
from api.errors import problem_responses
from api.gate.endpoints import ENDPOINTS
from api.gate.key_cache import ForgettingDep
from api.strict_routes import StrictRoute
from recorder.access import quota, workspaces
from recorder.access.rate_tiers import describe_limits
from recorder.models.limits import Limits
from recorder.models.notification import EventTypes
from recorder.models.workspace import Quota, Workspace
from recorder.webhooks.catalogue import list_event_types

router = APIRouter(prefix="/v1", route_class=StrictRoute)


@router.get("/workspaces/current", tags=["workspaces"], responses=problem_responses(401, 403))
def get_workspace(db: Db, caller: CallerDep) -> Workspace:
    """The workspace of the key."""
    return workspaces.get_workspace(db, caller.workspace_id)


@router.patch("/workspaces/current", tags=["workspaces"], responses=problem_responses(401, 403, 422, 503))
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


_ADDRESSES = [(one.surface, one.method, one.path.replace(":path}", "}")) for one in ENDPOINTS]


@router.get("/limits", tags=["limits"], responses=problem_responses(401, 422))
async def get_limits(caller: CallerDep, runtime: RuntimeDep) -> Limits:
    """The limits in force for the caller's workspace: rates and bursts, streams, batches, bytes, pages."""
    return describe_limits(caller.tier, _ADDRESSES, session_size=runtime.settings.session_size)


@router.get("/quota", tags=["usage"], responses=problem_responses(401))
def get_quota(db: Db, caller: CallerDep) -> Quota:
    """The quota of the workspace; null limits mean unlimited."""
    return quota.read_quota(db, caller.tenant)


@router.get("/event_types", tags=["webhooks"], responses=problem_responses(401))
def get_event_types() -> EventTypes:
    """Every event type, with the JSON Schema of its payload."""
    return list_event_types()
