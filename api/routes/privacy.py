"""`/v1/privacy/erasure`: erasure of a person's data. Spec §4.5; contract §7."""

from fastapi import APIRouter

from api.dependencies import CallerDep, Db, OriginDep, RuntimeDep
from api.errors import problem_responses
from api.strict_routes import StrictRoute
from recorder.governance import erasures
from recorder.models.governance import Erasure, ErasureCreate

router = APIRouter(prefix="/v1/privacy/erasure", tags=["privacy"], route_class=StrictRoute)


@router.post("", status_code=202, responses=problem_responses(409))
def request_erasure(
    body: ErasureCreate, db: Db, caller: CallerDep, origin: OriginDep, runtime: RuntimeDep
) -> Erasure:
    """Erase all sessions whose actor or metadata name a person; a live key reaches test data too."""
    return erasures.request_erasure(db, runtime.settings.secret, caller, origin, body)


@router.get("/{erasure_id}", responses=problem_responses(404))
def get_erasure(erasure_id: str, db: Db, caller: CallerDep) -> Erasure:
    """Return an erasure, with the numbers of what was removed."""
    return erasures.find_erasure(db, caller, erasure_id)
