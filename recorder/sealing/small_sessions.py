"""Small sessions of a batch, prepared together in one portion. Design §3."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

import pyarrow as pa

from recorder.hashing import compute_hash_bucket
from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.recording.batch_items import decode_batch_items
from recorder.runtime import Runtime
from recorder.sealing.derived_rows import EventRowBuilder, FrameRowBuilder
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.failures import ContentError, convert_to_content_errors
from recorder.sealing.frame_digests import FrameDigest
from recorder.sealing.frame_index import FrameIndex
from recorder.sealing.lake_rows import SessionWithLakeRows, build_session_row, build_step_rows
from recorder.sealing.portions import PortionLimits, read_event_batches_for_portion, read_frames_for_portion
from recorder.storage.lake_files import LakeFile
from recorder.storage.lake_schemas import LakeKind
from recorder.tenant import Tenant

_WRITERS = 4

#: Rows by kind and workflow.
TableRows = dict[tuple[LakeKind, str], list[pa.RecordBatch]]


class SealingBatch(Protocol):
    """Claimed batch of one lane."""

    @property
    def tenant(self) -> Tenant: ...
    @property
    def number(self) -> int: ...
    @property
    def session_ids(self) -> list[str]: ...
    @property
    def date(self) -> str:
        """Partition of the lake that takes the batch's rows."""

    @property
    def fence(self) -> int:
        """Fence of the lease under which the batch is worked on."""

    def seal_seq(self, session_id: str) -> int:
        """Return the session's number in the sealing order of its lane."""


class SmallSessions:
    """Sessions that are prepared in one portion once their frames are digested."""

    def __init__(
        self,
        runtime: Runtime,
        pool: DigestPool,
        batch: SealingBatch,
        rows: Sequence[SessionRow],
        *,
        name: str,
        limits: PortionLimits,
    ) -> None:
        self.files: list[tuple[LakeKind, LakeFile]] = []
        self.is_done = False
        self._runtime, self._pool, self._batch = runtime, pool, batch
        self._name, self._limits = name, limits
        # In the order of the files, so that rows need no sorting later.
        self._rows = sorted(rows, key=sort_key)
        self._prepared: list[SessionWithLakeRows] = []
        self._failures: list[ContentError] = []
        #: Frames whose digests are under way, by session.
        self._frames: dict[str, list[FrameRow]] = {}
        self._digests: dict[str, Future[list[FrameDigest]]] | None = None

    @property
    def session_ids(self) -> list[str]:
        """Ids of the sessions that are not set aside."""
        return [row.id for row in self._rows]

    def advance(self) -> None:
        """Prepare all sessions if their digests are ready; errors of single sessions become failures."""
        ids = self.session_ids
        if self._digests is None:
            with self._runtime.database.transaction(write=False) as db:
                self._frames = read_frames_for_portion(db, ids)
            workspace_id = self._batch.tenant.workspace_id
            self._digests = {
                session_id: self._pool.submit(session_id, frames, workspace_id=workspace_id)
                for session_id, frames in self._frames.items()
            }
        if wait(self._digests.values(), self._limits.digest_wait_s).not_done:
            return
        with self._runtime.database.transaction(write=False) as db:
            events = read_event_batches_for_portion(db, ids)
        frames, digests = self._frames, self._digests
        self._frames, self._digests = {}, None
        tables: TableRows = {}
        prepared: list[SessionWithLakeRows] = []
        failures: list[ContentError] = []
        for row in self._rows:
            try:
                session, rows = self._prepare_session(
                    row, events.pop(row.id, []), frames.pop(row.id, []), digests.pop(row.id, None)
                )
            except ContentError as error:
                failures.append(error)
                continue
            prepared.append(session)
            for kind, batches in rows.items():
                if batches:
                    tables.setdefault((kind, row.workflow), []).extend(batches)
        self.files = write_lake_files(self._runtime, self._batch, tables, self._name)
        failed = {error.session_id for error in failures}
        self._rows = [row for row in self._rows if row.id not in failed]
        self._prepared, self._failures, self.is_done = prepared, failures, True

    def list_prepared(self) -> list[SessionWithLakeRows]:
        """Return the prepared sessions for the graph and the control plane, once all files are written."""
        return self._prepared

    def take_failures(self) -> list[ContentError]:
        """Return and forget the failures of the last `advance`."""
        failures, self._failures = self._failures, []
        return failures

    def leave_out(self, session_ids: set[str]) -> None:
        """Take sessions out of the portion; files with their rows are written again without them."""
        remaining = [row for row in self._rows if row.id not in session_ids]
        if len(remaining) < len(self._rows):
            self._rows, self._prepared, self.files, self.is_done = remaining, [], [], not remaining
        if self._digests is not None:
            for session_id in session_ids & self._digests.keys():
                self._digests.pop(session_id).cancel()

    def close(self) -> None:
        """Cancel digests that are under way."""
        for digests in (self._digests or {}).values():
            digests.cancel()

    def _prepare_session(
        self,
        row: SessionRow,
        stored: Sequence[EventBatchRow],
        frames: Sequence[FrameRow],
        digests: "Future[list[FrameDigest]] | None",
    ) -> tuple[SessionWithLakeRows, dict[LakeKind, list[pa.RecordBatch]]]:
        """Return the lake rows of a session, with what the mark as sealed stores of it."""
        frame_digests = digests.result() if digests is not None else []
        date = self._batch.date
        with convert_to_content_errors(row.id):
            items = sorted(item for batch in stored for item in decode_batch_items(batch))
            index = FrameIndex([(frame.t_ms, frame.frame_id) for frame in frames])
            frame_walk = FrameRowBuilder(row, date, index)
            event_walk = EventRowBuilder(row, date, index, max_steps=self._limits.steps)
            frame_rows = frame_walk.add(frames, frame_digests)[0] if frames else None
            rows: dict[LakeKind, list[pa.RecordBatch]] = {
                "events": [event_walk.add(items)] if items else [],
                "frames": [event_walk.fill_frame_event_counts(frame_rows)] if frame_rows is not None else [],
                "steps": list(build_step_rows(row, date, event_walk.steps.steps)),
            }
            prepared = SessionWithLakeRows(
                row=row,
                steps=event_walk.steps.steps,
                event_count=event_walk.event_count,
                action_count=event_walk.action_count,
                frame_count=len(frames),
                image_bytes=frame_walk.image_bytes,
                payload_bytes=event_walk.payload_bytes,
                rows_sha256=event_walk.rows_sha256,
            )
            # Counts that no column can hold are errors of the session's content too.
            build_session_row(prepared, date, 1)
        return prepared, rows


def sort_key(row: SessionRow) -> tuple[int, str]:
    """Return the key by which lake files order sessions."""
    return (compute_hash_bucket(row.id), row.id)


def write_lake_files(
    runtime: Runtime, batch: SealingBatch, tables: TableRows, name: str
) -> list[tuple[LakeKind, LakeFile]]:
    """Write one file for each kind and workflow, several in parallel, since each waits for the disk."""

    def write(key: tuple[LakeKind, str]) -> tuple[LakeKind, LakeFile]:
        kind, workflow = key
        # The rows are sorted already: `sort_key`.
        rows = pa.Table.from_batches(tables[key]).combine_chunks().to_batches()
        file = runtime.lake.write_file(
            kind, batch.tenant, rows, workflow=workflow, date=batch.date, name=name
        )
        return kind, file

    if len(tables) <= 1:
        return [write(key) for key in tables]
    with ThreadPoolExecutor(min(_WRITERS, len(tables)), thread_name_prefix="lake") as writers:
        return list(writers.map(write, tables))
