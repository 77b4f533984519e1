"""Turns of workspaces in a run: the time is shared, not the number of replays."""

from recorder import clock
from recorder.models.replay import ReplayRow
from recorder.rotation import FairTurns
from recorder.tenant import Tenant
from recorder.workspace_turns import WorkspaceTurns


def make_rows(*row_ids: str) -> list[ReplayRow]:
    """Rows of the workspaces that the ids begin with."""
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


def sort_ids(turns: WorkspaceTurns, *row_ids: str) -> list[str]:
    """The ids in the order of the turns."""
    return [row.id for row in turns.sort(make_rows(*row_ids))]


def test_many_quick_replays_take_as_long_as_a_slow_one() -> None:
    turns = WorkspaceTurns()
    rows = ("a1", "a2", "b1", "b2", "b3", "b4", "b5")
    assert sort_ids(turns, *rows) == ["a1", "b1", "a2", "b2", "b3", "b4", "b5"]
    turns.add_time(Tenant("a", "live"), 3.0)
    turns.add_time(Tenant("b", "live"), 1.0)
    assert sort_ids(turns, *rows) == ["b1", "b2", "a1", "b3", "b4", "b5", "a2"]


def test_the_workspace_that_used_least_is_next_and_a_new_one_before_it() -> None:
    turns = WorkspaceTurns()
    busy, other, new = (Tenant(name, "live") for name in "abc")
    assert turns.choose([]) is None
    assert turns.choose([busy, other]) == busy
    turns.add_time(busy, 2.0)
    assert turns.choose([busy, other]) == other
    turns.add_time(other, 1.0)
    assert turns.choose([busy, other]) == other
    assert turns.choose([busy, other, new]) == new


def test_a_workspace_that_comes_later_is_first_and_repays_no_past() -> None:
    turns = WorkspaceTurns()
    sort_ids(turns, "a1", "a2")
    turns.add_time(Tenant("a", "live"), 60.0)
    assert sort_ids(turns, "a2", "c1") == ["c1", "a2"]
    turns.add_time(Tenant("c", "live"), 5.0)
    assert sort_ids(turns, "a2", "c2") == ["a2", "c2"]


def test_a_workspace_that_waits_gets_its_turn_beside_two_that_alternate() -> None:
    turns = WorkspaceTurns()
    waiting, first, second = Tenant("a", "live"), Tenant("b", "live"), Tenant("b", "test")
    chosen = []
    for number in range(300):
        other = first if number % 2 else second
        tenant = turns.choose([other, waiting])
        assert tenant is not None
        chosen.append(tenant)
        turns.add_time(tenant, 1.0)
    assert chosen.count(waiting) == 100


def test_a_workspace_that_waits_precedes_ever_new_ones() -> None:
    turns, waiting = WorkspaceTurns(), Tenant("a", "live")
    turns.choose([Tenant("b", "live"), waiting])
    turns.add_time(Tenant("b", "live"), 10.0)
    assert turns.choose([Tenant("c", "live"), waiting]) == waiting


def test_a_workspace_alone_owes_nothing_to_one_that_comes_later() -> None:
    turns, alone, later = WorkspaceTurns(), Tenant("a", "live"), Tenant("b", "live")
    for _ in range(100):
        assert turns.choose([alone]) == alone
        turns.add_time(alone, 1.0)
    assert turns.choose([]) is None
    assert turns.choose([later, alone]) == later
    turns.add_time(later, 1.0)
    assert turns.choose([later, alone]) == alone


def test_the_cost_of_an_owner_that_waits_no_longer_is_added_to_the_least_one() -> None:
    turns = FairTurns[str]()
    turns.set_waiting(["a", "b"])
    for owner in ("a", "b"):
        turns.add_cost(owner, 100.0)
    turns.set_waiting(["a"])
    turns.add_cost("b", 50.0)
    turns.set_waiting(["a", "b"])
    assert (turns.get_cost("a"), turns.get_cost("b")) == (100.0, 150.0)
