"""`/v1/keys`: the keys of a workspace. Spec §4.5, §5; contract §1 (keys)."""

from fastapi import APIRouter, Request, Response

from api.dependencies import CallerDep, CursorText, Db, Limit, OriginDep, Pager, RuntimeDep
from api.errors import problem_responses
from api.gate.authentication import ForgettingDep
from api.strict_routes import StrictRoute
from recorder import limits
from recorder.access import key_admin
from recorder.models.key import Key, KeyCreate, KeyCreated
from recorder.models.wire import Page

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=StrictRoute)


@router.post("", status_code=201, responses=problem_responses(401, 403, 409, 422))
def create_key(
    db: Db, caller: CallerDep, origin: OriginDep, runtime: RuntimeDep, body: KeyCreate, response: Response
) -> KeyCreated:
    """Make a key that may do no more than this one; its value is in this answer and nowhere else."""
    response.headers["Cache-Control"] = "no-store"
    return key_admin.grant_key(db, caller, origin, body, runtime.settings.secret)


@router.get("", responses=problem_responses(400, 401, 403, 422))
def list_keys(
    request: Request,
    db: Db,
    caller: CallerDep,
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> Page[Key]:
    """The keys of the workspace that were not revoked, newest first; a test key sees test keys alone."""
    pager = Pager(request, caller)
    before = pager.read(cursor)
    keys, has_more = key_admin.list_keys(
        db, caller.tenant, before_id=before[0] if before else None, limit=limit
    )
    return pager.page(keys, [keys[-1].id] if has_more else None)


@router.delete("/{key_id}", status_code=204, responses=problem_responses(401, 403, 404))
def revoke_key(
    forgetting: ForgettingDep, key_id: str, db: Db, caller: CallerDep, origin: OriginDep
) -> Response:
    """End a key: at once in this process, within 5 seconds in all. A key may end itself."""
    key_admin.revoke_key(db, caller.tenant, origin, key_id)
    forgetting.key(key_id)
    return Response(status_code=204)
