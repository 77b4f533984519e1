"""Pages that several replays read: their trees are shared, and no result or limit depends on that."""

from typing import Any

import pytest

from recorder.replays.budget import Budget, BudgetExceeded
from recorder.replays.recorded_pages import RecordedPages
from recorder.replays.recorded_session import RecordedFrame, RecordedSession


def pages_of(*snapshots: dict[str, Any], visits: int = 1_000) -> RecordedPages:
    """Return the pages of a session with these snapshots."""
    frames = [
        RecordedFrame(f"frm_{number}", number, (), lambda dom=dom: dom)  # type: ignore[misc]
        for number, dom in enumerate(snapshots)
    ]
    return RecordedPages(RecordedSession("ses_1", [], frames, []), Budget(visits))


def page(*texts: str, **members: Any) -> dict[str, Any]:
    """Return a snapshot with buttons."""
    return {
        "v": 1,
        "format": "nodes",
        "html": ["html", {}, *[["button", {}, text] for text in texts]],
    } | members


def test_a_snapshot_that_another_replay_reads_has_the_same_tree_and_costs_as_much() -> None:
    snapshot = page("Save", "Send")
    first, second = pages_of(snapshot), pages_of(snapshot)
    assert first.read_page(0) is second.read_page(0) is not None
    assert first.budget.left == second.budget.left < 1_000
    with pytest.raises(BudgetExceeded):
        pages_of(snapshot, visits=2).read_page(0)


def test_a_snapshot_with_a_base_is_read_for_each_session() -> None:
    changed = page(base="frm_0")
    changed["html"].append([[1, 1]])
    read = [pages_of(page(text), changed).read_page(1) for text in ("Save", "Send")]
    assert [made.find_name(made.elements[1]) for made in read if made is not None] == ["Save", "Send"]


def test_few_trees_are_kept_and_no_large_one() -> None:
    snapshots = [page(f"Button {number}") for number in range(200)]
    first = pages_of(snapshots[0]).read_page(0)
    for snapshot in snapshots:
        pages_of(snapshot).read_page(0)
    assert pages_of(snapshots[0]).read_page(0) is not first
    large = page(*["Row"] * 2_000)
    assert pages_of(large, visits=9_000).read_page(0) is not pages_of(large, visits=9_000).read_page(0)


def test_roles_that_a_hostile_recording_asks_for_are_forgotten() -> None:
    made = pages_of(page("Save")).read_page(0)
    assert made is not None
    wanted = made.list_by_role("button")
    for number in range(1_000):
        assert made.list_by_role(f"role {number}") == []
    assert made.list_by_role("button") == wanted and len(wanted) == 1
