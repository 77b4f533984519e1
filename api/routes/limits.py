"""`/v1/limits`. Spec §4.5, §8; contract §7."""

from fastapi import APIRouter

from api.deps import CallerDep, RuntimeDep
from api.endpoints import ENDPOINTS
from api.errors import problem_responses
from api.strict_route import StrictRoute
from recorder.access.ratelimit.in_force import limits_in_force
from recorder.models.limits import Limits

router = APIRouter(prefix="/v1/limits", tags=["limits"], route_class=StrictRoute)

_ADDRESSES = [(one.surface, one.method, one.path.replace(":path}", "}")) for one in ENDPOINTS]


@router.get("", responses=problem_responses(401, 422))
async def get_limits(caller: CallerDep, runtime: RuntimeDep) -> Limits:
    """The limits in force for the caller's workspace: rates and bursts, streams, batches, bytes, pages."""
    return limits_in_force(caller.tier, _ADDRESSES, session_size=runtime.settings.session_size)
