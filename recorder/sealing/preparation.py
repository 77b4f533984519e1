"""Preparation of a sealing batch: units of small and large sessions, and the files of the lake. Design §3.

Files are durable but not committed. Small sessions are prepared together, a large session alone, in
portions that survive a kill.
"""

from collections.abc import Sequence
from operator import add, gt
from typing import NamedTuple

from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing.batches import ClaimedBatch
from recorder.sealing.digest_pool import DigestPool
from recorder.sealing.failures import ContentError
from recorder.sealing.lake_rows import SessionWithLakeRows, build_session_row
from recorder.sealing.lanes import Lane
from recorder.sealing.large_session import LargeSession
from recorder.sealing.portions import (
    PortionLimits,
    RequireLease,
    count_pixels_for_portions,
    read_waiting_rows_for_portions,
)
from recorder.sealing.small_sessions import SealingBatch, SmallSessions, TableRows, sort_key, write_lake_files
from recorder.storage.lake_files import LakeFile
from recorder.storage.lake_schemas import LAYOUTS, LakeKind

#: Preparations that are kept until their lane is taken again. Those of large sessions hold much memory.
_MAX_PAUSED, _MAX_PAUSED_LARGE = 32, 4


class BatchPreparation:
    """Writer of the files of one batch; call `advance` until it returns True.

    Attributes:
        files: the files to commit, by kind; complete once `advance` returned True.
        sessions: the sessions in the files, in the batch's order.
        failures: errors of sessions that cannot be sealed; the files hold no rows of them.
        left_out: ids of sessions that were deleted or sealed since; the files hold no rows of them.
    """

    def __init__(
        self,
        runtime: Runtime,
        pool: DigestPool,
        batch: SealingBatch,
        *,
        require_lease: RequireLease,
        limits: PortionLimits | None = None,
    ) -> None:
        """Start without preparing a session.

        Args:
            runtime: the deployment.
            pool: computes the digests of frames.
            batch: the claimed batch.
            require_lease: raises `LeaseLost`; called in every transaction that writes.
            limits: size of one portion.
        """
        self.files: dict[LakeKind, list[LakeFile]] = {}
        self.sessions: list[SessionWithLakeRows] = []
        self.failures: list[ContentError] = []
        self.left_out: list[str] = []
        self._runtime, self._pool, self._batch = runtime, pool, batch
        self._require_lease = require_lease
        self._limits = limits or PortionLimits()
        self._units: list[SmallSessions | LargeSession] | None = None
        self._name = f"{batch.number}-{batch.fence}"

    @property
    def has_large_session(self) -> bool:
        """Return whether the batch has a session in portions, whose state takes much memory."""
        return any(isinstance(unit, LargeSession) for unit in self._units or ())

    def advance(self) -> bool:
        """Prepare the next portion; return whether all files are written.

        The call takes about a second, also if pictures take longer: their digests continue in the pool.

        Raises:
            Unavailable: if a store or the database does not answer; call again later.
            LeaseLost: if `require_lease` raised it.
        """
        if self._units is None:
            self._units = self._plan_units()
        unit = next((unit for unit in self._units if not unit.is_done), None)
        if unit is not None:
            self._advance_unit(unit)
        if all(unit.is_done for unit in self._units):
            self._leave_out_deleted_sessions()
        if all(unit.is_done for unit in self._units):
            self._collect_files()
            return True
        return False

    def leave_out(self, session_ids: Sequence[str]) -> None:
        """Take sessions out of the batch; `advance` must be called again until it returns True."""
        added = set(session_ids) - set(self.left_out)
        self.left_out += sorted(added)
        for unit in list(self._units or ()):
            if isinstance(unit, SmallSessions):
                unit.leave_out(added)
            elif unit.row.id in added:
                self._remove_session(unit)

    def discard(self) -> None:
        """Delete stored progress; call it once the batch is committed and its sessions are marked."""
        for unit in self._units or ():
            if isinstance(unit, LargeSession):
                unit.discard()

    def close(self) -> None:
        """Cancel digests that are under way; progress stays stored."""
        for unit in self._units or ():
            unit.close()

    def _plan_units(self) -> "list[SmallSessions | LargeSession]":
        """Divide the waiting sessions of the batch: small ones together, large ones alone."""
        with self._runtime.database.transaction(write=False) as db:
            waiting = read_waiting_rows_for_portions(db, self._batch.session_ids)
            with_frames = [row.id for row in waiting.values() if 0 < row.frame_count <= self._limits.frames]
            pixels_of = count_pixels_for_portions(db, with_frames)
        self.left_out = [session_id for session_id in self._batch.session_ids if session_id not in waiting]
        units: list[SmallSessions | LargeSession] = []
        small: list[SessionRow] = []
        limits = self._limits
        total = _ContentSize()
        for row in (waiting[key] for key in self._batch.session_ids if key in waiting):
            size = _ContentSize(row.event_count, row.frame_count, row.event_bytes, pixels_of.get(row.id, 0))
            if size.exceeds(limits):
                units.append(self._open_large_session(row, len(units)))
                continue
            total = total.plus(size)
            if small and total.exceeds(limits):
                units.append(self._open_small_sessions(small, len(units)))
                small, total = [], size
            small.append(row)
        if small:
            units.append(self._open_small_sessions(small, len(units)))
        return units

    def _open_small_sessions(self, rows: list[SessionRow], unit: int) -> "SmallSessions":
        name = f"{self._name}-{unit}"
        return SmallSessions(self._runtime, self._pool, self._batch, rows, name=name, limits=self._limits)

    def _open_large_session(self, row: SessionRow, unit: int) -> LargeSession:
        return LargeSession(
            self._runtime,
            self._pool,
            row,
            date=self._batch.date,
            name=f"{self._name}-{unit}",
            require_lease=self._require_lease,
            limits=self._limits,
        )

    def _advance_unit(self, unit: "SmallSessions | LargeSession") -> None:
        """Prepare the next portion of a large session or of small ones; leave out what was deleted."""
        if isinstance(unit, LargeSession):
            if not self._read_waiting_sessions(unit.session_ids):
                self.leave_out(unit.session_ids)
                return
            try:
                unit.advance()
            except ContentError as error:
                self._add_failure(unit, error)
            return
        unit.advance()
        for failure in unit.take_failures():
            self._add_failure(unit, failure)

    def _add_failure(self, unit: "SmallSessions | LargeSession", error: ContentError) -> None:
        """Add a failure of a session; missing content of a deleted session is no failure."""
        if self._read_waiting_sessions([error.session_id]):
            self.failures.append(error)
        else:
            self.left_out.append(error.session_id)
        if isinstance(unit, LargeSession):
            self._remove_session(unit)

    def _remove_session(self, unit: LargeSession) -> None:
        assert self._units is not None
        self._units.remove(unit)
        unit.discard()

    def _read_waiting_sessions(self, session_ids: Sequence[str]) -> dict[str, SessionRow]:
        with self._runtime.database.transaction(write=False) as db:
            return read_waiting_rows_for_portions(db, session_ids)

    def _leave_out_deleted_sessions(self) -> None:
        ids = [session_id for unit in self._units or () for session_id in unit.session_ids]
        waiting = self._read_waiting_sessions(ids)
        gone = [session_id for session_id in ids if session_id not in waiting]
        if gone:
            self.leave_out(gone)

    def _collect_files(self) -> None:
        """Collect the written files, and write the rows of the sessions table."""
        batch = self._batch
        sessions: list[SessionWithLakeRows] = []
        files: list[tuple[LakeKind, LakeFile]] = []
        for unit in self._units or ():
            sessions += unit.list_prepared()
            files += unit.files
        ranks = {session_id: rank for rank, session_id in enumerate(batch.session_ids)}
        sessions.sort(key=lambda session: ranks[session.row.id])
        tables: TableRows = {}
        for session in sorted(sessions, key=lambda session: sort_key(session.row)):
            # A session that is sealed again keeps its number.
            seal_seq = session.row.seal_seq or batch.seal_seq(session.row.id)
            rows = build_session_row(session, batch.date, seal_seq)
            tables.setdefault(("sessions", session.row.workflow), []).append(rows)
        files += write_lake_files(self._runtime, batch, tables, self._name)
        self.sessions, self.files = sessions, {kind: [] for kind in LAYOUTS}
        for kind, file in files:
            self.files[kind].append(file)


class _ContentSize(NamedTuple):
    """Size of one session, or of several together."""

    events: int = 0
    frames: int = 0
    bytes: int = 0
    pixels: int = 0

    def plus(self, other: "_ContentSize") -> "_ContentSize":
        return _ContentSize(*map(add, self, other))

    def exceeds(self, limits: PortionLimits) -> bool:
        """Return whether it is more than one portion."""
        return any(map(gt, self, (limits.events, limits.frames, limits.bytes, limits.pixels)))


class _PausedPreparation(NamedTuple):
    """Preparation of a batch, with the fence of the lease under which it was paused."""

    fence: int
    number: int
    preparation: BatchPreparation


class PausedPreparations:
    """Preparations that a run keeps until it takes their lanes again; of too many the oldest go."""

    def __init__(self) -> None:
        self._kept: dict[Lane, _PausedPreparation] = {}

    @property
    def fences(self) -> dict[Lane, int]:
        """Lanes of the batches whose preparations are kept, with the fences under which they were paused."""
        return {lane: kept.fence for lane, kept in self._kept.items()}

    def keep(self, batch: ClaimedBatch, preparation: BatchPreparation, *, fence: int) -> None:
        """Keep the preparation of a batch, whose lane is released."""
        self._drop(batch.lane)
        large = [lane for lane, kept in self._kept.items() if kept.preparation.has_large_session]
        if preparation.has_large_session and len(large) >= _MAX_PAUSED_LARGE:
            self._drop(large[0])
        elif len(self._kept) >= _MAX_PAUSED:
            self._drop(next(iter(self._kept)))
        self._kept[batch.lane] = _PausedPreparation(fence, batch.number, preparation)

    def take(self, batch: ClaimedBatch) -> BatchPreparation | None:
        """Return the preparation of a batch; None without one, or if another run had the lane since.

        The lane's preparation is not kept any longer in any case.
        """
        kept = self._kept.get(batch.lane)
        if kept is not None and (kept.number, kept.fence + 1) == (batch.number, batch.fence):
            del self._kept[batch.lane]
            return kept.preparation
        self._drop(batch.lane)
        return None

    def _drop(self, lane: Lane) -> None:
        """Close the preparation of a lane, if one is kept."""
        kept = self._kept.pop(lane, None)
        if kept is not None:
            kept.preparation.close()
