"""`/v1/sessions/{id}/tags`. Spec §2.2, §4.1; contract §2 (tag)."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from api.bodies.masking import Masked, MaskedTag
from api.dependencies import CallerDep, CursorText, Db, Limit, Pager, RuntimeDep
from api.errors import problem_responses
from api.strict_routes import StrictRoute
from recorder import limits
from recorder.access.keys import Caller
from recorder.errors import NotFound, ValidationFailed
from recorder.models.tag import Tag, TagCreate
from recorder.models.wire import Page
from recorder.recording import sessions, tags
from recorder.recording.anchors import find_anchor_time
from recorder.runtime import Runtime

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["tags"], route_class=StrictRoute)


@dataclass(frozen=True)
class AnchoredTag:
    """A tag, and the time of the event or frame that it names, or the error that there is none."""

    masked: Masked[TagCreate]
    anchor: int | ValidationFailed | None


def get_anchored_tag(
    session_id: str, request: Request, masked: MaskedTag, caller: CallerDep, runtime: RuntimeDep
) -> AnchoredTag:
    """Return the tag of a body with the time that it takes.

    The time is found before the transaction that writes, which must not wait for it: what is stored stays.
    """
    return AnchoredTag(masked, _find_anchor(session_id, request, masked.body, caller, runtime))


def _find_anchor(
    session_id: str, request: Request, body: TagCreate, caller: Caller, runtime: Runtime
) -> int | ValidationFailed | None:
    if body.event_id is None and body.frame_id is None:
        return None
    try:
        with runtime.database.transaction(write=False) as db:
            if (keyed := getattr(request.state, "keyed", None)) is not None:
                keyed.look(db)
            row = sessions.find_session(db, caller.tenant, session_id)
            return find_anchor_time(db, runtime.lake, row, body)
    except ValidationFailed as error:
        return error  # told after what the transaction refuses: a missing session, its state
    except NotFound:
        return None  # the transaction finds the same, and keeps the answer


# Few, since each may read through the session.
Anchored = Annotated[AnchoredTag, Depends(get_anchored_tag, max_concurrency=4)]


@router.post("/tags", status_code=201, responses=problem_responses(401, 404, 409, 422, 503))
def add_tag(session_id: str, tag: Anchored, db: Db, caller: CallerDep) -> Tag:
    """Tag a session while it records or after it; late tags derive its outcome again."""
    masked = tag.masked
    return tags.add_tag(db, caller.tenant, session_id, masked.body, masked.changes, tag.anchor)


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
    row = sessions.find_session(db, caller.tenant, session_id)
    found = tags.list_tags(db, row.id, after=(after[0], after[1]) if after else None, limit=limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    return pager.page(found[:limit], [last.t_ms, last.id] if last else None)
