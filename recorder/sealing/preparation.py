"""Preparation of a sealing batch: all its rows as files of the lake, portion by portion. Design §3.

Files are written and durable, not committed. Small sessions are prepared together, a large one alone, in
portions that survive a kill.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

import pyarrow as pa

from recorder.digest import bucket_of
from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.recording.event_portions import decode_batch_items
from recorder.runtime import Runtime
from recorder.sealing.derived import EventWalk, FrameIndex, FrameWalk
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.failures import ContentError
from recorder.sealing.frame_digests import SeenFrame
from recorder.sealing.large_session import LargeSession
from recorder.sealing.portions import (
    DIGEST_WAIT_S,
    Hold,
    PortionLimits,
    content_of,
    read_event_batches,
    read_frames,
    read_waiting,
)
from recorder.sealing.rows import PreparedSession, build_session, build_steps
from recorder.storage.lake_files import LakeFile
from recorder.storage.lake_schemas import LAYOUTS, Kind
from recorder.tenant import Tenant

_WRITERS = 4

_Tables = dict[tuple[Kind, str], list[pa.RecordBatch]]


class Batch(Protocol):
    """A claimed batch of one lane."""

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
        """Return the session's place in the order in which its lane is sealed."""


class BatchPreparation:
    """Writes the files of one batch; call `advance` until it returns True.

    Attributes:
        files: the files to commit, by kind; complete once `advance` returned True.
        sessions: the sessions that the files hold, in the batch's order.
        failures: sessions that cannot be sealed; the files hold nothing of them.
        left_out: ids of sessions that were deleted or sealed since; the files hold nothing of them.
    """

    def __init__(
        self,
        runtime: Runtime,
        pool: DigestPool,
        batch: Batch,
        *,
        hold: Hold,
        limits: PortionLimits | None = None,
    ) -> None:
        """Prepare nothing yet.

        Args:
            hold: raises if the lease is lost; called in every transaction that writes.
        """
        self.files: dict[Kind, list[LakeFile]] = {}
        self.sessions: list[PreparedSession] = []
        self.failures: list[ContentError] = []
        self.left_out: list[str] = []
        self._runtime, self._pool, self._batch, self._hold = runtime, pool, batch, hold
        self._limits = limits or PortionLimits()
        self._units: list[_SmallSessions | LargeSession] | None = None
        self._name = f"{batch.number}-{batch.fence}"

    @property
    def has_large_session(self) -> bool:
        """Whether a session is prepared in portions, whose state is kept in memory."""
        return any(isinstance(unit, LargeSession) for unit in self._units or ())

    def advance(self) -> bool:
        """Prepare the next portion; return whether everything is written.

        Returns within a second or so, also where pictures take longer: their digests go on meanwhile.

        Raises:
            Unavailable: if a store or the database does not answer; call again later.
            LeaseLost: as `hold` raised it.
        """
        if self._units is None:
            self._units = self._plan()
        unit = next((unit for unit in self._units if not unit.is_done), None)
        if unit is not None:
            self._advance(unit)
        if all(unit.is_done for unit in self._units):
            self._leave_out_deleted()
        if all(unit.is_done for unit in self._units):
            self._finish()
            return True
        return False

    def leave_out(self, session_ids: Sequence[str]) -> None:
        """Take sessions out of the batch; `advance` must be called again until it returns True."""
        gone = set(session_ids) - set(self.left_out)
        self.left_out += sorted(gone)
        for unit in list(self._units or ()):
            if isinstance(unit, _SmallSessions):
                unit.leave_out(gone)
            elif unit.row.id in gone:
                self._remove(unit)

    def discard(self) -> None:
        """Delete stored progress; call it once the batch is committed and its sessions are marked."""
        for unit in self._units or ():
            if isinstance(unit, LargeSession):
                unit.discard()

    def close(self) -> None:
        """Give up digests that are under way; progress stays stored."""
        for unit in self._units or ():
            unit.close()

    def _plan(self) -> "list[_SmallSessions | LargeSession]":
        with self._runtime.database.transaction(write=False) as db:
            waiting = read_waiting(db, self._batch.session_ids)
        self.left_out = [one for one in self._batch.session_ids if one not in waiting]
        units: list[_SmallSessions | LargeSession] = []
        small: list[SessionRow] = []
        events = frames = size = 0
        limits = self._limits
        for row in (waiting[one] for one in self._batch.session_ids if one in waiting):
            if _is_large(row, limits):
                units.append(self._large(row, len(units)))
                continue
            events, frames, size = (
                events + row.event_count,
                frames + row.frame_count,
                size + row.event_bytes,
            )
            if small and (events > limits.events or frames > limits.frames or size > limits.bytes):
                units.append(self._small(small, len(units)))
                small = []
                events, frames, size = row.event_count, row.frame_count, row.event_bytes
            small.append(row)
        if small:
            units.append(self._small(small, len(units)))
        return units

    def _small(self, rows: list[SessionRow], unit: int) -> "_SmallSessions":
        name = f"{self._name}-{unit}"
        return _SmallSessions(self._runtime, self._pool, self._batch, rows, name=name, limits=self._limits)

    def _large(self, row: SessionRow, unit: int) -> LargeSession:
        return LargeSession(
            self._runtime,
            self._pool,
            row,
            date=self._batch.date,
            name=f"{self._name}-{unit}",
            hold=self._hold,
            limits=self._limits,
        )

    def _advance(self, unit: "_SmallSessions | LargeSession") -> None:
        if isinstance(unit, LargeSession):
            if not self._still_waiting(unit.session_ids):
                self.leave_out(unit.session_ids)
                return
            try:
                unit.advance()
            except ContentError as error:
                self._fail(unit, error)
            return
        unit.advance()
        for failure in unit.take_failures():
            self._fail(unit, failure)

    def _fail(self, unit: "_SmallSessions | LargeSession", error: ContentError) -> None:
        """Set a session aside; content that is gone because the session was deleted is no failure."""
        if self._still_waiting([error.session_id]):
            self.failures.append(error)
        else:
            self.left_out.append(error.session_id)
        if isinstance(unit, LargeSession):
            self._remove(unit)

    def _remove(self, unit: LargeSession) -> None:
        assert self._units is not None
        self._units.remove(unit)
        unit.discard()

    def _still_waiting(self, session_ids: Sequence[str]) -> dict[str, SessionRow]:
        with self._runtime.database.transaction(write=False) as db:
            return read_waiting(db, session_ids)

    def _leave_out_deleted(self) -> None:
        ids = [session_id for unit in self._units or () for session_id in unit.session_ids]
        waiting = self._still_waiting(ids)
        gone = [session_id for session_id in ids if session_id not in waiting]
        if gone:
            self.leave_out(gone)

    def _finish(self) -> None:
        """Collect what is written, and write the sessions' own rows."""
        batch = self._batch
        found: list[PreparedSession] = []
        files: list[tuple[Kind, LakeFile]] = []
        for unit in self._units or ():
            found += unit.prepared() if isinstance(unit, _SmallSessions) else [unit.prepared()]
            files += unit.files
        places = {session_id: place for place, session_id in enumerate(batch.session_ids)}
        found.sort(key=lambda one: places[one.row.id])
        tables: _Tables = {}
        for one in sorted(found, key=lambda one: _sort_key(one.row)):
            seal_seq = one.row.seal_seq or batch.seal_seq(
                one.row.id
            )  # one that is sealed again keeps its own
            rows = build_session(one, batch.date, seal_seq)
            tables.setdefault(("sessions", one.row.workflow), []).append(rows)
        files += _write_tables(self._runtime, batch, tables, self._name)
        self.sessions, self.files = found, {kind: [] for kind in LAYOUTS}
        for kind, file in files:
            self.files[kind].append(file)


class _SmallSessions:
    """Sessions that are prepared together, in one portion, once their frames are digested."""

    def __init__(
        self,
        runtime: Runtime,
        pool: DigestPool,
        batch: Batch,
        rows: Sequence[SessionRow],
        *,
        name: str,
        limits: PortionLimits,
    ) -> None:
        self.files: list[tuple[Kind, LakeFile]] = []
        self.is_done = False
        self._runtime, self._pool, self._batch = runtime, pool, batch
        self._name, self._limits = name, limits
        # In the order of the files, so that nothing need be sorted later.
        self._rows = sorted(rows, key=_sort_key)
        self._prepared: list[PreparedSession] = []
        self._failures: list[ContentError] = []
        #: Frames whose digests are under way, by session; None before they are read.
        self._frames: dict[str, list[FrameRow]] = {}
        self._digests: dict[str, Future[list[SeenFrame]]] | None = None

    @property
    def session_ids(self) -> list[str]:
        """Return the ids of the sessions that are not set aside."""
        return [row.id for row in self._rows]

    def advance(self) -> None:
        """Prepare all sessions if their digests are there by now; failures are those of single sessions."""
        ids = self.session_ids
        if self._digests is None:
            with self._runtime.database.transaction(write=False) as db:
                self._frames = read_frames(db, ids)
            self._digests = {one: self._pool.submit(one, frames) for one, frames in self._frames.items()}
        if wait(self._digests.values(), DIGEST_WAIT_S).not_done:
            return
        with self._runtime.database.transaction(write=False) as db:
            events = read_event_batches(db, ids)
        frames, digests = self._frames, self._digests
        self._frames, self._digests = {}, None
        tables: _Tables = {}
        prepared: list[PreparedSession] = []
        failures: list[ContentError] = []
        for row in self._rows:
            try:
                one, rows = self._prepare(
                    row, events.pop(row.id, []), frames.pop(row.id, []), digests.pop(row.id, None)
                )
            except ContentError as error:
                failures.append(error)
                continue
            prepared.append(one)
            for kind, batches in rows.items():
                if batches:
                    tables.setdefault((kind, row.workflow), []).extend(batches)
        self.files = _write_tables(self._runtime, self._batch, tables, self._name)
        failed = {error.session_id for error in failures}
        self._rows = [row for row in self._rows if row.id not in failed]
        self._prepared, self._failures, self.is_done = prepared, failures, True

    def prepared(self) -> list[PreparedSession]:
        """Return what the graph and the control plane need, once all is written."""
        return self._prepared

    def take_failures(self) -> list[ContentError]:
        """Return the failures of the last `advance`."""
        failures, self._failures = self._failures, []
        return failures

    def leave_out(self, session_ids: set[str]) -> None:
        """Take sessions out; files that hold their rows are written again without them."""
        kept = [row for row in self._rows if row.id not in session_ids]
        if len(kept) < len(self._rows):
            self._rows, self._prepared, self.files, self.is_done = kept, [], [], not kept
        if self._digests is not None:
            for session_id in session_ids & self._digests.keys():
                self._digests.pop(session_id).cancel()

    def close(self) -> None:
        """Give up digests that are under way."""
        for digests in (self._digests or {}).values():
            digests.cancel()

    def _prepare(
        self,
        row: SessionRow,
        stored: Sequence[EventBatchRow],
        frames: Sequence[FrameRow],
        digests: "Future[list[SeenFrame]] | None",
    ) -> tuple[PreparedSession, dict[Kind, list[pa.RecordBatch]]]:
        seen = digests.result() if digests is not None else []
        date = self._batch.date
        with content_of(row.id):
            items = sorted(item for batch in stored for item in decode_batch_items(batch))
            index = FrameIndex([(frame.t_ms, frame.frame_id) for frame in frames])
            frame_walk = FrameWalk(row, date, index)
            event_walk = EventWalk(row, date, index, max_steps=self._limits.steps)
            frame_rows = frame_walk.add(frames, seen)[0] if frames else None
            rows: dict[Kind, list[pa.RecordBatch]] = {
                "events": [event_walk.add(items)] if items else [],
                "frames": [event_walk.with_events(frame_rows)] if frame_rows is not None else [],
                "steps": list(build_steps(row, date, event_walk.steps.steps)),
            }
            prepared = PreparedSession(
                row=row,
                steps=event_walk.steps.steps,
                event_count=event_walk.event_count,
                action_count=event_walk.action_count,
                frame_count=len(frames),
                image_bytes=frame_walk.image_bytes,
                payload_bytes=event_walk.payload_bytes,
                rows_sha256=event_walk.rows_sha256,
            )
            # Counts that no column can hold are the session's fault too.
            build_session(prepared, date, 1)
        return prepared, rows


def _is_large(row: SessionRow, limits: PortionLimits) -> bool:
    return (
        row.event_count > limits.events or row.frame_count > limits.frames or row.event_bytes > limits.bytes
    )


def _sort_key(row: SessionRow) -> tuple[int, str]:
    return (bucket_of(row.id), row.id)


def _write_tables(runtime: Runtime, batch: Batch, tables: _Tables, name: str) -> list[tuple[Kind, LakeFile]]:
    """Write one file for each kind and workflow, several side by side: each waits for the disk."""

    def write(place: tuple[Kind, str]) -> tuple[Kind, LakeFile]:
        kind, workflow = place
        # In order already: `_sort_key`.
        rows = pa.Table.from_batches(tables[place]).combine_chunks().to_batches()
        file = runtime.lake.write_file(
            kind, batch.tenant, rows, workflow=workflow, date=batch.date, name=name
        )
        return kind, file

    if len(tables) <= 1:
        return [write(place) for place in tables]
    with ThreadPoolExecutor(min(_WRITERS, len(tables)), thread_name_prefix="lake") as writers:
        return list(writers.map(write, tables))
