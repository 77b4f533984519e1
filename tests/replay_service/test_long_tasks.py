"""Places for tasks that take long: shared between workspaces, and bounded for each."""

import time
from collections.abc import Generator
from dataclasses import dataclass

from recorder.replay_service.scheduling.long_tasks import LongTasks
from recorder.tenant import Tenant


@dataclass
class Session:
    """A row of a workspace."""

    id: str

    @property
    def tenant(self) -> Tenant:
        """The workspace that the id begins with."""
        return Tenant(self.id[0], "live")


class Computation:
    """Tasks that end when the test says so."""

    def __init__(self, slots: int) -> None:
        self.done: set[str] = set()
        #: Ids of the tasks under way.
        self.running: list[str] = []
        self.tasks: LongTasks[Session, str] = LongTasks(self.begin, slots=slots)

    def begin(self, row: Session) -> Generator[str | None, None, None]:
        """Yield None until the task is done."""
        self.running.append(row.id)
        try:
            while row.id not in self.done:
                yield None
            yield row.id.upper()
        finally:
            self.running.remove(row.id)

    def advance(self, *done: str) -> list[str]:
        """Let tasks be done; their outcomes."""
        self.done |= {*done}
        return [outcome for _, outcome in self.tasks.advance()]


def test_one_workspace_has_half_of_the_slots_while_others_wait() -> None:
    computation = Computation(slots=2)
    for row_id in ("a1", "a2", "a3"):
        computation.tasks.add(Session(row_id))
    assert computation.advance() == [] and computation.running == ["a1", "a2"]
    computation.tasks.add(Session("b1"))
    computation.tasks.add(Session("c1"))
    assert computation.advance("a1") == ["A1"]
    computation.advance()
    assert computation.running == ["a2", "b1"]
    computation.advance("a2")
    computation.advance()
    # Another one has waited, so that the third of the first workspace is last.
    assert computation.running == ["b1", "c1"] and computation.tasks.list_ids() == ["b1", "c1", "a3"]
    computation.advance("b1", "c1")
    assert computation.advance("a3") == ["A3"] and not computation.tasks


def test_a_workspace_that_used_less_has_no_second_slot_while_another_one_waits() -> None:
    computation = Computation(slots=2)
    for row_id in ("b1", "b2"):
        computation.tasks.add(Session(row_id))
    computation.advance()
    time.sleep(0.01)
    computation.advance("b1")
    for row_id in ("a1", "a2", "b3"):
        computation.tasks.add(Session(row_id))
    computation.advance()
    assert computation.running == ["b2", "a1"]
    computation.advance("b2")
    computation.advance()
    assert computation.running == ["a1", "b3"]


def test_a_workspace_with_many_waiting_tasks_gets_no_further_one() -> None:
    computation = Computation(slots=1)
    for number in range(4):
        computation.tasks.add(Session(f"a{number}"))
    computation.tasks.add(Session("b0"))
    assert computation.tasks.list_full_tenants() == []
    computation.tasks.add(Session("a4"))
    assert computation.tasks.list_full_tenants() == [Tenant("a", "live")]
    computation.advance()
    assert computation.tasks.list_full_tenants() == []


def test_the_end_of_a_run_ends_the_tasks_under_way() -> None:
    computation = Computation(slots=2)
    computation.tasks.add(Session("a1"))
    computation.advance()
    computation.tasks.end()
    assert computation.running == []
