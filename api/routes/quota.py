"""`GET /v1/quota`: what the current month used, and what it may. Spec §2.9, §4.5; contract §7."""

from fastapi import APIRouter

from api.deps import CallerDep, Db
from api.errors import problem_responses
from api.strict_route import StrictRoute
from recorder.access import usage
from recorder.models.usage import Quota

router = APIRouter(prefix="/v1/quota", tags=["usage"], route_class=StrictRoute)


@router.get("", responses=problem_responses(401))
def get_quota(db: Db, caller: CallerDep) -> Quota:
    """The quota of the workspace; null limits mean unlimited."""
    return usage.read_quota(db, caller.tenant)
