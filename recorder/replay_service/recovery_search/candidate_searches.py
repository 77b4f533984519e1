"""Searches for candidates beside the replays of a replay drain run: one at a time, in a limited process.

A recovery needs its candidates, a replay with an automatic anchor the best one. Each search is counted before
it begins: what ended the run several times is set aside. One that takes long is stopped, and begun again in a
process of its own beside the others.
"""

import logging
import time
from collections.abc import Generator

from sqlmodel import Session as DbSession

from recorder.errors import NotFound, ValidationFailed
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.recording.sessions import find_session
from recorder.replay_service.recordings.failed_sessions import find_session_failure
from recorder.replay_service.recovery_search.candidate_search_process import (
    SearchProcess,
    SearchReply,
    SearchStores,
    SearchTask,
)
from recorder.replay_service.recovery_search.recovery_work import (
    continue_recovery,
    fail_recovery,
)
from recorder.replay_service.requests.recoveries import lock_open_recovery
from recorder.replay_service.requests.replays import end_replay_as_failed, lock_open_replays
from recorder.replay_service.scheduling.long_tasks import LongTasks
from recorder.replay_service.scheduling.replay_drain_counts import ReplayDrainCounts
from recorder.replay_service.scheduling.store_pauses import STORE_TIME_OVER, StorePauses
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease
from recorder.tenant import Tenant

log = logging.getLogger("recorder.replays")

#: Searches of one replay or recovery that may end with the run.
MOST_SEARCHES = 3
#: Searches that wait, in all and of one workspace and mode; the others are listed again.
_MOST_WAITING, _MOST_OF_TENANT = 1_000, 20
#: A search that takes longer is stopped, and begun again beside the others; most take less than a second.
_QUICK_S = 10.0
_NO_CANDIDATE = (
    "No node that the session passed before its failure leads to success in the memory graph; name an anchor."
)

SearchedRow = RecoveryRow | ReplayRow


class CandidateSearches:
    """The searches of one run: those that wait, the one under way, and long ones beside it."""

    def __init__(
        self,
        runtime: Runtime,
        pauses: StorePauses,
        report: ReplayDrainCounts,
        *,
        process: SearchProcess | None = None,
        quick_s: float = _QUICK_S,
    ) -> None:
        """Prepare a run.

        Args:
            runtime: the deployment.
            pauses: recoveries and replays that wait for a store.
            report: counts what ended.
            process: searches; by default one of its own.
            quick_s: seconds after which a search is stopped, and begun again beside the others.
        """
        self._runtime, self._pauses, self._report = runtime, pauses, report
        self._quick_s = quick_s
        self._process = process or SearchProcess()
        self._long: LongTasks[SearchedRow, SearchReply] = LongTasks(self._begin_long, slots=1)
        self._began_s = 0.0
        self._waiting: dict[str, SearchedRow] = {}
        #: Number of the last search of each workspace and mode.
        self._turns: dict[Tenant, int] = {}
        self._current: tuple[SearchedRow, Generator[SearchReply | None, None, None]] | None = None

    def list_ids(self) -> list[str]:
        """Return the ids of the recoveries and replays that are searched for."""
        current = [] if self._current is None else [self._current[0].id]
        return [*current, *self._waiting, *self._long.list_ids()]

    def add(self, row: SearchedRow) -> bool:
        """Let a row wait for its search; return False if too many wait, in all or of its workspace."""
        of_tenant = sum(waiting.tenant == row.tenant for waiting in self._waiting.values())
        is_full = len(self._waiting) >= _MOST_WAITING or of_tenant >= _MOST_OF_TENANT
        if is_full or row.tenant in self._long.list_full_tenants():
            return False
        self._waiting[row.id] = row
        return True

    def advance(self, held: HeldLease) -> bool:
        """Store the result of the search under way if it has one, or begin the next; False without any.

        Raises:
            LeaseLost: if another run took over.
            Unavailable: if many of several workspaces wait for a store, or the database does not answer.
        """
        has_long = bool(self._long)
        for row, reply in self._long.advance():
            self._store(held, row, reply)
        if self._current is None and not self._begin(held):
            return has_long
        if self._current is not None:
            row, replies = self._current
            current_reply = next(replies)
            if current_reply is not None:
                self._current = None
                self._store(held, row, current_reply)
            elif not self._process.is_ready:
                self._began_s = time.monotonic()
            elif time.monotonic() - self._began_s > self._quick_s:
                replies.close()
                self._current = None
                self._long.add(row)
        return True

    def end(self) -> None:
        """End the searches under way, and the processes."""
        if self._current is not None:
            self._current[1].close()
        self._process.end()
        self._long.end()

    def _begin(self, held: HeldLease) -> bool:
        """Count and begin the next search, workspaces in turns; return False if none waits."""
        if not self._waiting:
            return False
        row = min(self._waiting.values(), key=lambda row: self._turns.get(row.tenant, 0))
        del self._waiting[row.id]
        self._turns[row.tenant] = max(self._turns.values(), default=0) + 1
        with held.transaction(self._runtime.database) as db:
            current = _lock_searched_row(db, row)
            if current is None:
                return True
            current.searches += 1
            db.add(current)
        if current.searches > MOST_SEARCHES:
            self._store(held, current, SearchReply(error="the run ended during each search"))
            return True
        try:
            task = self._make_search_task(current)
        except NotFound:
            return True  # deleted in between: the purge of the session removes the row
        except ValidationFailed as error:
            self._store(held, current, SearchReply(invalid=error.problems[0].message))
            return True
        self._current = (current, self._process.reply_each([task], patience_s=0))
        self._began_s = time.monotonic()
        return True

    def _begin_long(self, row: SearchedRow) -> Generator[SearchReply | None, None, None]:
        """Search in a process of its own; yield None until there is a reply."""
        try:
            task = self._make_search_task(row)
        except NotFound:
            yield SearchReply(is_gone=True)
            return
        except ValidationFailed as error:
            yield SearchReply(invalid=error.problems[0].message)
            return
        process = SearchProcess(is_long=True)
        try:
            yield from process.reply_each([task], patience_s=0)
        finally:
            process.end()

    def _make_search_task(self, row: SearchedRow) -> SearchTask:
        settings = self._runtime.settings
        with self._runtime.database.transaction(write=False) as db:
            session = find_session(db, row.tenant, row.session_id)
            point: tuple[str | None, int | None] = (None, None)
            if isinstance(row, RecoveryRow):
                tag, failed_at_ms = row.failure_tag, row.failed_at_ms
                point = (row.point_session_id, row.point_t_ms)
            else:
                tag, failed_at_ms = find_session_failure(db, session, None, pointer="/anchor/auto")
        return SearchTask(
            stores=SearchStores(
                data_dir=str(settings.data_dir),
                database_url=settings.database_url,
                lake_url=settings.lake_url,
                blob_url=settings.blob_url,
                cold_url=settings.cold_url,
            ),
            tenant=row.tenant,
            session_id=row.session_id,
            failure_tag=tag,
            failed_at_ms=failed_at_ms,
            point_session_id=point[0],
            point_t_ms=point[1],
            skip_unavailable=self._pauses.has_waited(row.id),
        )

    def _store(self, held: HeldLease, row: SearchedRow, reply: SearchReply) -> None:
        """Store what a search found, or why it found nothing."""
        if reply.is_gone:
            return
        if reply.is_unavailable and not self._pauses.has_waited(row.id):
            with held.transaction(self._runtime.database) as db:
                current = _lock_searched_row(db, row)
                if current is not None:
                    current.searches = 0
                    db.add(current)
            self._pauses.add_pause(row)
            return
        self._pauses.forget(row.id)
        if reply.error:
            log.error("the search for candidates of %s failed: %s", row.id, reply.error)
        if isinstance(row, RecoveryRow):
            self._store_recovery(held, row, reply)
        else:
            self._store_anchor(held, row, reply)

    def _store_recovery(self, held: HeldLease, row: RecoveryRow, reply: SearchReply) -> None:
        """Continue a recovery with the found candidates, or end it as failed."""
        if reply.candidates is not None:
            ended = continue_recovery(self._runtime, held, row, candidates=reply.candidates)
        else:
            ended = fail_recovery(
                self._runtime, held, row, "invalid_recording" if reply.invalid else "internal"
            )
        self._report.count_recovery(ended)

    def _store_anchor(self, held: HeldLease, row: ReplayRow, reply: SearchReply) -> None:
        """Store the best candidate as the anchor of a replay, or end the replay without one."""
        points = [point for point in reply.candidates or () if point["event_id"] is not None]
        with held.transaction(self._runtime.database) as db:
            current = lock_open_replays(db, [row]).get(row.id)
            if current is None:
                return
            if points:
                current.anchor_event = {"event_id": points[0]["event_id"], "t_ms": points[0]["t_ms"]}
                current.searches = 0
                db.add(current)
                return
            end_replay_as_failed(db, current, *_explain_failed_search(reply))
        self._report.count(current)


def _lock_searched_row(db: DbSession, row: SearchedRow) -> SearchedRow | None:
    """Return the current row, locked; None if it was ended, steered or removed since."""
    return (
        lock_open_recovery(db, row)
        if isinstance(row, RecoveryRow)
        else lock_open_replays(db, [row]).get(row.id)
    )


def _explain_failed_search(reply: SearchReply) -> tuple[str, str]:
    """Return type and message of the error of a replay whose anchor was not found."""
    if reply.invalid:
        return "invalid_recording", f"{reply.invalid} Name an anchor."
    if reply.candidates is not None:
        return "invalid_recording", _NO_CANDIDATE
    if reply.is_unavailable:
        return "internal", STORE_TIME_OVER
    return "internal", "The anchor could not be found; name one."
