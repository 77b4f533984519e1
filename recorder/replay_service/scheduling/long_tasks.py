"""Tasks of a replay drain run that take long, a few at once beside the work on all others. Decision 0049.

Content of clients decides how long a replay takes. What is not done soon is stopped, and begun again here,
in a process of its own: neither other workspaces nor other replays of the same one wait for it.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Thread
from typing import Generic, TypeVar

from recorder.fair_scheduling import compute_workspace_share
from recorder.tenant import Tenant
from recorder.workspace_scheduler import TenantRow, WorkspaceScheduler

#: Tasks that wait, in all and of one workspace and mode. A workspace with so many gets no further task.
_MOST_WAITING, _MOST_OF_TENANT = 1_000, 5


#: A row that a task is about.
AnyRow = TypeVar("AnyRow", bound=TenantRow)
Outcome = TypeVar("Outcome")


@dataclass
class _Begun(Generic[AnyRow, Outcome]):
    row: AnyRow
    outcomes: Generator[Outcome | None, None, None]
    began_s: float = field(default_factory=time.monotonic)


class LongTasks(Generic[AnyRow, Outcome]):
    """The long tasks of one run: those that wait, and those under way."""

    def __init__(
        self, begin: Callable[[AnyRow], Generator[Outcome | None, None, None]], *, slots: int
    ) -> None:
        """Begin without tasks.

        Args:
            begin: begins the task of a row; returns an iterator that yields None until there is an outcome,
                without waiting for it, and ends the task when it is closed.
            slots: tasks under way at a time; while others wait, one workspace has at most half of them.
        """
        self._begin = begin
        self._slots = slots
        self._waiting: dict[str, AnyRow] = {}
        self._begun: list[_Begun[AnyRow, Outcome]] = []
        self._scheduler = WorkspaceScheduler()

    def __bool__(self) -> bool:
        """Return whether tasks wait or are under way."""
        return bool(self._waiting or self._begun)

    def add(self, row: AnyRow) -> None:
        """Let the task of a row wait for its slot."""
        self._waiting[row.id] = row

    def list_ids(self) -> list[str]:
        """Return the ids of the rows whose tasks wait or are under way."""
        return [*(task.row.id for task in self._begun), *self._waiting]

    def list_full_tenants(self) -> list[Tenant]:
        """Return the workspaces and modes of which so many tasks wait that none is to be added."""
        counts = Counter(row.tenant for row in self._waiting.values())
        most = _MOST_OF_TENANT if len(self._waiting) < _MOST_WAITING else 1
        return [tenant for tenant, count in counts.items() if count >= most]

    def advance(self) -> Iterator[tuple[AnyRow, Outcome]]:
        """Begin the tasks that have a slot, and yield the rows and outcomes of those that have ended."""
        while (row := self._choose_next()) is not None:
            del self._waiting[row.id]
            self._begun.append(_Begun(row, self._begin(row)))
        for task in list(self._begun):
            try:
                outcome = next(task.outcomes)
            except BaseException:  # the row is listed again
                self._begun.remove(task)
                raise
            if outcome is not None:
                task.outcomes.close()
                self._begun.remove(task)
                self._scheduler.add_time(task.row.tenant, time.monotonic() - task.began_s)
                yield task.row, outcome

    def end(self) -> None:
        """End the tasks under way; they are done again by a later run."""
        for task in self._begun:
            task.outcomes.close()

    def _choose_next(self) -> AnyRow | None:
        """Return the row whose task is next: of the workspace that used the least time, its oldest one."""
        if not self._waiting or len(self._begun) >= self._slots:
            return None
        begun = Counter(task.row.tenant for task in self._begun)
        waiting = {row.tenant for row in self._waiting.values()}
        self._scheduler.set_waiting(waiting | begun.keys())
        most = compute_workspace_share(self._slots)
        below = [tenant for tenant in sorted(waiting) if begun[tenant] < most]
        tenant = self._scheduler.find_next(below or sorted(waiting))
        return next(row for row in self._waiting.values() if row.tenant == tenant)


def run_long_task_in_thread(call: Callable[[], Outcome], *, name: str) -> Generator[None, None, Outcome]:
    """Call a function in a thread; yield None until it ends, and return its result.

    A caller that leaves before does not wait for it.
    """
    done: Future[Outcome] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    while not done.done():
        yield None
    return done.result()
