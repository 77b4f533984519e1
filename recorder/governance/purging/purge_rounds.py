"""Rounds of a purge run: their end, and groups of purges that fail and wait for themselves. Contract §7."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from functools import partial

from recorder import clock
from recorder.errors import RecorderError
from recorder.governance.purging.purge_rows import lock_purges, update_purges
from recorder.governance.purging.step_report import DueStepReport
from recorder.models.governance import PurgeRow
from recorder.number_formats import format_count
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease, LeaseLost

log = logging.getLogger("recorder.purges")

#: A step that failed waits for a quarter of the age of its purge, within these bounds.
_FAILURE_PAUSE = timedelta(seconds=30)
_LONGEST_FAILURE_PAUSE = timedelta(minutes=10)


class PurgeRounds:
    """Rounds of one run, under its lease."""

    def __init__(self, runtime: Runtime, held: HeldLease, *, round_s: float) -> None:
        """Prepare a run.

        Args:
            runtime: the deployment.
            held: lease of the run.
            round_s: seconds after which a round begins no further work.
        """
        self._held = held
        self._round_s = round_s
        self._ends_s = 0.0
        self.open_transaction = partial(held.transaction, runtime.database)
        self.report = DueStepReport()

    def begin(self) -> None:
        """Begin a round."""
        self._ends_s = time.monotonic() + self._round_s

    def is_time_up(self) -> bool:
        """Return whether the round should end."""
        return time.monotonic() >= self._ends_s

    def try_groups(
        self,
        purges: Sequence[PurgeRow],
        key_of: Callable[[PurgeRow], Hashable],
        work: Callable[[list[PurgeRow]], object],
    ) -> list[PurgeRow]:
        """Work on purges, grouped by a key; those of a group that fails wait, and the others go on.

        Any error counts: a damaged table of one workspace must not stop the purges of the others.

        Args:
            purges: the purges.
            key_of: returns the group of a purge.
            work: does the work on a group; it returns False if it left some of it to a later round.

        Returns:
            The purges of the groups that are done. Once the time is up, no further group is begun.
        """
        groups: dict[Hashable, list[PurgeRow]] = defaultdict(list)
        for purge in purges:
            groups[key_of(purge)].append(purge)
        passed: list[PurgeRow] = []
        for number, group in enumerate(groups.values()):
            if number and self.is_time_up():
                break
            self._held.require_time()
            try:
                is_done = work(group)
            except LeaseLost:
                raise
            except Exception as error:
                self.postpone_failed(group, error)
            else:
                passed += group if is_done is not False else []
        return passed

    def try_together(
        self,
        purges: Sequence[PurgeRow],
        key_of: Callable[[PurgeRow], Hashable],
        work: Callable[[list[PurgeRow]], object],
    ) -> list[PurgeRow]:
        """Work on purges at once, and where that fails on their groups; see `try_groups`."""
        if len({key_of(purge) for purge in purges}) > 1:
            self._held.require_time()
            try:
                return list(purges) if work(list(purges)) is not False else []
            except LeaseLost:
                raise
            except Exception as error:
                log.info("%s are tried in groups after %r", format_count(len(purges), "purge"), error)
        return self.try_groups(purges, key_of, work)

    def postpone_failed(self, purges: list[PurgeRow], error: Exception) -> None:
        """Log why a step failed, and let its purges wait for a quarter of their age."""
        first, now = purges[0], clock.now()
        purges_failed = format_count(len(purges), "purge")
        # The trace of a store that does not answer shows nothing.
        trace = None if isinstance(error, RecorderError) else error
        log.warning(
            "the step %r of %s of workspace %s (%s) failed and is tried again: %r",
            *(first.step, purges_failed, first.workspace_id, first.mode, error.__cause__ or error),
            exc_info=trace,
        )
        self.report.failed_steps += 1
        with self.open_transaction() as db:
            for row in lock_purges(db, [purge.session_id for purge in purges]):
                if row.step == first.step:
                    pause = max(_FAILURE_PAUSE, (now - row.requested_at) / 4)
                    row.due_at = now + min(pause, _LONGEST_FAILURE_PAUSE)
                    db.add(row)

    def postpone(self, purges: Sequence[PurgeRow], pause: timedelta) -> None:
        """Let purges wait."""
        if not purges:
            return
        with self.open_transaction() as db:
            update_purges(db, [purge.session_id for purge in purges], due_at=clock.now() + pause)
