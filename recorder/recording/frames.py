"""Frames stored: packed into one durable object per upload, indexed by the writer. Spec §4.1, contract §3."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import orjson
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.access.keys import Caller
from recorder.access.quota import require_quota_minutes
from recorder.errors import EventConflict, Problem, RecorderError, SessionNotRecording
from recorder.ids import new_id
from recorder.masking.masker import Changes
from recorder.models.frame import FrameItem, FrameRow
from recorder.models.session import NEVER_CHARGED, SessionRow
from recorder.recording.driver_cursor import IngestCursor
from recorder.recording.frame_validation import CheckedFrame, hash_frame_upload, validate_frames
from recorder.recording.ingest_statements import (
    BatchIdempotencyKey,
    RepeatedAnswer,
    lock_session_for_ingest,
    require_recording_for_ingest,
    reserve_item_positions,
)
from recorder.recording.item_masking import mask_frames
from recorder.recording.session_locks import SessionKey
from recorder.recording.sessions import find_session
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database


@dataclass(slots=True)
class FrameBatch:
    """A batch of frames whose bytes are in the blob store, ready to be indexed; it holds no bytes itself."""

    caller: Caller
    session_id: str
    frames: list[CheckedFrame]
    #: Key of the object that holds the batch, and the position of every picture and snapshot in it.
    object_key: str
    locations: list[tuple[int, int, int | None, int | None]]
    key: BatchIdempotencyKey | None
    #: How many frames were stored; those sent before are not.
    n: int = 0
    #: Whether an index row points into the object: not so where all was sent before.
    is_used: bool = False
    #: Size of the object.
    object_bytes: int = 0

    @property
    def kind(self) -> Literal["events", "frames"]:
        """Kind of the items; see `ingest.IngestBatch`."""
        return "frames"

    @property
    def session(self) -> SessionKey:
        """Workspace, mode and id of the session."""
        tenant = self.caller.tenant
        return tenant.workspace_id, tenant.mode, self.session_id

    def store(self, cursor: IngestCursor) -> bytes:
        """Write the index rows; see `ingest.IngestBatch`."""
        session = self.session
        lock_session_for_ingest(cursor, session)
        if self.key is not None:
            earlier = self.key.find_earlier_answer(cursor, self.session_id)
            if earlier is not None:
                return earlier
        fresh = self._without_known(cursor, session)
        times = [self.frames[index].item.t_ms for index in fresh]
        stored = _read_stored_frame_pictures(
            cursor, self.session_id, [self.frames[index].sha256 for index in fresh]
        )
        self.is_used = any(
            self.frames[index].sha256 not in stored or self.locations[index][2] is not None for index in fresh
        )
        first, _, frame_count = reserve_item_positions(
            cursor,
            session,
            self.caller.tier,
            events=0,
            frames=len(fresh),
            max_t_ms=max(times, default=0),
            frame_bytes=self.object_bytes if self.is_used else 0,
        )
        rows = [self._make_index_row(index, first + offset, stored) for offset, index in enumerate(fresh)]
        if rows:
            cursor.many(_INSERT, rows)
        self.n = len(rows)
        answer = self._make_answer(len(fresh), frame_count)
        if self.key is not None:
            self.key.store_answer(cursor, self.session_id, answer)
        return answer

    def _without_known(self, cursor: IngestCursor, session: tuple[str, str, str]) -> list[int]:
        """Return the indices of the frames that were not sent before."""
        named = [frame.id for frame in self.frames if frame.is_named]
        known = _read_stored_frames(cursor, self.session_id, named) if named else {}
        fresh, conflicts = [], []
        for index, frame in enumerate(self.frames):
            if frame.id not in known:
                fresh.append(index)
                if frame.is_named:
                    known[frame.id] = frame.digest
            # A frame whose id the service assigned was hashed without one.
            elif known[frame.id] not in (frame.digest, frame.digest_without_id or frame.digest):
                text = "This id came before with other content."
                conflicts.append(Problem("body", f"/frames/{index}/id", "event_conflict", text))
        if conflicts:
            require_recording_for_ingest(cursor, session)
            raise EventConflict(conflicts)
        return fresh

    def _make_index_row(
        self, index: int, position: int, stored: dict[str, tuple[str, int, int]]
    ) -> tuple[Any, ...]:
        """Return the row of a frame for `frames`, with its picture's location and those of equal pictures."""
        frame, (offset, length, dom_offset, dom_length) = self.frames[index], self.locations[index]
        item = frame.item
        location = stored.setdefault(frame.sha256, (self.object_key, offset, length))
        has_dom = dom_offset is not None
        columns = (frame.id, position, item.t_ms, item.content_type, frame.width, frame.height)
        picture = (_read_frame_value_or_none(item.keyframe), length, frame.sha256, *location)
        dom = (self.object_key if has_dom else None, dom_offset, dom_length)
        rects = (
            _encode_optional_frame_json(item.active_rect),
            _encode_optional_frame_json(item.masked_rects),
        )
        tail = (_read_frame_value_or_none(item.url), *rects, frame.digest, clock.now_ms())
        return (self.session_id, *columns, *picture, *dom, *tail)

    def _make_answer(self, accepted: int, frame_count: int) -> bytes:
        data = [
            {"id": frame.id, "t_ms": frame.item.t_ms, "sha256": frame.sha256, "bytes": length}
            for frame, (_, length, _, _) in zip(self.frames, self.locations, strict=True)
        ]
        duplicates = len(self.frames) - accepted
        return orjson.dumps(
            {"accepted": accepted, "duplicates": duplicates, "data": data, "frame_count": frame_count}
        )


def store_frame_object(
    blobs: Blobs, caller: Caller, session_id: str, frames: list[CheckedFrame], key: BatchIdempotencyKey | None
) -> FrameBatch:
    """Write pictures and snapshots as one durable object; equal pictures are stored in it once."""
    chunks: list[bytes | memoryview] = []
    locations: list[tuple[int, int, int | None, int | None]] = []
    by_digest: dict[str, tuple[int, int]] = {}
    end = 0
    for frame in frames:
        if frame.sha256 not in by_digest:
            by_digest[frame.sha256] = (end, len(frame.data))
            chunks.append(frame.data)
            end += len(frame.data)
        dom_offset = dom_length = None
        if frame.dom is not None:
            dom_offset, dom_length = end, len(frame.dom)
            chunks.append(frame.dom)
            end += len(frame.dom)
        locations.append((*by_digest[frame.sha256], dom_offset, dom_length))
    object_key = f"frames/{caller.workspace_id}/{session_id}/{new_id('frm')}.pack"
    blobs.put_parts(object_key, chunks)
    stored = [frame.without_bytes() for frame in frames]
    return FrameBatch(caller, session_id, stored, object_key, locations, key, object_bytes=end)


def discard_frame_object(blobs: Blobs, batch: FrameBatch) -> None:
    """Remove the object of a batch that was refused; retention removes what this misses."""
    try:
        blobs.delete(batch.object_key)
    except RecorderError:
        return


def _read_stored_frames(
    cursor: IngestCursor, session_id: str, frame_ids: list[str]
) -> dict[str, bytes | None]:
    marks = ", ".join("?" * len(frame_ids))
    statement = f"SELECT frame_id, digest FROM frames WHERE session_id = ? AND frame_id IN ({marks})"  # noqa: S608
    rows = cursor.all(statement, (session_id, *frame_ids))
    return {frame_id: None if digest is None else bytes(digest) for frame_id, digest in rows}


def _read_stored_frame_pictures(
    cursor: IngestCursor, session_id: str, digests: list[str]
) -> dict[str, tuple[str, int, int]]:
    """Return the locations of pictures that this session holds; equal bytes are kept once per session.

    One frame of each picture is read: all frames of a screen that does not change may show the same one.
    """
    distinct = list(dict.fromkeys(digests))
    if not distinct:
        return {}
    statement = " UNION ALL ".join([_FIND_PICTURE] * len(distinct))
    parameters = [value for digest in distinct for value in (session_id, digest)]
    return {row[0]: (row[1], row[2], row[3]) for row in cursor.all(statement, parameters)}


def _read_frame_value_or_none(value: Any) -> Any:
    return None if value is msgspec.UNSET else value


def _encode_optional_frame_json(value: Any) -> str | None:
    # The column reads SQL NULL and JSON null alike; one of them is enough.
    return "null" if value is msgspec.UNSET or value is None else orjson.dumps(value).decode()


_FIND_PICTURE = (
    'SELECT * FROM (SELECT sha256, object, "offset", length FROM frames '
    "WHERE session_id = ? AND sha256 = ? LIMIT 1) AS picture"
)
_INSERT = (
    "INSERT INTO frames (session_id, frame_id, position, t_ms, content_type, width, height, keyframe, bytes, "
    'sha256, object, "offset", length, dom_object, dom_offset, dom_length, url, active_rect, masked_rects, '
    "digest, received_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class FrameUpload:
    """Content of an upload before it is checked."""

    caller: Caller
    session_id: str
    items: list[FrameItem]
    parts: Mapping[str, bytes]
    batch_key: str | None
    #: The frames and the digest of their content where they were checked before; `items` is empty then.
    checked: tuple[list[CheckedFrame], bytes] | None = None

    def check(self, database: Database) -> "CheckedUpload | RepeatedAnswer":
        """Check the frames and their session; return the answer itself for a batch that was sent before.

        Runs in a worker thread: it decodes and hashes.

        Raises:
            RecorderError: as a check fails.
        """
        frames, digest = self.checked or _check_and_hash_frames(self.items, self.parts)
        key = BatchIdempotencyKey.of("frames", self.batch_key, digest, digest_key=self.caller.digest_key)
        with database.transaction(write=False) as db:
            row = find_session(db, self.caller.tenant, self.session_id)
            earlier = _require_storable_upload(db, row, key, frames)
        return (
            CheckedUpload(self.caller, self.session_id, row.workflow, frames, key)
            if earlier is None
            else earlier
        )


@dataclass(frozen=True)
class CheckedUpload:
    """Frames that were checked, but are neither masked nor stored yet."""

    caller: Caller
    session_id: str
    workflow: str
    frames: list[CheckedFrame]
    key: BatchIdempotencyKey | None

    def store(self, blobs: Blobs, changes: Mapping[int, Changes]) -> FrameBatch:
        """Mask the frames and make their bytes durable; runs in a worker thread.

        Args:
            blobs: The store of pictures and snapshots.
            changes: The texts that masking changes, by the frame's index; see `list_frame_texts_to_mask`.

        Raises:
            ValidationFailed: if a snapshot grows beyond four times its cap; then nothing was written.
        """
        frames = mask_frames(changes, self.frames)
        return store_frame_object(blobs, self.caller, self.session_id, frames, self.key)


def _require_storable_upload(
    db: DbSession, row: SessionRow, key: BatchIdempotencyKey | None, frames: list[CheckedFrame]
) -> RepeatedAnswer | None:
    """Refuse an upload that the index would refuse, before its pictures are written; the index checks again.

    Returns:
        The answer to an earlier upload of the same batch; None if there was none.
    """
    earlier = key.read_answer(db, row.id) if key else None
    if earlier is None and row.status != "recording":
        raise SessionNotRecording(row.status, purpose="to take events and frames")
    if earlier is None and row.charged_from_ms != NEVER_CHARGED and not _were_frames_stored(db, row, frames):
        require_quota_minutes(db, row.tenant)
    return earlier


def _were_frames_stored(db: DbSession, row: SessionRow, frames: list[CheckedFrame]) -> bool:
    """Return whether the session holds all of these ids: nothing is stored then, and nothing charged."""
    ids = {frame.id for frame in frames if frame.is_named}
    if len(ids) < len(frames):
        return False
    known = select(FrameRow.frame_id).where(FrameRow.session_id == row.id, col(FrameRow.frame_id).in_(ids))
    return len(db.exec(known).all()) == len(ids)


def _check_and_hash_frames(
    items: list[FrameItem], parts: Mapping[str, bytes]
) -> tuple[list[CheckedFrame], bytes]:
    frames = validate_frames(items, parts)
    return frames, hash_frame_upload(frames)
