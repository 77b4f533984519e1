"""Journal of a live replay in the database: writes before and after each step, and the result.

Spec §4.6, contract §8.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal

from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder import clock
from recorder.models.operations import LeaseRow
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.models.session import Actor, SessionCreate
from recorder.models.workspace import WorkspaceRow
from recorder.recording.sessions import create_session
from recorder.replay_service.requests.replay_and_recovery_rows import make_undeleted_session_conditions
from recorder.replay_service.requests.replays import end_replay, end_replay_as_failed
from recorder.replays.replay_policy import DECISION_TIME
from recorder.replays.replay_results import Decision, Divergence, ReplayError, ReplaySummary, StepResult
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease

#: The row is looked at so often while a step waits.
_CHECK_S = 1.0
_ASK_S = 0.5


LiveStatus = Literal["completed", "diverged", "failed"]


@dataclass(frozen=True)
class LiveResult:
    """Result of a live replay."""

    status: LiveStatus
    divergence: Divergence | None
    summary: ReplaySummary
    error: ReplayError | None = None


class TimeSpent(Exception):
    """The replay took longer than its policy allows."""


class ReplayStopped(Exception):
    """The replay was ended by others, or must not go on; what was to be stored is stored."""


class ReplayJournal:
    """Rows of a live replay; every write checks its lease, and that it was not ended."""

    def __init__(
        self, runtime: Runtime, replay_id: str, held: HeldLease, is_stopping: Callable[[], bool]
    ) -> None:
        self._database = runtime.database
        self._id = replay_id
        self._held = held
        self._is_stopping = is_stopping
        self._checked_s = 0.0

    def begin(self, step: int) -> None:
        """Note that a step begins.

        Raises:
            ReplayStopped: if the replay must not go on.
            LeaseLost: if the worker counts as gone.
        """
        with self._open_row() as (db, row):
            row.step = step
            db.add(row)

    def check(self) -> None:
        """Check that the replay may go on; raises as `begin`."""
        if time.monotonic() - self._checked_s >= _CHECK_S:
            with self._open_row():
                pass

    def store(self, result: StepResult) -> None:
        """Note what became of a step, or before an action is sent that it may arrive; raises as `begin`."""
        with self._open_row() as (db, _):
            db.merge(ReplayStepRow(replay_id=self._id, **asdict(result)))

    def set_steps(self, count: int) -> None:
        """Note the number of steps; raises as `begin`."""
        with self._open_row() as (db, row):
            row.steps = count
            db.add(row)

    def start_session(self) -> str:
        """Start the session that records the run, and return its id; raises as `begin`."""
        with self._open_row() as (db, row):
            body = SessionCreate(
                workflow=row.workflow,
                metadata={"replay_id": row.id, "session_id": row.session_id},
                actor=Actor(id=row.id, kind="script"),
                start=True,
            )
            row.result_session_id = create_session(db, row.tenant, body, origin="replay").id
            db.add(row)
            return row.result_session_id

    def wait_for_decision(self, step: int, divergence: Divergence | None) -> Decision | None:
        """Wait for the decision on a step; None if none comes in time. Raises as `begin`."""
        with self._open_row() as (db, row):
            row.awaiting_step, row.awaiting_until = step, clock.now() + DECISION_TIME
            row.decisions = {name: kept for name, kept in row.decisions.items() if name != str(step)}
            row.divergence = None if divergence is None else asdict(divergence)
            db.add(row)
        while True:
            time.sleep(_ASK_S)
            with self._open_row() as (_, row):
                decision = row.decisions.get(str(step))
                if decision is not None:
                    return Decision(**decision)
                if row.awaiting_until is None or row.awaiting_until <= clock.now():
                    return None

    def fail(self, type: str, message: str) -> None:
        """End the replay as failed, even if the worker is stopping.

        Raises:
            ReplayStopped: if the replay has ended already, or its workspace or session is gone.
            LeaseLost: if the worker counts as gone.
        """
        with self._open_row(ends=True) as (db, row):
            end_replay_as_failed(db, row, type, message)

    def finish(self, result: LiveResult) -> None:
        """End the replay with its result, even if the worker is stopping.

        Raises:
            ReplayStopped: if the replay has ended already, or its workspace or session is gone.
            LeaseLost: if the worker counts as gone.
        """
        with self._open_row(ends=True) as (db, row):
            row.summary = asdict(result.summary)
            row.divergence = None if result.divergence is None else asdict(result.divergence)
            if result.error is not None:
                end_replay_as_failed(db, row, result.error.type, result.error.message)
            else:
                end_replay(db, row, result.status)

    def release(self) -> None:
        """Remove the lease, unless another owner took it: the replay is never claimed again."""
        with self._database.transaction(write=True) as db:
            lease = db.get(LeaseRow, self._held.lease.name)
            if lease is not None and lease.fence == self._held.fence:
                db.delete(lease)

    @contextmanager
    def _open_row(self, *, ends: bool = False) -> Iterator[tuple[DbSession, ReplayRow]]:
        """Yield the row of a replay that may go on, or that `ends` with this transaction."""
        with self._held.transaction(self._database) as db:
            statement = select(ReplayRow).where(ReplayRow.id == self._id).with_for_update(of=ReplayRow)
            row = db.exec(statement.execution_options(populate_existing=True)).one_or_none()
            reason = None if row is None or row.finished_at is not None else self._find_reason(db, row, ends)
            if row is not None and reason is not None:
                end_replay_as_failed(db, row, *reason)
            is_open = row is not None and row.finished_at is None
            if row is not None and is_open:
                yield db, row
        if not is_open:
            raise ReplayStopped
        self._checked_s = time.monotonic()

    def _find_reason(self, db: DbSession, row: ReplayRow, ends: bool) -> tuple[str, str] | None:
        """Return type and text of the error with which an open replay must end now."""
        if not ends and self._is_stopping():
            return "internal", "The worker was stopped; ask for another replay."
        if db.get_one(WorkspaceRow, row.workspace_id).status != "active":
            return "cancelled", "The workspace was suspended."
        remaining = select(ReplayRow.id).where(
            ReplayRow.id == row.id, *make_undeleted_session_conditions(ReplayRow)
        )
        if db.exec(remaining).first() is None:
            return "cancelled", "The session was deleted."
        return None
