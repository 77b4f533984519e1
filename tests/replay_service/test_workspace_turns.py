"""Turns of workspaces in a run: the time is shared, not the number of replays."""

from recorder import clock
from recorder.models.replay import ReplayRow
from recorder.replay_service.scheduling.workspace_turns import WorkspaceTurns
from recorder.tenant import Tenant


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


def test_a_workspace_that_comes_later_is_first_and_repays_no_past() -> None:
    turns = WorkspaceTurns()
    sort_ids(turns, "a1", "a2")
    turns.add_time(Tenant("a", "live"), 60.0)
    assert sort_ids(turns, "a2", "c1") == ["c1", "a2"]
    turns.add_time(Tenant("c", "live"), 5.0)
    assert sort_ids(turns, "a2", "c2") == ["a2", "c2"]
