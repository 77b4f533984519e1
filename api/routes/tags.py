"""`/v1/sessions/{id}/tags`. Spec §2.2, §4.1; contract §2 (tag)."""

from fastapi import APIRouter, Request

from api.body_masking import MaskedTag
from api.deps import CallerDep, CursorText, Db, Limit
from api.errors import problem_responses
from api.paging import Pager
from api.strict_route import StrictRoute
from recorder import limits
from recorder.models.tag import Tag
from recorder.models.wire import Page
from recorder.recording import sessions, tags

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["tags"], route_class=StrictRoute)


@router.post("/tags", status_code=201, responses=problem_responses(401, 404, 409, 422, 503))
def add_tag(session_id: str, masked: MaskedTag, db: Db, caller: CallerDep) -> Tag:
    """Tag a session while it records or after it; late tags derive its outcome anew."""
    return tags.add_tag(db, caller.workspace_id, caller.mode, session_id, masked.body, masked.changes)


@router.get("/tags", responses=problem_responses(400, 401, 404, 422))
def list_tags(
    session_id: str,
    request: Request,
    db: Db,
    caller: CallerDep,
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> Page[Tag]:
    """The tags of a session by `(t_ms, id)`."""
    pager = Pager(request, caller)
    after = pager.read(cursor)
    row = sessions.find_session(db, caller.workspace_id, caller.mode, session_id)
    found = tags.list_tags(db, row.id, after=(after[0], after[1]) if after else None, limit=limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    return pager.page(found[:limit], [last.t_ms, last.id] if last else None)
