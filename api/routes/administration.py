"""Administration of a workspace: settings, keys, limits, quota, event types, audit. Spec §2.10, §4.5, §5."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.bodies.body_masking import AdmittedWorkspace
from api.dependencies import CallerDep, Db, ListTimeRangeDep, OriginDep, PagerDep, RuntimeDep
from api.errors import problem_responses
from api.gate.authentication import CallerInvalidationDep
from api.gate.endpoints import ENDPOINTS
from api.gate.open_connections import OpenConnections
from api.negotiation import negotiate_format
from api.streams.audit_download import AuditDownload
from api.streams.portioned_download import JSON, NDJSON
from api.strict_routes import StrictRoute
from recorder.access import key_admin, quota, workspaces
from recorder.access.rate_tiers import describe_tier_limits
from recorder.audit.log import AuditFilter, read_audit_page
from recorder.models.limits import Limits
from recorder.models.operations import AuditEntry
from recorder.models.text_patterns import PRINTABLE_NAME
from recorder.models.webhook import EventTypes
from recorder.models.wire import Page
from recorder.models.workspace import Key, KeyCreate, KeyCreated, Quota, Workspace
from recorder.webhooks.catalogue import list_webhook_event_types

router = APIRouter(prefix="/v1", route_class=StrictRoute)

_ADDRESSES = [
    (surface, endpoint.method, endpoint.path.replace(":path}", "}"))
    for endpoint in ENDPOINTS
    for surface in (endpoint.surface, endpoint.live_surface)
    if surface is not None
]
_Name = Annotated[str, Query(min_length=1, max_length=128, pattern=PRINTABLE_NAME)]
_AUDIT_ANSWER = {
    "model": Page[AuditEntry],
    "description": "A page of entries, or all of them as NDJSON",
    "content": {NDJSON: {"schema": {"type": "string"}}},
}


@router.get("/workspaces/current", tags=["workspaces"])
def get_workspace(db: Db, caller: CallerDep) -> Workspace:
    """Return the workspace of the key."""
    return workspaces.get_workspace(db, caller.workspace_id)


@router.patch("/workspaces/current", tags=["workspaces"])
def update_workspace(
    body: AdmittedWorkspace,
    invalidation: CallerInvalidationDep,
    db: Db,
    caller: CallerDep,
    origin: OriginDep,
) -> Workspace:
    """Change retention, masking or the hosts of live replays; members that are not sent stay."""
    invalidation.add_workspace(caller.workspace_id)
    return workspaces.update_workspace(db, caller, origin, body)


@router.get("/limits", tags=["limits"])
async def get_limits(request: Request, caller: CallerDep, runtime: RuntimeDep) -> Limits:
    """Return the limits in force for the workspace: rates and bursts, streams, batches, bytes, pages."""
    connections: OpenConnections = request.app.state.open_connections
    return describe_tier_limits(
        caller.tier,
        _ADDRESSES,
        session_size=runtime.settings.session_size,
        connections=connections.limits,
    )


@router.get("/quota", tags=["usage"])
def get_quota(db: Db, caller: CallerDep) -> Quota:
    """Return the quota of the workspace; null limits mean unlimited."""
    return quota.read_quota(db, caller.tenant)


@router.get("/event_types", tags=["webhooks"])
def get_event_types() -> EventTypes:
    """Return every event type, with the JSON Schema of its payload."""
    return list_webhook_event_types()


@router.post("/keys", tags=["keys"], status_code=201, responses=problem_responses(409))
def create_key(
    db: Db, caller: CallerDep, origin: OriginDep, runtime: RuntimeDep, body: KeyCreate
) -> KeyCreated:
    """Create a key with at most the rights of this one; only this answer shows its value."""
    return key_admin.create_key_for_caller(db, caller, origin, body, runtime.settings.secret)


@router.get("/keys", tags=["keys"], response_model=Page[Key])
def list_keys(pager: PagerDep, db: Db, caller: CallerDep) -> Response:
    """List the keys that were not revoked, newest first; a test key sees only test keys."""
    before_id = pager.read_cursor(str)
    return pager.make_answer(key_admin.list_keys(db, caller.tenant, before_id=before_id, limit=pager.limit))


@router.delete("/keys/{key_id}", tags=["keys"], status_code=204, responses=problem_responses(404))
def revoke_key(
    invalidation: CallerInvalidationDep, key_id: str, db: Db, caller: CallerDep, origin: OriginDep
) -> Response:
    """Revoke a key: at once in this process, within 5 seconds in all. A key may revoke itself."""
    key_admin.revoke_key(db, caller.tenant, origin, key_id)
    invalidation.add_key(key_id)
    return Response(status_code=204)


@router.get(
    "/audit",
    tags=["audit"],
    response_model=Page[AuditEntry],
    responses={200: _AUDIT_ANSWER, **problem_responses(406)},
)
def list_audit_entries(
    request: Request,
    pager: PagerDep,
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    times: ListTimeRangeDep,
    action: Annotated[_Name | None, Query(description="Such as `key.create`.")] = None,
    actor: Annotated[
        _Name | None, Query(description="Id of an actor, or `key`, `operator`, `system`.")
    ] = None,
    resource: Annotated[
        _Name | None, Query(description="Id of a resource, or its type, such as `key`.")
    ] = None,
) -> Response:
    """List the changes and their actors, oldest first, each entry chained to the one before.

    With `Accept: application/x-ndjson` all entries are sent, one a line; this counts as a whole-session read.
    """
    filters = AuditFilter(
        workspace_id=caller.workspace_id,
        mode="test" if caller.mode == "test" else None,
        since=times.since,
        until=times.until,
        action=action,
        actor=actor,
        resource=resource,
        after_number=pager.read_cursor(int) or 0,
    )
    if negotiate_format(request, JSON, NDJSON) == NDJSON:
        return AuditDownload(runtime.database, request.app.state.whole_reads, caller, filters)
    return pager.make_answer(read_audit_page(db, filters, limit=pager.limit))
