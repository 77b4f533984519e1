"""`/v1/audit`: the audit log, in pages or as NDJSON for a SIEM. Spec §4.5, contract §7 (audit)."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from api.cursors import Pager
from api.dependencies import CallerDep, CursorText, Db, Limit, RuntimeDep, TimeRangeDep
from api.errors import problem_responses
from api.negotiation import choose_format
from api.streams.event_download import NDJSON
from api.strict_routes import StrictRoute
from recorder import limits
from recorder.audit.log import AuditFilter, list_entries, stream_entries
from recorder.models.audit import AuditEntry
from recorder.models.wire import Page

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=StrictRoute)

_JSON = "application/json"
_Name = Annotated[str, Query(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
_FORMATS = {
    "model": Page[AuditEntry],
    "description": "A page of entries, or all of them as NDJSON",
    "content": {NDJSON: {"schema": {"type": "string"}}},
}


@router.get(
    "",
    response_model=Page[AuditEntry],
    responses={200: _FORMATS, **problem_responses(400, 401, 403, 406, 422)},
)
def list_audit_entries(
    request: Request,
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    times: TimeRangeDep,
    action: Annotated[_Name | None, Query(description="Such as `key.create`.")] = None,
    actor: Annotated[
        _Name | None, Query(description="Id of an actor, or `key`, `operator`, `system`.")
    ] = None,
    resource: Annotated[
        _Name | None, Query(description="Id of a resource, or its type, such as `key`.")
    ] = None,
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> Page[AuditEntry] | Response:
    """What was changed and by whom, oldest first, each entry chained to the one before.

    With `Accept: application/x-ndjson` all of it at once, one entry a line.
    """
    pager = Pager(request, caller)
    position = pager.read(cursor)
    filters = AuditFilter(
        workspace_id=caller.workspace_id,
        mode="test" if caller.mode == "test" else None,
        since=times.since,
        until=times.until,
        action=action,
        actor=actor,
        resource=resource,
        after_number=position[0] if position else 0,
    )
    if choose_format(request, _JSON, NDJSON) == NDJSON:
        return StreamingResponse(stream_entries(runtime.database, filters), media_type=NDJSON)
    entries, last_number = list_entries(db, filters, limit=limit)
    return pager.page(entries, None if last_number is None else [last_number])
