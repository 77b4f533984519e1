"""Recovery: anchors, their shares and times, and who witnesses them, by hand. Spec §2.7."""

from collections.abc import Mapping, Sequence

import numpy as np

from recorder.memory.graph.arrays import Ints
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.recovery_anchors import Anchor, find_recovery_anchors
from tests.support.graph_columns import Way, columns_of

#: Every step takes a second: the nth node is entered n seconds after the start, the stop is one later.
CLEAN: Way = ("ABCD", "success", 5)


def anchors(
    columns: GraphColumns,
    failed_ms: Mapping[int, int],
    successes: Mapping[int, Sequence[int]] | None = None,
) -> list[Anchor]:
    """Return the anchors of sessions that failed at these times, by row."""

    def read_successes(_: Ints) -> Mapping[int, Sequence[int]]:
        return successes or {}

    return find_recovery_anchors(columns, columns.current(), failed_ms, read_successes)


def test_the_anchor_is_the_first_node_after_the_failure() -> None:
    columns = columns_of([CLEAN, ("ABXCD", "success", 3), ("ABX", "error", 1)])
    (anchor,) = anchors(columns, {5: 3_000, 6: 3_000, 7: 3_500, 8: 3_000})
    assert (columns.nodes[anchor.node].label, anchor.basis) == ("C", "in_session")
    # Three of the four that failed came back there; from C it is two seconds to the stop.
    assert (anchor.session_count, anchor.frequency, anchor.median_recovery_ms) == (3, 0.75, 2_000)


def test_a_node_that_is_entered_with_the_tag_is_not_after_it() -> None:
    columns = columns_of([CLEAN, ("ABCD", "success", 1)])
    assert [columns.nodes[anchor.node].label for anchor in anchors(columns, {5: 2_000})] == ["C"]
    assert [columns.nodes[anchor.node].label for anchor in anchors(columns, {5: 1_999})] == ["B"]


def test_only_sessions_that_end_in_success_recover() -> None:
    columns = columns_of([CLEAN, ("AXBCD", "abandoned", 2), ("AXCD", "success", 1)])
    (anchor,) = anchors(columns, {5: 2_000, 6: 2_000, 7: 2_000})
    assert (columns.nodes[anchor.node].label, anchor.frequency) == ("C", 1 / 3)


def test_the_anchor_is_the_first_node_that_is_on_a_path_of_success() -> None:
    columns = columns_of([CLEAN, ("AXYCD", "success", 1), ("AXBCD", "success", 1)])
    # Both failing sessions are on the clean path, whose leader knows neither X nor Y.
    columns.variant_path[:] = 0
    ranked = anchors(columns, {5: 2_000, 6: 2_000})
    ranked_labels = [(columns.nodes[anchor.node].label, anchor.frequency) for anchor in ranked]
    assert ranked_labels == [("B", 0.5), ("C", 0.5)]


def test_anchors_come_by_frequency_and_then_by_id() -> None:
    ways: list[Way] = [CLEAN, ("XCD", "success", 2), ("XBCD", "success", 1), ("XABCD", "success", 1)]
    columns = columns_of(ways)
    ranked = anchors(columns, dict.fromkeys(range(5, 9), 1_000))
    assert [columns.nodes[anchor.node].label for anchor in ranked] == ["C", "A", "B"]
    assert [anchor.frequency for anchor in ranked] == [0.5, 0.25, 0.25]


def test_recovery_ends_with_the_first_success_tag_after_the_anchor_or_with_the_stop() -> None:
    columns = columns_of([CLEAN, ("AXCD", "success", 1)])
    for tags, recovery_ms in (([3_400], 400), ([1_000, 3_900, 9_000], 900), ([1_000], 2_000), ([3_000], 0)):
        (anchor,) = anchors(columns, {5: 2_000}, {5: tags})
        assert anchor.median_recovery_ms == recovery_ms


def test_the_session_of_the_median_is_its_first_witness_the_newest_of_equals() -> None:
    columns = columns_of([CLEAN, ("AXCD", "success", 4)])
    failed = dict.fromkeys(range(5, 9), 2_000)
    (anchor,) = anchors(columns, failed, {5: [3_100], 6: [3_500], 7: [3_900], 8: [3_500]})
    assert anchor.median_recovery_ms == 500
    assert [witness.row for witness in anchor.witnesses] == [8, 6, 7, 5]
    assert {witness.pos for witness in anchor.witnesses} == {2}
    (even,) = anchors(columns, failed, {5: [3_100], 6: [3_201], 7: [3_900], 8: [3_500]})
    assert (even.median_recovery_ms, [witness.row for witness in even.witnesses[:2]]) == (350, [8, 6])


def test_where_nobody_recovered_the_last_shared_node_is_the_anchor() -> None:
    columns = columns_of([CLEAN, ("ABX", "error", 3), ("ABCX", "abandoned", 1), ("X", "error", 1)])
    ranked = anchors(columns, dict.fromkeys(range(5, 10), 4_000))
    assert [(columns.nodes[anchor.node].label, anchor.basis, anchor.frequency) for anchor in ranked] == [
        ("B", "cross_session", 0.6),
        ("C", "cross_session", 0.2),
    ]
    # Those who succeeded tell how long it takes from there: from B three seconds, from C two.
    assert [anchor.median_recovery_ms for anchor in ranked] == [3_000, 2_000]
    assert ranked[0].witnesses[0].row == 4 and len(ranked[0].witnesses) == 5


def test_places_are_those_of_steps_not_of_nodes() -> None:
    columns = columns_of([CLEAN, ("AXCD", "success", 1)])
    # Its trace stayed on A for three steps: X is its fourth, C its fifth.
    columns.trace_entry[4:] = [0, 3, 4, 5]
    columns.step_ms = np.array([*[1_000] * 25, *[500] * 7])
    columns.time_start[-1] = 32
    columns.duration_ms[5] = 3_500
    (anchor,) = anchors(columns, {5: 2_000})
    assert (anchor.witnesses[0].pos, anchor.median_recovery_ms) == (4, 1_000)


def test_without_failures_or_success_there_is_no_anchor() -> None:
    columns = columns_of([CLEAN, ("ABX", "error", 1)])
    assert anchors(columns, {}) == []
    assert anchors(columns_of([("ABX", "error", 2)]), {0: 2_000}) == []


def test_only_a_few_witnesses_are_told_the_first_of_the_whole_order() -> None:
    columns = columns_of([CLEAN, ("AXCD", "success", 20), ("AXBCD", "success", 9)])
    failed, tags = dict.fromkeys(range(5, 34), 2_000), {row: [4_000 + row * 10] for row in range(5, 34)}

    def told(limit: int) -> list[Anchor]:
        return find_recovery_anchors(columns, columns.current(), failed, lambda _: tags, witnesses=limit)

    whole, few, none = told(100), told(3), told(0)
    assert [len(anchor.witnesses) for anchor in whole] == [20, 9]
    assert [anchor.witnesses for anchor in few] == [anchor.witnesses[:3] for anchor in whole]
    assert [anchor.witnesses for anchor in none] == [(), ()]
    assert [(anchor.node, anchor.median_recovery_ms) for anchor in none] == [
        (anchor.node, anchor.median_recovery_ms) for anchor in whole
    ]


def test_purged_sessions_count_and_are_no_witnesses() -> None:
    columns = columns_of([("ABCD", "success", 9), ("ABX", "error", 1)])
    columns.session_id[:8] = [f"ano_{row}".encode() for row in range(8)]
    (anchor,) = anchors(columns, {9: 3_000}, {row: [5_000] for row in range(8)} | {8: [9_000]})
    assert anchor.median_recovery_ms == 3_000
    assert [witness.row for witness in anchor.witnesses] == [8]
    columns = columns_of([("ABCD", "success", 2), ("ABX", "error", 1)])
    columns.session_id[:2] = [b"ano_0", b"ano_1"]
    (anchor,) = anchors(columns, {2: 3_000})
    assert (anchor.session_count, anchor.witnesses) == (1, ())
