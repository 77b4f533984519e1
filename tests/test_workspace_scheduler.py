"""Turns of workspaces in a run: the time is shared, not the number of replays."""

from recorder import clock
from recorder.fair_scheduling import LeastCostScheduler
from recorder.models.replay import ReplayRow
from recorder.tenant import Tenant
from recorder.workspace_scheduler import WorkspaceScheduler


def make_rows(*row_ids: str) -> list[ReplayRow]:
    """Return the rows of the workspaces that the ids begin with."""
    return [
        ReplayRow(
            id=row_id,
            workspace_id=row_id[0],
            mode="live",
            workflow="approve",
            session_id="ses_1",
            sandbox="dry",
            kind="full",
            status="queued",
            spec={},
            input_names=[],
            decisions={},
            created_at=clock.now(),
        )
        for row_id in row_ids
    ]


def sort_ids(scheduler: WorkspaceScheduler, *row_ids: str) -> list[str]:
    """Return the ids in the order of the scheduler."""
    return [row.id for row in scheduler.sort(make_rows(*row_ids))]


def test_many_quick_replays_take_as_long_as_a_slow_one() -> None:
    scheduler = WorkspaceScheduler()
    rows = ("a1", "a2", "b1", "b2", "b3", "b4", "b5")
    assert sort_ids(scheduler, *rows) == ["a1", "b1", "a2", "b2", "b3", "b4", "b5"]
    scheduler.add_time(Tenant("a", "live"), 3.0)
    scheduler.add_time(Tenant("b", "live"), 1.0)
    assert sort_ids(scheduler, *rows) == ["b1", "b2", "a1", "b3", "b4", "b5", "a2"]


def test_the_workspace_that_used_least_is_next_and_a_new_one_before_it() -> None:
    scheduler = WorkspaceScheduler()
    busy, other, new = (Tenant(name, "live") for name in "abc")
    assert scheduler.choose([]) is None
    assert scheduler.choose([busy, other]) == busy
    scheduler.add_time(busy, 2.0)
    assert scheduler.choose([busy, other]) == other
    scheduler.add_time(other, 1.0)
    assert scheduler.choose([busy, other]) == other
    assert scheduler.choose([busy, other, new]) == new


def test_a_workspace_that_comes_later_is_first_and_repays_no_past() -> None:
    scheduler = WorkspaceScheduler()
    sort_ids(scheduler, "a1", "a2")
    scheduler.add_time(Tenant("a", "live"), 60.0)
    assert sort_ids(scheduler, "a2", "c1") == ["c1", "a2"]
    scheduler.add_time(Tenant("c", "live"), 5.0)
    assert sort_ids(scheduler, "a2", "c2") == ["a2", "c2"]


def test_a_workspace_that_waits_gets_its_turn_beside_two_that_alternate() -> None:
    scheduler = WorkspaceScheduler()
    waiting, first, second = Tenant("a", "live"), Tenant("b", "live"), Tenant("b", "test")
    chosen = []
    for number in range(300):
        other = first if number % 2 else second
        tenant = scheduler.choose([other, waiting])
        assert tenant is not None
        chosen.append(tenant)
        scheduler.add_time(tenant, 1.0)
    assert chosen.count(waiting) == 100


def test_a_workspace_that_waits_precedes_ever_new_ones() -> None:
    scheduler, waiting = WorkspaceScheduler(), Tenant("a", "live")
    scheduler.choose([Tenant("b", "live"), waiting])
    scheduler.add_time(Tenant("b", "live"), 10.0)
    assert scheduler.choose([Tenant("c", "live"), waiting]) == waiting


def test_a_workspace_alone_owes_nothing_to_one_that_comes_later() -> None:
    scheduler, alone, later = WorkspaceScheduler(), Tenant("a", "live"), Tenant("b", "live")
    for _ in range(100):
        assert scheduler.choose([alone]) == alone
        scheduler.add_time(alone, 1.0)
    assert scheduler.choose([]) is None
    assert scheduler.choose([later, alone]) == later
    scheduler.add_time(later, 1.0)
    assert scheduler.choose([later, alone]) == alone


def test_the_cost_of_an_owner_that_waits_no_longer_is_added_to_the_least_one() -> None:
    scheduler = LeastCostScheduler[str]()
    scheduler.set_waiting(["a", "b"])
    for owner in ("a", "b"):
        scheduler.add_cost(owner, 100.0)
    scheduler.set_waiting(["a"])
    scheduler.add_cost("b", 50.0)
    scheduler.set_waiting(["a", "b"])
    assert (scheduler.get_cost("a"), scheduler.get_cost("b")) == (100.0, 150.0)
