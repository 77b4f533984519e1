"""An upload of frames from its parts to its answer: gate, check, write, index. Contract §3."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from sqlmodel import Session as DbSession

from recorder.access.keys import Caller
from recorder.errors import InvalidState
from recorder.models.frame import FrameItem
from recorder.recording.batch_keys import BatchKey, Replayed
from recorder.recording.frame_checks import CheckedFrame, check_frames, item_digest
from recorder.recording.frames import FrameBatch, store_objects
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

    def prepare(self, database: Database, blobs: Blobs) -> FrameBatch | Replayed:
        """Check the frames and make their bytes durable; the answer itself for a batch sent before.

        Runs in a worker thread: it decodes, hashes and writes.

        Raises:
            RecorderError: as a check fails; then nothing was written.
        """
        frames = check_frames(self.items, self.parts)
        key = BatchKey.of("frames", self.batch_key, _digest(frames))
        with database.transaction(write=False) as db:
            earlier = self._gate(db, key)
        return store_objects(blobs, self.caller, self.session_id, frames, key) if earlier is None else earlier

    def _gate(self, db: DbSession, key: BatchKey | None) -> Replayed | None:
        """Turn away what the index would refuse, before megabytes are written; the index decides again."""
        row = find_session(db, self.caller.workspace_id, self.caller.mode, self.session_id)
        earlier = key.read_answer(db, self.session_id) if key else None
        if earlier is None and row.status != "recording":
            raise InvalidState(row.status, needed="session must be recording to take events and frames")
        return earlier


def _digest(frames: list[CheckedFrame]) -> bytes:
    """Digest of an upload's content, the same whether it came as JSON or as multipart."""
    return hashlib.sha256(b"".join(item_digest(frame.item, frame.sha256) for frame in frames)).digest()
