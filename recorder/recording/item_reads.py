"""Pages and single items of a session, the same from the hot rows and from the lake. Contract §2, §3."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from sqlmodel import Session as DbSession
from sqlmodel import col, func, select, tuple_

from recorder import limits
from recorder.errors import NotFound, Problem, ValidationFailed
from recorder.memory.storage.session_paths import read_path_id
from recorder.models.event import EventBatchRow, EventKeyRow
from recorder.models.frame import Frame, FrameRow
from recorder.models.session import FramesSummary, SessionDetail, SessionRow, TagCreate
from recorder.recording.frame_validation import unpack_frame_snapshot
from recorder.recording.session_events import read_session_events_page
from recorder.recording.sessions import read_session_metadata, session_to_wire
from recorder.recording.stored_events import EventSortKey, decode_event_heads, decompress_stored_events
from recorder.recording.tags import list_tags
from recorder.storage.blobs import Blobs
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import LAYOUTS
from recorder.storage.list_pages import FetchedPage, fetch_list_page, stream_rows


def find_anchor_time(db: DbSession, lake: Lake, row: SessionRow, body: TagCreate) -> int | None:
    """Return the time of the event that a tag names, else of the frame; None where it names neither.

    Args:
        db: a transaction; reading is enough.
        lake: holds the rows of swept sessions.
        row: the session.
        body: names of the tag, in a checked form.

    Raises:
        ValidationFailed: if the session has no such event or frame.
        Unavailable: if the lake does not answer.
    """
    problems: list[Problem] = []
    event_t_ms = frame_t_ms = None
    if body.event_id is not None:
        event_t_ms = _find_event_time(db, lake, row, body.event_id)
        if event_t_ms is None:
            problems.append(Problem("body", "/event_id", "unknown_event", "The session has no such event."))
    if body.frame_id is not None:
        frame_t_ms = _find_frame_time(db, lake, row, body.frame_id)
        if frame_t_ms is None:
            problems.append(Problem("body", "/frame_id", "unknown_frame", "The session has no such frame."))
    if problems:
        raise ValidationFailed(problems)
    return frame_t_ms if event_t_ms is None else event_t_ms


def _find_frame_time(db: DbSession, lake: Lake, row: SessionRow, frame_id: str) -> int | None:
    try:
        return get_frame(db, lake, row, frame_id).t_ms
    except NotFound:
        return None


def _find_event_time(db: DbSession, lake: Lake, row: SessionRow, event_id: str) -> int | None:
    if not row.is_hot:
        records = _read_sealed_item(lake, row, "events", item_id=event_id)
        return next(iter(records["t_ms"].to_list()), None)
    named = db.get(EventKeyRow, (row.id, event_id))
    if named is not None:
        return named.t_ms
    # Ids that the service gives rise within a batch: the one that begins last before the id may hold it.
    first_id = col(EventBatchRow.first_id)
    batches = select(EventBatchRow).where(EventBatchRow.session_id == row.id, first_id <= event_id)
    batch = db.exec(batches.order_by(first_id.desc()).limit(1)).first()
    if batch is None:
        return None
    heads = decode_event_heads(decompress_stored_events(batch.payload), batch.first_id)
    return next((head.t_ms for head, found_id in heads if found_id == event_id), None)


def _read_sealed_item(
    lake: Lake, row: SessionRow, kind: Literal["events", "frames"], *, item_id: str
) -> pl.DataFrame:
    """Read the lake row of one event or frame; without rows if there is none."""
    return lake.read_session(
        kind,
        row.tenant,
        workflow=row.workflow,
        date=row.lake_date or "",
        session_id=row.id,
        only=pl.col("event_id" if kind == "events" else "frame_id") == item_id,
    )


# Columns of the lake that make a frame object.
_FRAME_COLUMNS = (
    *(name for name in FrameRow.model_fields if name in LAYOUTS["frames"].schema.names),
    "rects",
)
_NO_FRAME = "The session has no such frame; check both ids, and the mode of the key."
#: Of a frame in a page, without its address and masked rectangles.
_FRAME_BYTES = 400
_SUMMARIZED = ("t_ms", "bytes", "width", "height", "content_type", "is_keyframe")


def list_frames(
    db: DbSession, lake: Lake, row: SessionRow, *, after: EventSortKey | None, limit: int
) -> FetchedPage[Frame, EventSortKey]:
    """Return a page of the frames of a session by `(t_ms, id)`, those after a position.

    No more rows are read than the page has, and one more.
    """

    def read_hot_rows(count: int) -> Iterable[FrameRow]:
        key = (col(FrameRow.t_ms), col(FrameRow.frame_id))
        statement = select(FrameRow).where(FrameRow.session_id == row.id).order_by(*key).limit(count)
        statement = statement if after is None else statement.where(tuple_(*key) > after)
        return stream_rows(db, statement)

    def read_sealed_rows(count: int) -> Iterable[FrameRow]:
        for batch in read_sealed_frames(lake, row, after=after, limit=count):
            yield from map(convert_lake_frame_row, batch.to_pylist())

    page = fetch_list_page(
        read_hot_rows if row.is_hot else read_sealed_rows,
        limit=limit,
        position_of=lambda frame: (frame.t_ms, frame.frame_id),
        size_of=_count_frame_bytes,
    )
    return page.convert(frame_to_wire)


def _count_frame_bytes(frame: FrameRow) -> int:
    """Return about how many bytes a frame takes in a page."""
    rectangles = len(orjson.dumps(frame.masked_rects)) if frame.masked_rects else 0
    return _FRAME_BYTES + len(frame.url or "") + rectangles


def get_frame(db: DbSession, lake: Lake, row: SessionRow, frame_id: str) -> Frame:
    """Return one frame's metadata.

    Raises:
        NotFound: if the session has no such frame.
    """
    return frame_to_wire(_find_frame(db, lake, row, frame_id))


@dataclass(frozen=True)
class StoredImage:
    """Picture of a frame, of which parts can be read.

    Attributes:
        size: bytes of the picture.
        content_type: of the picture.
    """

    size: int
    content_type: str
    _blobs: Blobs
    _object: str
    _offset: int

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from a position to another one, exclusive.

        Raises:
            NotFound: if they are gone.
            Unavailable: if the store does not answer.
        """
        try:
            data = self._blobs.get(self._object, self._offset + start, end - start)
        except KeyError as error:
            raise NotFound("frame", _NO_FRAME) from error
        if len(data) < end - start:
            raise NotFound("frame", _NO_FRAME)
        return data


def find_image(db: DbSession, lake: Lake, blobs: Blobs, row: SessionRow, frame_id: str) -> StoredImage:
    """Return a frame's picture, of which nothing is read yet.

    Raises:
        NotFound: if the session has no such frame.
    """
    stored = _find_frame(db, lake, row, frame_id)
    return StoredImage(stored.length, stored.content_type, blobs, stored.object, stored.offset)


def read_dom(db: DbSession, lake: Lake, blobs: Blobs, row: SessionRow, frame_id: str) -> bytes:
    """Return the DOM snapshot of a frame as JSON.

    Raises:
        NotFound: if the session has no such frame, or the frame has no snapshot, or its bytes are gone.
    """
    stored = _find_frame(db, lake, row, frame_id)
    if stored.dom_object is None or stored.dom_offset is None or stored.dom_length is None:
        raise NotFound("dom", "The frame has no DOM snapshot; has_dom of its metadata shows which have one.")
    try:
        return unpack_frame_snapshot(blobs.get(stored.dom_object, stored.dom_offset, stored.dom_length))
    except KeyError as error:
        raise NotFound("frame", _NO_FRAME) from error


def describe_session(db: DbSession, lake: Lake, row: SessionRow, include: frozenset[str]) -> SessionDetail:
    """Return the session with the related data that was asked for; what was not asked for stays unset."""
    members: dict[str, Any] = dict(
        session_to_wire(row, read_session_metadata(db, row), path_id=read_path_id(db, row))
    )
    if "events" in include:
        page = read_session_events_page(db, lake, row, after=None, limit=limits.EMBEDDED_EVENTS)
        members["events"] = [orjson.loads(record.as_json()) for record in page.items]
        members["events_truncated"] = page.position is not None
        members["events_url"] = f"/v1/sessions/{row.id}/events"
    if "tags" in include:
        members["tags"] = list_tags(db, row.id, after=None, limit=limits.EMBEDDED_EVENTS).items
    if "frames_summary" in include:
        members["frames_summary"] = _summarize_frames(db, lake, row)
    return SessionDetail(**members)


def read_sealed_frames(
    lake: Lake,
    row: SessionRow,
    *,
    after: EventSortKey | None = None,
    limit: int | None = None,
    columns: Sequence[str] = _FRAME_COLUMNS,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the frames of a sealed session after a position, in the lake's columns."""
    yield from lake.read_session_batches(
        "frames",
        row.tenant,
        workflow=row.workflow,
        date=row.lake_date or "",
        session_id=row.id,
        after=after,
        columns=columns,
        limit=limit,
    )


def _summarize_frames(db: DbSession, lake: Lake, row: SessionRow) -> FramesSummary:
    return _summarize_hot_frames(db, lake, row) if row.is_hot else _summarize_sealed_frames(lake, row)


def _summarize_hot_frames(db: DbSession, lake: Lake, row: SessionRow) -> FramesSummary:
    of_session = FrameRow.session_id == row.id
    width, height = col(FrameRow.width), col(FrameRow.height)
    totals = select(
        func.count(),
        func.coalesce(func.sum(FrameRow.bytes), 0),
        func.min(FrameRow.t_ms),
        func.max(FrameRow.t_ms),
    )
    count, size, first_t_ms, last_t_ms = db.exec(totals.where(of_session)).one()
    largest = db.exec(
        select(width, height).where(of_session).order_by((width * height).desc(), width.desc()).limit(1)
    ).first()
    types = db.exec(select(FrameRow.content_type).where(of_session).distinct()).all()
    keyframes = None
    # Keyframes are computed when a session is sealed; before, their number is not known.
    if row.status == "sealed":
        batches = read_sealed_frames(lake, row, columns=["is_keyframe"])
        keyframes = sum(batch["is_keyframe"].true_count for batch in batches)
    return FramesSummary(
        count=count,
        keyframes=keyframes,
        bytes=size,
        first_t_ms=first_t_ms,
        last_t_ms=last_t_ms,
        width=largest[0] if largest else None,
        height=largest[1] if largest else None,
        content_types=sorted(types),
        storage=_count_frames_by_store(row, count),
    )


def _count_frames_by_store(row: SessionRow, count: int) -> dict[str, int]:
    """Return the numbers of frames in the frame store and in the cold store of archived frames."""
    cold = 0 if row.frames_archived_at is None else count
    return {"hot": count - cold, "cold": cold}


def _summarize_sealed_frames(lake: Lake, row: SessionRow) -> FramesSummary:
    count = keyframes = size = 0
    first_t_ms = last_t_ms = None
    largest: tuple[int, int | None, int | None] = (-1, None, None)
    types: set[str] = set()
    for batch in read_sealed_frames(lake, row, columns=_SUMMARIZED):
        count += batch.num_rows
        keyframes += batch["is_keyframe"].true_count
        size += pc.sum(batch["bytes"]).as_py()
        first_t_ms = batch["t_ms"][0].as_py() if first_t_ms is None else first_t_ms
        last_t_ms = batch["t_ms"][-1].as_py()
        sizes = set(zip(batch["width"].to_pylist(), batch["height"].to_pylist(), strict=True))
        largest = max([largest, *((width * height, width, height) for width, height in sizes)])
        types.update(pc.unique(batch["content_type"]).to_pylist())
    return FramesSummary(
        count=count,
        keyframes=keyframes,
        bytes=size,
        first_t_ms=first_t_ms,
        last_t_ms=last_t_ms,
        width=largest[1],
        height=largest[2],
        content_types=sorted(types),
        storage=_count_frames_by_store(row, count),
    )


def _find_frame(db: DbSession, lake: Lake, row: SessionRow, frame_id: str) -> FrameRow:
    if row.is_hot:
        stored = db.get(FrameRow, (row.id, frame_id))
    else:
        records = _read_sealed_item(lake, row, "frames", item_id=frame_id)
        stored = next((convert_lake_frame_row(frame) for frame in records.iter_rows(named=True)), None)
    if stored is None:
        raise NotFound("frame", _NO_FRAME)
    return stored


def convert_lake_frame_row(row: dict[str, Any]) -> FrameRow:
    """Return a lake row in the form of the hot index row; the lake does not keep its stream position."""
    rects = orjson.loads(row["rects"]) if row["rects"] else {}
    shared = FrameRow.model_fields.keys() & row.keys()
    return FrameRow(position=0, **{name: row[name] for name in shared}, **rects)


def frame_to_wire(row: FrameRow) -> Frame:
    """Return the frame object of an index row."""
    shared = {name: getattr(row, name) for name in Frame.model_fields.keys() & FrameRow.model_fields.keys()}
    return Frame(id=row.frame_id, has_dom=row.dom_offset is not None, **shared)
