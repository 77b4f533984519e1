"""Shown ways: edits with free acts, optional nodes, and groups that split. Contract §4."""

from dataclasses import replace

import numpy as np
import pytest

from recorder.memory.graph.shown_way import (
    ShownWayVariants,
    choose_shown_way,
    count_edits,
    list_optional_nodes,
    split_ways,
)
from recorder.memory.queries.path_fit import derive_shown_ways
from tests.support.graph_columns import columns_of


def ways_of(*variants: tuple[str, int]) -> ShownWayVariants:
    """Return variants by their letters, each with its sessions."""
    sequences = [tuple(ord(letter) for letter in letters) for letters, _ in variants]
    return ShownWayVariants.of(sequences, [sessions for _, sessions in variants])


@pytest.mark.parametrize(
    ("taken", "edits"),
    [
        ("abcd", 0),
        ("abd", 0),
        ("ababcd", 0),
        ("acd", 1),
        ("axcd", 1),
        ("abcdx", 1),
        ("xyabcd", 2),
        ("", 3),
        ("wxyz", 4),
    ],
)
def test_leaving_out_an_optional_node_and_coming_back_cost_nothing(taken: str, edits: int) -> None:
    shown = np.array([ord(letter) for letter in "abcd"])
    optional = np.array([False, False, True, False])
    assert count_edits(shown, optional, ways_of((taken, 1), ("abcdabcdabcd", 1))).tolist() == [edits, 0]


def test_a_node_is_optional_where_a_tenth_of_the_sessions_leave_it_out() -> None:
    ways = ways_of(("abc", 85), ("ac", 10), ("bc", 5))
    assert list_optional_nodes(ways.sequence(0), ways).tolist() == [False, True, False]
    assert list_optional_nodes(ways.sequence(0), ways_of(("abc", 3))).tolist() == [False] * 3


def test_a_node_that_most_leave_out_is_not_optional_for_queries_either() -> None:
    columns = columns_of([("abxc", "success", 1), ("abc", "success", 6), ("bc", "success", 3)])
    merged = replace(columns, paths=columns.paths[:1], variant_path=np.zeros(3, dtype=np.int64))
    (optional,) = derive_shown_ways(merged).optional
    assert [columns.nodes[node].label for node in optional] == ["a"]


def test_the_way_shown_is_the_one_that_most_sessions_are_near() -> None:
    # The most frequent variant is far from the others, which are near each other.
    ways = ways_of(("xyzuv", 12), ("abcde", 6), ("abcdf", 6), ("abcdg", 6))
    way = choose_shown_way(ways)
    assert way.row == 1
    assert way.edits.tolist() == [5, 0, 1, 1]


def test_a_way_that_many_sessions_are_near_is_shown_where_others_come_before_it() -> None:
    # Each variant is of one session; the last ones, of which one is in the middle, are alike.
    apart = [(letters * 2, 1) for letters in ("abc", "def", "ghi", "jkl", "mno", "pqr", "stu", "vwx")]
    others = [(letters.upper(), 1) for letters, _ in apart]
    ways = ways_of(*apart, *others, ("12346", 1), ("12347", 1), ("12345", 1), ("1234", 1))
    assert choose_shown_way(ways).row >= len(apart) + len(others)
    assert int((choose_shown_way(ways).edits <= 1).sum()) == 4


def test_a_detour_of_few_sessions_is_not_the_way_shown() -> None:
    # Nodes that most leave out are not optional, so the variant with the detour is far from the others.
    ways = ways_of(("abcdef", 70), ("abxyzcdef", 12), ("abcde", 10))
    assert list_optional_nodes(ways.sequence(1), ways).tolist() == [False] * 8 + [True]
    assert choose_shown_way(ways).row == 0
    assert sorted(part.tolist() for part in split_ways(ways)) == [[0, 2], [1]]


def test_a_group_splits_where_enough_sessions_go_another_way() -> None:
    parts = split_ways(ways_of(("abcdef", 40), ("abcdeg", 5), ("axyzwf", 20), ("axyzwg", 3)))
    assert sorted(part.tolist() for part in parts) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("others", [[("axyzwf", 7)], [("axyzwf", 5), ("apqrsf", 5), ("atuvnf", 5)]])
def test_a_group_stays_where_few_go_another_way_or_all_another(others: list[tuple[str, int]]) -> None:
    (part,) = split_ways(ways_of(("abcdef", 40), *others))
    assert len(part) == 1 + len(others)


def test_very_long_sequences_are_compared_by_their_beginning() -> None:
    ways = ShownWayVariants.of([tuple(range(600)), (*range(500), 7_000)], [1, 1])
    assert choose_shown_way(ways).edits.tolist() == [0, 0]
