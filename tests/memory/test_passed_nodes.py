"""Nodes that a failed session passed: which are candidates, what is counted, and whose way is repeated."""

from collections.abc import Mapping, Sequence

from recorder.memory.graph.arrays import Ints
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.passed_nodes import PassedNode, PassedNodes, find_passed_node
from tests.support.graph_columns import Way, columns_of

#: Every step takes a second: the nth node is entered n seconds after the start, the stop is one later.
CLEAN: Way = ("ABCD", "success", 5)


def no_tags(_: Ints) -> Mapping[int, Sequence[int]]:
    return {}


def passed(
    columns: GraphColumns, row: int, failed_ms: Mapping[int, int], tags: Sequence[int] = ()
) -> dict[str, PassedNode]:
    candidates = PassedNodes(columns, row, failed_ms, no_tags).list_candidates(tags)
    return {columns.nodes[node.node].label: node for node in candidates}


def counts(nodes: Mapping[str, PassedNode]) -> dict[str, tuple[int, int]]:
    return {label: (node.hits, node.successes) for label, node in nodes.items()}


def test_candidates_are_the_nodes_that_no_success_gets_round() -> None:
    columns = columns_of([CLEAN, ("ACD", "success", 1), ("ABX", "error", 1)])
    nodes = passed(columns, 6, {6: 3_000})
    # B can be left out, and X is the act that failed.
    assert list(nodes) == ["A"]
    assert (nodes["A"].pos, nodes["A"].entered_ms, nodes["A"].basis) == (0, 1_000, "cross_session")
    tagged = passed(columns, 6, {6: 3_000}, [2_000])
    assert counts(tagged) == {"A": (7, 6), "B": (6, 5)}
    # A tag after the last step is that of none.
    assert list(passed(columns, 6, {6: 3_000}, [3_500])) == ["A"]


def test_returns_of_failed_sessions_count_before_those_of_others() -> None:
    columns = columns_of([CLEAN, ("ABXBCD", "success", 3), ("ABX", "error", 1), ("AX", "error", 2)])
    failed_ms = {5: 3_000, 6: 3_000, 7: 3_000, 8: 3_000, 9: 2_000, 10: 2_000}
    nodes = passed(columns, 8, failed_ms)
    assert {node.basis for node in nodes.values()} == {"in_session"}
    assert counts(nodes) == {"A": (6, 3), "B": (4, 3)}
    # From B at 4 s to the stop at 7 s; none went back to A.
    assert (nodes["B"].median_recovery_ms, nodes["A"].median_recovery_ms) == (3_000, None)
    assert (nodes["B"].pos, nodes["B"].entered_ms) == (1, 2_000)


def test_donors_took_the_most_frequent_way_and_the_most_similar_come_first() -> None:
    ways: list[Way] = [
        ("ABCD", "success", 2),
        ("APBCD", "success", 2),
        ("AQBCED", "success", 3),
        ("AQBX", "error", 1),
    ]
    columns = columns_of(ways)
    node = passed(columns, 7, {7: 4_000})["B"]
    # Four went B C D; of them none came by Q, so the newest of the most similar ones is first.
    assert {donor.row for donor in node.donors} == {0, 1, 2, 3}
    assert [donor.pos for donor in node.donors if donor.row in (2, 3)] == [2, 2]
    again = PassedNodes(columns, 7, {7: 4_000}, no_tags).describe(node.node)
    assert again == node


def test_of_equally_frequent_ways_the_shortest_counts_then_the_least() -> None:
    columns = columns_of(
        [("ABCED", "success", 2), ("ABED", "success", 2), ("ABCD", "success", 2), ("ABX", "error", 1)]
    )
    node = passed(columns, 6, {6: 3_000})["A"]
    # C came before E into the graph.
    assert {donor.row for donor in node.donors} == {4, 5}


def test_without_clean_successes_those_that_returned_are_donors() -> None:
    columns = columns_of([("ABXBC", "success", 2), ("ABX", "error", 1)])
    nodes = passed(columns, 2, {0: 3_000, 1: 3_000, 2: 3_000})
    assert [(donor.row, donor.pos) for donor in nodes["B"].donors] == [(1, 3), (0, 3)]


def test_purged_sessions_count_and_are_no_donors() -> None:
    columns = columns_of([("ABCD", "success", 9), ("ABED", "success", 2), ("ABX", "error", 1)])
    columns.session_id[:9] = [f"ano_{row}".encode() for row in range(9)]
    node = passed(columns, 11, {11: 3_000})["B"]
    assert (node.hits, node.successes) == (12, 11)
    assert {donor.row for donor in node.donors} == {9, 10}


def test_a_session_that_passed_nothing_has_no_candidates() -> None:
    columns = columns_of([CLEAN, ("X", "error", 1)])
    assert passed(columns, 5, {5: 1_000}) == passed(columns, 5, {5: 0}) == {}
    node = find_passed_node(columns, 0, 2_500)
    assert node is not None and columns.nodes[node].label == "B"
    assert find_passed_node(columns, 0, 999) is None
    described = PassedNodes(columns, 5, {5: 1_000}, no_tags).describe(node)
    assert (described.pos, described.hits, described.successes) == (None, 5, 5)
