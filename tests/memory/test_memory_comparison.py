"""Two sides compared: what appeared, disappeared and changed, with both shares, by hand. Contract §4."""

import tracemalloc
from random import Random

import numpy as np

from recorder import clock
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.comparison import SessionSelection, compare_selections
from recorder.models.memory import MemoryComparison
from tests.support.graph_columns import Way, columns_of

#: Four of five once went A B, later all but one go A C.
COLUMNS = columns_of([("AB", "success", 4), ("AD", "error", 1), ("AC", "success", 3), ("AB", "success", 1)])
COLUMNS.variant_path[3], COLUMNS.trace[8:] = 0, 0
EARLIER, LATER = SessionSelection(until=clock.from_ms(5)), SessionSelection(since=clock.from_ms(5))


def compared(columns: GraphColumns = COLUMNS, **options: object) -> MemoryComparison:
    """Return the comparison of the later sessions with the earlier ones."""
    return compare_selections(columns, LATER, EARLIER, workflow="checkout", **options)  # type: ignore[arg-type]


def test_both_sides_are_described() -> None:
    comparison = compared()
    assert (comparison.selected.session_count, comparison.against.session_count) == (4, 5)
    assert comparison.against.outcomes is not None and comparison.selected.outcomes is not None
    assert (comparison.against.outcomes.error, comparison.selected.outcomes.error) == (0.2, 0)
    assert comparison.selected.median_duration_ms == 3_000
    assert (comparison.selected.since, comparison.selected.until) == (LATER.since, None)


def test_paths_say_how_they_changed_the_largest_change_first() -> None:
    paths = [
        (change.path_id, change.change, change.frequency, change.against_frequency)
        for change in compared().paths
    ]
    assert paths == [
        ("pth_02", "appeared", 0.75, 0),
        ("pth_00", "changed", 0.25, 0.8),
        ("pth_01", "disappeared", 0, 0.2),
    ]
    appeared, _, gone = compared().paths
    assert (appeared.session_count, appeared.against_session_count) == (3, 0)
    assert (appeared.outcomes is None, appeared.against_outcomes is None) == (False, True)
    assert (gone.median_duration_ms, gone.against_median_duration_ms) == (None, 3_000)


def test_nodes_and_edges_are_compared_by_their_sessions() -> None:
    comparison = compared()
    # Everybody comes through A: that did not change.
    assert [(change.label, change.change) for change in comparison.nodes] == [
        ("C", "appeared"),
        ("B", "changed"),
        ("D", "disappeared"),
    ]
    edges = {(change.source, change.target): change.change for change in comparison.edges}
    assert edges[("nde_A", "nde_C")] == "appeared" and edges[("nde_D", None)] == "disappeared"
    assert (None, "nde_A") not in edges


def test_small_changes_and_long_lists_are_cut() -> None:
    assert [change.path_id for change in compared(min_change=0.5).paths] == ["pth_02", "pth_00"]
    comparison = compared(limit=1)
    assert [len(comparison.paths), len(comparison.nodes), len(comparison.edges)] == [1, 1, 1]
    assert len(compared(min_change=0).paths) == 3


def test_kinds_of_actors_are_compared() -> None:
    columns = columns_of([("AB", "success", 2), ("AC", "success", 2)])
    columns.actor = np.array([1, 1, 2, 2])
    comparison = compare_selections(
        columns,
        SessionSelection(actor_kind="model"),
        SessionSelection(actor_kind="human"),
        workflow="checkout",
    )
    assert [(change.path_id, change.change) for change in comparison.paths] == [
        ("pth_00", "disappeared"),
        ("pth_01", "appeared"),
    ]


def test_a_side_without_sessions_has_no_shares() -> None:
    comparison = compare_selections(
        COLUMNS, SessionSelection(actor_kind="script"), EARLIER, workflow="checkout", outcome="success"
    )
    assert (
        comparison.selected.session_count,
        comparison.selected.outcomes,
        comparison.selected.median_duration_ms,
    ) == (
        0,
        None,
        None,
    )
    assert {change.change for change in comparison.paths} == {"disappeared"}


def test_equal_sides_do_not_differ() -> None:
    comparison = compare_selections(COLUMNS, LATER, LATER, workflow="checkout", min_change=0)
    assert (comparison.paths, comparison.nodes, comparison.edges) == ([], [], [])


def test_a_comparison_holds_no_changes_but_those_that_it_lists() -> None:
    chance = Random(1)
    ways: list[Way] = [([f"{chance.randrange(400)}" for _ in range(600)], "success", 1) for _ in range(20)]
    columns = columns_of(ways)
    columns.actor[:10], columns.actor[10:] = 1, 2
    people, agents = SessionSelection(actor_kind="human"), SessionSelection(actor_kind="model")

    def measure_peak(limit: int | None) -> int:
        tracemalloc.start()
        try:
            compare_selections(columns, people, agents, workflow="checkout", min_change=0, limit=limit)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    measure_peak(10)  # networks are kept
    assert measure_peak(10) < measure_peak(None) / 2
