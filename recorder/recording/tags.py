"""Tags: added while recording, after it, and after sealing. Spec §2.2, §4.1; contract §2 (tag)."""

import orjson
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock, limits
from recorder.errors import InvalidState, LimitReached, ValidationFailed
from recorder.ids import is_client_id, new_timed_id
from recorder.masking.masker import Changes
from recorder.memory.storage import graph_store as graph
from recorder.models.session import SessionRow, Tag, TagCreate, TagRow
from recorder.recording.item_masking import mask_tag
from recorder.recording.outcome_detection import rederive_outcome
from recorder.recording.sessions import emit_session_event, find_session
from recorder.storage.database import note_change
from recorder.storage.list_pages import FetchedPage, fetch_statement_page
from recorder.tenant import Tenant


def add_tag(
    db: DbSession,
    tenant: Tenant,
    session_id: str,
    body: TagCreate,
    changed: Changes | None = None,
    anchor: int | ValidationFailed | None = None,
) -> Tag:
    """Tag a session; a tag that comes after the stop computes the outcome again.

    Args:
        db: a transaction.
        tenant: workspace and mode.
        session_id: id of the session.
        body: body of the request.
        changed: the texts that masking changes, see `make_tag_text_to_mask`.
        anchor: time of the event or frame that the tag names, or the error; see
                `item_reads.find_anchor_time`.

    Raises:
        NotFound: if there is no such session.
        InvalidState: if it never started.
        LimitReached: if it has reached its limit of tags.
        ValidationFailed: if name, data or a reference is not acceptable.
    """
    check_tag(body)
    row = find_session(db, tenant, session_id, lock=True)
    if row.status == "created":
        raise InvalidState(
            row.status,
            needed="session must have started to be tagged",
            remedy="Start it with POST /v1/sessions/{session_id}/start.",
        )
    if isinstance(anchor, ValidationFailed):
        raise anchor
    if row.tag_count >= limits.TAGS_PER_SESSION:
        raise LimitReached("tags", limits.TAGS_PER_SESSION, "tag another session", owner="session")
    body = mask_tag(changed, body) if changed else body
    tag_id, created_at = new_timed_id("tag")
    row.last_position += 1
    row.tag_count += 1
    tag = TagRow(
        **body.model_dump(exclude={"t_ms"}),
        id=tag_id,
        session_id=row.id,
        workspace_id=tenant.workspace_id,
        mode=tenant.mode,
        t_ms=next((t_ms for t_ms in (body.t_ms, anchor) if t_ms is not None), _default_tag_t_ms(row)),
        position=row.last_position,
        created_at=created_at,
    )
    db.add(tag)
    db.add(row)
    note_change(db, SessionRow, row.id)
    db.flush()
    wire = tag_to_wire(tag)
    _apply_tag_to_outcome(db, row, wire)
    return wire


def list_tags(
    db: DbSession, session_id: str, *, after: tuple[int, str] | None, limit: int
) -> FetchedPage[Tag, tuple[int, str]]:
    """Return a page of the tags of a session by `(t_ms, id)`, those after a position."""
    statement = (
        select(TagRow).where(TagRow.session_id == session_id).order_by(col(TagRow.t_ms), col(TagRow.id))
    )
    if after is not None:
        t_ms, tag_id = after
        later = (col(TagRow.t_ms) > t_ms) | ((col(TagRow.t_ms) == t_ms) & (col(TagRow.id) > tag_id))
        statement = statement.where(later)
    page = fetch_statement_page(db, statement, limit=limit, position_of=lambda row: (row.t_ms, row.id))
    return page.convert(tag_to_wire)


def tag_to_wire(row: TagRow) -> Tag:
    """Return the tag object of a row."""
    return Tag.model_validate(row.model_dump(include=set(Tag.model_fields)))


def _apply_tag_to_outcome(db: DbSession, row: SessionRow, tag: Tag) -> None:
    error = None
    before = row.outcome
    if row.status in ("stopped", "sealed"):
        error = rederive_outcome(db, row)
    emit_session_event(db, row, "session.tagged", tag=tag.model_dump(mode="json"))
    if error is not None:
        emit_session_event(db, row, "session.error", error=error.as_json())
    if row.status == "sealed" and row.outcome is not None and row.outcome != before:
        graph.replace_session_outcome(db, row, row.outcome)


def _default_tag_t_ms(row: SessionRow) -> int:
    """Return now while recording, the end after; an import's clock is that of its recording."""
    if row.status != "recording":
        return row.duration_ms
    if row.is_import or row.started_at is None:
        return row.max_t_ms
    return max(0, clock.now_ms() - clock.to_ms(row.started_at))


def check_tag(body: TagCreate) -> None:
    """Check what the types of a tag do not say.

    Raises:
        ValidationFailed: If name, data or a reference is not acceptable.
    """
    if not body.name.isprintable():
        raise ValidationFailed.of("/name", "invalid_string", message="name takes printable characters.")
    if body.data is not None and len(orjson.dumps(body.data)) > limits.TAG_DATA_BYTES:
        raise ValidationFailed.of(
            "/data", "too_large", message=f"data holds at most {limits.TAG_DATA_BYTES} bytes."
        )
    for name, prefix in (("event_id", "evt"), ("frame_id", "frm")):
        value = getattr(body, name)
        if value is not None and not is_client_id(value, prefix):
            raise ValidationFailed.of(
                f"/{name}", "invalid_id", message=f"{name} takes an id that begins with {prefix}_."
            )
