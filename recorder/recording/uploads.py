"""An upload of frames from its parts to its answer: check, gate, mask, write, index. Contract §3."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.access.keys import Caller
from recorder.access.usage import require_minutes
from recorder.errors import InvalidState
from recorder.masking.masker import Changes
from recorder.models.frame import FrameItem, FrameRow
from recorder.models.session import NEVER_CHARGED, SessionRow
from recorder.recording.batch_keys import BatchKey, Replayed
from recorder.recording.frame_checks import CheckedFrame, check_frames, frames_digest
from recorder.recording.frames import FrameBatch, store_objects
from recorder.recording.masked import mask_frames
from recorder.recording.sessions import find_session
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database


@dataclass(frozen=True)
class FrameUpload:
    """What a request brought, before any of it is believed."""

    caller: Caller
    session_id: str
    items: list[FrameItem]
    parts: Mapping[str, bytes]
    batch_key: str | None
    #: The frames and the digest of their content where they were checked before; `items` is empty then.
    checked: tuple[list[CheckedFrame], bytes] | None = None

    def check(self, database: Database) -> "CheckedUpload | Replayed":
        """Check the frames and their session; return the answer itself for a batch that was sent before.

        Runs in a worker thread: it decodes and hashes.

        Raises:
            RecorderError: as a check fails.
        """
        frames, digest = self.checked or _check(self.items, self.parts)
        key = BatchKey.of("frames", self.batch_key, digest, digest_key=self.caller.digest_key)
        with database.transaction(write=False) as db:
            row = find_session(db, self.caller.tenant, self.session_id)
            earlier = _gate(db, row, key, frames)
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
    key: BatchKey | None

    def store(self, blobs: Blobs, changes: Mapping[int, Changes]) -> FrameBatch:
        """Mask the frames and make their bytes durable; runs in a worker thread.

        Args:
            blobs: The store of pictures and snapshots.
            changes: The texts that masking changes, by the frame's index; see `frame_documents`.

        Raises:
            ValidationFailed: if a snapshot grows beyond four times its cap; then nothing was written.
        """
        frames = mask_frames(changes, self.frames)
        return store_objects(blobs, self.caller, self.session_id, frames, self.key)


def _gate(
    db: DbSession, row: SessionRow, key: BatchKey | None, frames: list[CheckedFrame]
) -> Replayed | None:
    """Turn away what the index would refuse, before megabytes are written; the index decides again."""
    earlier = key.read_answer(db, row.id) if key else None
    if earlier is None and row.status != "recording":
        raise InvalidState(row.status, needed="session must be recording to take events and frames")
    if earlier is None and row.charged_from_ms != NEVER_CHARGED and not _were_sent(db, row, frames):
        require_minutes(db, row.tenant)
    return earlier


def _were_sent(db: DbSession, row: SessionRow, frames: list[CheckedFrame]) -> bool:
    """Whether the session holds all of these ids: nothing is stored then, and nothing charged."""
    ids = {frame.id for frame in frames if frame.digest is not None}
    if len(ids) < len(frames):
        return False
    found = select(FrameRow.frame_id).where(FrameRow.session_id == row.id, col(FrameRow.frame_id).in_(ids))
    return len(db.exec(found).all()) == len(ids)


def _check(items: list[FrameItem], parts: Mapping[str, bytes]) -> tuple[list[CheckedFrame], bytes]:
    frames = check_frames(items, parts)
    return frames, frames_digest(frames)
