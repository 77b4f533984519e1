"""Replayability of sealed sessions, computed by a replay drain run. Spec §4.6, decision 0044.

The row is the queue: a sealed session waits until `replayability_at` is set, which also means that sessions
of earlier releases wait. Workspaces take turns by the time that they used. A turn takes the newest sessions
of one and a few of its oldest, so that neither waits for all of the others.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import Unavailable
from recorder.limited_process import ProcessEnded
from recorder.models.session import WAITS_FOR_REPLAYABILITY, SessionRow
from recorder.replay_service.dry.process_replies import ReplayNotComputed
from recorder.replay_service.recordings.recording_messages import RecordingMessage
from recorder.replay_service.recordings.recording_reads import is_huge_recording
from recorder.replay_service.replayability.replayability_process import (
    PATIENCE_S,
    Replayability,
    ReplayabilityProcess,
    ReplayabilityTask,
)
from recorder.replay_service.replayability.replayability_queue import (
    list_replayability_queue_tenants,
    store_queued_replayability,
)
from recorder.replay_service.replayability.replayability_recordings import (
    FramesMissing,
    read_replayability_recordings,
)
from recorder.replay_service.scheduling.long_tasks import LongTasks, run_long_task_in_thread
from recorder.runtime import Runtime
from recorder.storage.conditions import in_tenant
from recorder.storage.leases import HeldLease
from recorder.storage.store_regions import has_store_marks
from recorder.tenant import Tenant
from recorder.workspace_scheduler import WorkspaceScheduler

log = logging.getLogger("recorder.replays")

#: Sessions of a turn; of five, one is among the oldest.
_MOST_SESSIONS, _OLDEST_SHARE = 25, 5
#: Size at which a turn takes no more of them.
_TURN_BYTES, _TURN_FRAMES = 4 * 1024 * 1024, 5_000
#: A turn begins no further session after so long, so that replays wait no longer for its end.
_TURN_S = 0.2
#: A session that takes longer is stopped, and computed beside the others, which do not wait for it.
_QUICK_S = 0.25
#: Pause of a turn that has nothing to do but to wait for such a session.
_PAUSE_S = 0.05
#: While replays wait too, turns begin so far apart, and so many times as far apart as the last one took.
_TURN_EVERY_S, _TURN_PAUSES = 2.0, 4.0
#: After so many failures, so far apart, a session is left without a value.
_MOST_FAILURES, _FAILURE_PAUSE_S = 3, 60.0
#: Pause of a session with missing or damaged files: its attempts take an hour, in which files are restored.
_LOST_PAUSE_S = 1_830.0
#: While more sessions than this have such files, each also lets its workspace wait.
_MOST_LOST = 1_000
#: A session that is not tried so long after its pause was deleted, or its workspace was suspended.
_FORGOTTEN_S = 300.0
#: Sessions that are read one by one after a failed joint read: no further one after so many seconds.
_ALONE_S = 1.0
#: Pauses after a store did not answer: of the session, and of its workspace.
_SESSION_PAUSE_S, _TENANT_PAUSE_S = 600.0, 10.0


class ReplayabilityWork:
    """Work of one replay drain run, turn after turn."""

    def __init__(
        self,
        runtime: Runtime,
        process: ReplayabilityProcess | None = None,
        *,
        turn_s: float = _TURN_S,
        turn_pauses: float = _TURN_PAUSES,
        failure_pause_s: float = _FAILURE_PAUSE_S,
        lost_pause_s: float = _LOST_PAUSE_S,
        quick_s: float = _QUICK_S,
        make_long_process: Callable[[], ReplayabilityProcess] = lambda: ReplayabilityProcess(is_long=True),
    ) -> None:
        """Prepare a run.

        Args:
            runtime: the deployment.
            process: computes the values; by default one of its own.
            turn_s: seconds of a turn.
            turn_pauses: while replays wait, a turn is followed by a pause of this many times its duration.
            failure_pause_s: pause of a session after a failure.
            lost_pause_s: pause of a session whose files are missing or damaged.
            quick_s: seconds after which the computation of a session is stopped, and done beside the others.
            make_long_process: makes the process of such a session.
        """
        self._runtime = runtime
        self._turn_s = turn_s
        self._turn_pauses = turn_pauses
        self._failure_pause_s = failure_pause_s
        self._lost_pause_s = lost_pause_s
        self._quick_s = quick_s
        self._process, self._spare = process or ReplayabilityProcess(), ReplayabilityProcess()
        self._make_long_process = make_long_process
        self._scheduler = WorkspaceScheduler()
        #: Sessions that take long, one at a time.
        self._long: LongTasks[SessionRow, Replayability] = LongTasks(self._begin_long, slots=1)
        #: Times of this process's monotonic clock until which sessions and workspaces wait.
        self._paused: dict[str, float] = {}
        self._paused_tenants: dict[Tenant, float] = {}
        self._failures: Counter[str] = Counter()
        #: Attempts that found files of a session missing or damaged.
        self._losses: Counter[str] = Counter()
        #: Time of this process's monotonic clock before which no turn begins while replays wait.
        self._next_s = 0.0
        #: Seconds that a session took lately; what a turn reads and does not compute is read again.
        self._session_s = turn_s / _MOST_SESSIONS
        #: Computed sessions, failed attempts, and sessions left without a value after the last of them.
        self.counts: Counter[str] = Counter()

    @property
    def has_paused(self) -> bool:
        """Return whether sessions wait for their next attempt, which another run would count as the first."""
        return bool(self._paused)

    @property
    def retry_s(self) -> float:
        """Seconds within which all attempts end for sessions with missing or damaged files; 0 without any."""
        return _MOST_FAILURES * self._lost_pause_s if self._losses else 0.0

    def end(self) -> None:
        """End the processes."""
        self._process.end()
        self._spare.end()
        self._long.end()

    def take_turn(self, held: HeldLease, *, is_busy: bool = False) -> bool:
        """Compute the values of some sessions of one workspace; False if there is nothing to compute now.

        Args:
            held: the lease of the run.
            is_busy: whether replays wait too.

        Raises:
            LeaseLost: if another run took over; the values of the turn are computed again.
        """
        began, failures = time.monotonic(), self.counts["failures"]
        is_waiting = bool(self._long)
        self._advance_long(held)
        if is_busy and began < self._next_s:
            return is_waiting
        self._forget_untried(began)
        with self._runtime.database.transaction(write=False) as db:
            tenant, rows = self._choose_sessions(db, began)
        if tenant is None:
            if is_waiting and not is_busy:
                time.sleep(_PAUSE_S)
            return is_waiting
        values = self._compute(rows, began + self._turn_s)
        if values:
            with held.transaction(self._runtime.database) as db:
                store_queued_replayability(db, values)
        ended = time.monotonic()
        self._next_s = ended + max(_TURN_EVERY_S, self._turn_pauses * (ended - began))
        self._scheduler.add_time(tenant, ended - began)
        self._session_s = (self._session_s + (ended - began) / max(1, len(values))) / 2
        return bool(values or self._long) or self.counts["failures"] > failures

    def _advance_long(self, held: HeldLease) -> None:
        """Begin sessions that take long, and store the values of those that were computed."""
        for row, computed in self._long.advance():
            values: dict[str, float | None] = {}
            self._add_value(row, computed, values, is_last=isinstance(computed.error, ProcessEnded))
            if values:
                with held.transaction(self._runtime.database) as db:
                    store_queued_replayability(db, values)

    def _begin_long(self, row: SessionRow) -> Generator[Replayability | None, None, None]:
        """Read a session and compute its value in a process of its own; yield None until it is computed."""
        try:
            recordings = yield from run_long_task_in_thread(
                lambda: read_replayability_recordings(self._runtime, [row]), name="replayability-read"
            )
        except (Unavailable, OSError, FramesMissing):
            yield Replayability(error=Unavailable("A store"))
            return
        except Exception as error:
            yield Replayability(error=ReplayNotComputed(repr(error)))
            return
        recording = recordings[row.id]
        if recording is None:
            yield Replayability()
            return
        process = self._make_long_process()
        try:
            yield from process.reply_each([self._make_task(recording)], patience_s=0)
        finally:
            process.end()

    def _choose_sessions(self, db: DbSession, now_s: float) -> tuple[Tenant | None, list[SessionRow]]:
        """Return the workspace and mode that used the least time, of those with sessions to compute now."""
        waiting = list_replayability_queue_tenants(db)
        self._scheduler.set_waiting(waiting)
        full = self._long.list_full_tenants()
        ready = [
            tenant
            for tenant in waiting
            if self._paused_tenants.get(tenant, 0.0) <= now_s and tenant not in full
        ]
        while (tenant := self._scheduler.find_next(ready)) is not None:
            if rows := self._list_waiting(db, tenant):
                return tenant, rows
            ready.remove(tenant)  # each of its sessions has a pause, or takes long
        return None, []

    def _list_waiting(self, db: DbSession, tenant: Tenant) -> list[SessionRow]:
        """Return sessions for one turn: the newest, then some of the oldest, none of those in a pause."""
        most = max(_OLDEST_SHARE, min(_MOST_SESSIONS, int(self._turn_s / self._session_s)))
        oldest_count = most // _OLDEST_SHARE
        waiting = select(SessionRow).where(*in_tenant(SessionRow, tenant), WAITS_FOR_REPLAYABILITY)
        now_s = time.monotonic()
        paused = [session_id for session_id, until_s in self._paused.items() if until_s > now_s]
        if left_out := [*paused, *self._long.list_ids()]:
            waiting = waiting.where(col(SessionRow.id).not_in(left_out))
        sealed_at, session_id = col(SessionRow.sealed_at), col(SessionRow.id)
        newest = db.exec(waiting.order_by(sealed_at.desc(), session_id.desc()).limit(most)).all()
        oldest = db.exec(waiting.order_by(sealed_at, session_id).limit(oldest_count)).all()
        # The oldest are not last: a turn may end before it comes to all.
        rows = {row.id: row for row in (*newest[:1], *oldest, *newest)}
        chosen: list[SessionRow] = []
        size = frames = 0
        for row in list(rows.values())[:most]:
            size, frames = size + row.event_bytes, frames + row.frame_count
            if chosen and (size > _TURN_BYTES or frames > _TURN_FRAMES):
                break
            chosen.append(row)
        return chosen

    def _compute(self, rows: Sequence[SessionRow], until_s: float) -> dict[str, float | None]:
        """Return the values of the sessions for which the turn had time; a failed one has none yet."""
        values: dict[str, float | None] = {}
        quick = [row for row in rows if not is_huge_recording(row)]
        for row in filter(is_huge_recording, rows):
            self._long.add(row)
        recordings = self._read(quick, values) if quick else {}
        for row in quick:
            if row.id not in recordings:
                continue
            recording = recordings[row.id]
            computed = Replayability() if recording is None else self._request(recording)
            if computed is None:
                self._long.add(row)
            else:
                self._add_value(row, computed, values)
            if computed is None or time.monotonic() > until_s:
                break
        return values

    def _add_value(
        self,
        row: SessionRow,
        computed: Replayability,
        values: dict[str, float | None],
        *,
        is_last: bool = False,
    ) -> None:
        """Add the value of a session to those that are to be stored; count a failure, or let it wait.

        Args:
            row: the session.
            computed: its value, or the failure.
            values: values by session.
            is_last: whether the session is not tried again after a failure.
        """
        if isinstance(computed.error, Unavailable):
            if not self._count_loss(row, values):
                self._pause_tenant(row.tenant)
        elif computed.error is not None:
            self._count_failure(row, computed.error, values, is_last=is_last)
        else:
            values[row.id] = computed.value
            self._forget(row.id)
            self.counts["computed"] += 1

    def _read(
        self, rows: Sequence[SessionRow], values: dict[str, float | None]
    ) -> dict[str, RecordingMessage | None]:
        """Return the recordings that can be read: all together, else each alone while there is time.

        A damaged file makes the joint read fail as a store does that does not answer. A session whose own
        read fails waits; its workspace waits too if the stores do not answer for any.
        """
        if len(rows) > 1:
            with suppress(Exception):  # each read alone raises it again
                return read_replayability_recordings(self._runtime, rows)
        recordings: dict[str, RecordingMessage | None] = {}
        tried = unanswered = 0
        until_s = time.monotonic() + _ALONE_S
        for row in rows:
            tried += 1
            try:
                recordings |= read_replayability_recordings(self._runtime, [row])
            except (Unavailable, OSError, FramesMissing):
                unanswered += not self._count_loss(row, values)
            except Exception as error:
                self._count_failure(row, error, values)
            if time.monotonic() > until_s:
                break
        if unanswered == tried:
            self._pause_tenant(rows[0].tenant)
        return recordings

    def _request(self, recording: RecordingMessage) -> Replayability | None:
        """Return the value of a session; None if it takes long."""
        began_s = time.monotonic()
        with closing(
            self._process.reply_each([self._make_task(recording)], patience_s=PATIENCE_S)
        ) as replies:
            for reply in replies:
                if reply is not None:
                    return reply
                if not self._process.is_ready:
                    began_s = time.monotonic()
                    continue
                self._spare.start()  # this process may be stopped soon
                if time.monotonic() - began_s > self._quick_s:
                    break
        self._process, self._spare = self._spare, self._process
        self._spare.start()
        return None

    def _make_task(self, recording: RecordingMessage) -> ReplayabilityTask:
        settings = self._runtime.settings
        return ReplayabilityTask(
            blob_url=settings.blob_url, archive_url=settings.cold_url, recording=recording
        )

    def _count_loss(self, row: SessionRow, values: dict[str, float | None]) -> bool:
        """Let a session wait whose files were not read; count a failure if only the files can be the cause.

        Returns:
            Whether it was counted: the stores answer, so the files are missing or damaged.
        """
        if not has_store_marks(self._runtime.settings):
            self._paused[row.id] = time.monotonic() + _SESSION_PAUSE_S
            log.warning("the replayability of session %s waits: a store does not answer", row.id)
            return False
        self._losses[row.id] += 1
        self.counts["failures"] += 1
        self._paused[row.id] = time.monotonic() + self._lost_pause_s
        text = "the replayability of session %s waits: stored files are missing or damaged (%d of %d)"
        log.warning(text, row.id, self._losses[row.id], _MOST_FAILURES)
        if self._losses[row.id] >= _MOST_FAILURES:
            self._leave_out(row, values)
        elif len(self._losses) > _MOST_LOST:
            self._pause_tenant(row.tenant)
        return True

    def _pause_tenant(self, tenant: Tenant) -> None:
        """Let a workspace and mode wait, because a store did not answer."""
        self._paused_tenants[tenant] = time.monotonic() + _TENANT_PAUSE_S

    def _count_failure(
        self,
        row: SessionRow,
        error: Exception,
        values: dict[str, float | None],
        *,
        is_last: bool = False,
    ) -> None:
        """Count a failure of a session, which waits then; after the last one it has no value for good."""
        self._failures[row.id] += 1
        self.counts["failures"] += 1
        self._paused[row.id] = time.monotonic() + self._failure_pause_s
        log.warning("the replayability of session %s cannot be computed: %r", row.id, error)
        if is_last or self._failures[row.id] >= _MOST_FAILURES:
            self._leave_out(row, values)

    def _leave_out(self, row: SessionRow, values: dict[str, float | None]) -> None:
        """Give a session no value for good."""
        log.error("session %s is left without replayability", row.id)
        self._forget(row.id)
        self.counts["left_out"] += 1
        values[row.id] = None

    def _forget(self, session_id: str) -> None:
        """Forget pause and failures of a session that is not tried again."""
        self._paused.pop(session_id, None)
        del self._failures[session_id], self._losses[session_id]

    def _forget_untried(self, now_s: float) -> None:
        """Forget sessions whose pause ended long ago: they no longer wait."""
        for session_id in [key for key, until in self._paused.items() if until + _FORGOTTEN_S <= now_s]:
            self._forget(session_id)
