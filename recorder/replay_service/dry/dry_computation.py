"""Computation of dry replays for a replay drain run: the quick ones in one process, long ones beside them.

A replay that is not done soon is stopped, and begun again in a process of its own. Decision 0049.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from typing import Any, NamedTuple

from recorder.models.replay import ReplayRow
from recorder.replay_service.dry.dry_process import PATIENCE_S, DryOutcome, DryProcess, DryTask
from recorder.replay_service.dry.dry_tasks import HugeTask, Refusal, find_task_anchor_event, read_dry_tasks
from recorder.replay_service.scheduling.long_tasks import LongTasks, run_long_task_in_thread
from recorder.replays.replay_results import DryResult
from recorder.runtime import Runtime
from recorder.workspace_scheduler import WorkspaceScheduler

#: Most replays whose recordings are read together, and whose results are stored together where none is slow.
_READ_TOGETHER, _STORED_TOGETHER = 100, 50
#: Steps that are stored together, or those of one replay: other writers wait for the transaction.
_STEPS_STORED_TOGETHER = 5_000
#: A replay that takes longer is stopped, and begun again beside the others.
_QUICK_S = 0.25
#: Long replays at a time, and sessions that are known to take long.
_LONG_SLOTS, _MOST_LONG_SESSIONS = 2, 1_000
#: Replays that the process has at a time. To take one back costs the start of another process: they are
#: computed even if the turn has ended, unless one of them takes longer than this.
_SENT_TOGETHER, _SLOW_S = 10, 0.05


class ComputedReplay(NamedTuple):
    """A replay that is to be stored, with its outcome."""

    row: ReplayRow
    outcome: DryOutcome | Refusal
    anchor_event: dict[str, Any] | None = None


class DryComputation:
    """Processes of one run that compute dry replays."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        quick_s: float = _QUICK_S,
        make_process: Callable[[], DryProcess] = DryProcess,
        make_long_process: Callable[[], DryProcess] = lambda: DryProcess(is_long=True),
    ) -> None:
        """Set limits; the processes start with the first replays.

        Args:
            runtime: the deployment.
            quick_s: seconds after which a replay is stopped, and computed beside the others.
            make_process: makes the process of the others, and its spare one.
            make_long_process: makes the process of a long replay.
        """
        self._runtime = runtime
        self._quick_s = quick_s
        self._make_long_process = make_long_process
        self._process, self._spare = make_process(), make_process()
        self._scheduler = WorkspaceScheduler()
        #: Sessions of replays that were stopped: another one of them is not tried.
        self._long_sessions: dict[str, None] = {}
        #: Replays that take long.
        self.long: LongTasks[ReplayRow, ComputedReplay] = LongTasks(self._begin_long, slots=_LONG_SLOTS)

    def start(self) -> None:
        """Start the process before the first replay."""
        self._process.start()

    def end(self) -> None:
        """End the processes."""
        self._process.end()
        self._spare.end()
        self.long.end()

    def advance_long(self) -> Iterator[ComputedReplay]:
        """Begin long replays that wait, and yield those that were computed."""
        for _, computed in self.long.advance():
            yield computed

    def replay_each(
        self, rows: Sequence[ReplayRow], until_s: float
    ) -> Generator[list[ComputedReplay], None, None]:
        """Yield computed replays in groups that are to be stored together, until the turn ends.

        Args:
            rows: all replays that are due, in the order in which each workspace's are done.
            until_s: time of this process's monotonic clock at which the turn ends. It also ends with a replay
                that takes long.
        """
        waiting: deque[ReplayRow] = deque()
        for row in self._scheduler.sort(rows):
            if row.session_id not in self._long_sessions:
                waiting.append(row)
            elif row.tenant not in self.long.list_full_tenants():
                self.long.add(row)  # it is read when it has its slot
        while waiting:
            together = [waiting.popleft() for _ in range(min(_READ_TOGETHER, len(waiting)))]
            began_s = time.monotonic()
            tasks = read_dry_tasks(self._runtime, together, leaves_huge=True)
            waiting.extendleft(reversed(together[len(tasks) :]))
            read_s = (time.monotonic() - began_s) / len(tasks)
            is_cut = yield from self._replay_together(together[: len(tasks)], tasks, until_s, read_s)
            if is_cut or time.monotonic() > until_s:
                return

    def _replay_together(
        self,
        rows: Sequence[ReplayRow],
        tasks: Sequence[DryTask | Refusal | HugeTask],
        until_s: float,
        read_s: float,
    ) -> Generator[list[ComputedReplay], None, bool]:
        """Yield computed replays in groups; return True if a long one, or the end of the turn, left some.

        Args:
            rows: the replays.
            tasks: their tasks.
            until_s: as that of `replay_each`.
            read_s: seconds that each was read for.
        """
        todo: deque[tuple[ReplayRow, DryTask]] = deque()
        computed = []
        for row, given in zip(rows, tasks, strict=True):
            if isinstance(given, HugeTask) or row.session_id in self._long_sessions:
                self.long.add(row)
            elif isinstance(given, DryTask):
                todo.append((row, given))
                continue
            else:
                computed.append(ComputedReplay(row, given))
            self._scheduler.add_time(row.tenant, read_s)
        is_cut = False
        while todo and not is_cut:
            chunk = [todo.popleft() for _ in range(min(_SENT_TOGETHER, len(todo)))]
            is_cut = yield from self._replay_chunk(chunk, computed, until_s, read_s)
            if len(computed) >= _STORED_TOGETHER:
                yield from self._yield_group(computed)
        for row, _ in todo:
            self._scheduler.add_cost(row.tenant, read_s)  # it is read again
        yield from self._yield_group(computed)
        return is_cut

    def _yield_group(self, computed: list[ComputedReplay]) -> Generator[list[ComputedReplay], None, None]:
        """Yield groups of replays that are to be stored together, and remove them; add that time to turns."""
        while computed:
            counts = accumulate(_count_replayed_steps(entry) for entry in computed)
            fitting = max(1, sum(count <= _STEPS_STORED_TOGETHER for count in counts))
            group = computed[:fitting]
            del computed[:fitting]
            began_s = time.monotonic()
            yield group
            stored_s = time.monotonic() - began_s
            for row, *_ in group:
                self._scheduler.add_cost(row.tenant, stored_s / len(group))

    def _replay_chunk(
        self,
        chunk: Sequence[tuple[ReplayRow, DryTask]],
        computed: list[ComputedReplay],
        until_s: float,
        read_s: float,
    ) -> Generator[list[ComputedReplay], None, bool]:
        """Compute some replays; yield groups, as `replay_each`, and return whether the turn ended.

        Args:
            chunk: the replays, with their tasks.
            computed: those computed before; at the end those that are in no group.
            until_s: as that of `replay_each`.
            read_s: seconds that each was read for.
        """
        began_s = time.monotonic()
        done = 0
        with closing(
            self._process.reply_each([task for _, task in chunk], patience_s=PATIENCE_S)
        ) as outcomes:
            for outcome in outcomes:
                now_s = time.monotonic()
                if outcome is None and not self._process.is_ready:
                    until_s += now_s - began_s
                    began_s = now_s
                    continue
                used_s = now_s - began_s
                row, task = chunk[done]
                if outcome is None and used_s <= self._quick_s:
                    self._spare.start()  # this process may be stopped soon
                    yield from self._yield_group(computed)
                    continue
                self._scheduler.add_time(row.tenant, used_s + read_s)
                began_s, done = now_s, done + 1
                if outcome is None:
                    self._add_long(row)
                    break
                computed.append(ComputedReplay(row, outcome, find_task_anchor_event(task)))
                if used_s > _SLOW_S and now_s > until_s:
                    break
        if outcome is None or done < len(chunk):
            self._process, self._spare = self._spare, self._process
            self._spare.start()
            return True
        return time.monotonic() > until_s

    def _add_long(self, row: ReplayRow) -> None:
        """Let a replay wait for its slot, and note its session."""
        self.long.add(row)
        if len(self._long_sessions) >= _MOST_LONG_SESSIONS:
            del self._long_sessions[next(iter(self._long_sessions))]
        self._long_sessions[row.session_id] = None

    def _begin_long(self, row: ReplayRow) -> Generator[ComputedReplay | None, None, None]:
        """Read and compute a replay in a process of its own; yield None until it is computed."""
        (task,) = yield from run_long_task_in_thread(
            lambda: read_dry_tasks(self._runtime, [row], leaves_huge=False), name="replay-read"
        )
        assert not isinstance(task, HugeTask)
        if not isinstance(task, DryTask):
            yield ComputedReplay(row, task)
            return
        process = self._make_long_process()
        try:
            with closing(process.reply_each([task], patience_s=0)) as outcomes:
                for outcome in outcomes:
                    if outcome is None:
                        yield None
                    else:
                        yield ComputedReplay(row, outcome, find_task_anchor_event(task))
        finally:
            process.end()


def _count_replayed_steps(entry: ComputedReplay) -> int:
    return len(entry.outcome.steps) if isinstance(entry.outcome, DryResult) else 0
