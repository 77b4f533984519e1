"""Similar sessions: weights, ties and what is left out, by hand. Contract §4."""

from collections.abc import Sequence
from math import log, sqrt

import numpy as np
import pytest

from recorder.memory.queries.columns import NOWHERE, GraphColumns, lookup_of
from recorder.memory.queries.similarity import Similar, SimilarIndex, similar_index
from recorder.memory.queries.tfidf import bags_of
from tests.support.graph_columns import Way, columns_of


def columns_with_grains(ways: Sequence[Way], screens: str = "", acts: str = "") -> GraphColumns:
    """Columns whose nodes, in the order of their first visit, have these screens and acts; else their own."""
    columns = columns_of(ways)
    columns.nodes = [
        node._replace(
            screen=ord(screens[place]) if screens else place, act=ord(acts[place]) if acts else place
        )
        for place, node in enumerate(columns.nodes)
    ]
    return columns


def nearest(columns: GraphColumns, row: int, limit: int = 10) -> list[Similar]:
    """The sessions most like that of a row."""
    return similar_index(columns).nearest(row, limit)


def test_the_similarity_is_the_cosine_of_weighted_nodes_and_edges() -> None:
    columns = columns_with_grains([("AB", "success", 2), ("AC", "success", 1)])
    # A is in all three, so it weighs the least that anything does; B and AB are in two, C and AC in one.
    a, b, c = 0.05, log(4 / 3), log(4 / 2)
    expected = a**2 / (sqrt(a**2 + 2 * b**2) * sqrt(a**2 + 2 * c**2))
    (alike, other) = nearest(columns, 0)
    assert (alike.row, alike.similarity) == (1, 1.0)
    assert (other.row, other.similarity) == (2, pytest.approx(expected, abs=1e-9))


def test_what_comes_often_in_a_session_weighs_more() -> None:
    columns = columns_with_grains([("ABAB", "success", 1), ("AB", "success", 1), ("C", "success", 8)])
    one, often = log(11 / 3), log(11 / 3) * (1 + log(2))
    rare = log(11 / 2)
    shared = 3 * one * often
    expected = shared / (sqrt(3 * often**2 + rare**2) * sqrt(3) * one)
    (other,) = nearest(columns, 0)
    assert (other.row, other.similarity) == (1, pytest.approx(expected, abs=1e-9))


def test_screens_and_actions_make_different_nodes_alike() -> None:
    ways = [("AB", "success", 1), ("CD", "success", 1), ("EF", "success", 1)]
    assert nearest(columns_with_grains(ways), 0) == []
    on_like_screens = nearest(columns_with_grains(ways, screens="121234"), 0)
    assert [one.row for one in on_like_screens] == [1] and 0 < on_like_screens[0].similarity < 1
    assert [one.row for one in nearest(columns_with_grains(ways, acts="123412"), 0)] == [2]


def test_equally_similar_sessions_come_by_outcome_then_the_newest_then_by_id() -> None:
    columns = columns_with_grains([("AB", "success", 4), ("AB", "error", 2)])
    columns.trace[:] = 0
    columns.started_ms = np.array([0, 5, 9, 5, 1, 20])
    assert [one.row for one in nearest(columns, 0)] == [2, 1, 3, 5, 4]
    assert [one.row for one in nearest(columns, 4)] == [5, 2, 1, 3, 0]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_a_limit_keeps_the_first_of_the_whole_order(limit: int) -> None:
    ways = [("ABC", "success", 3), ("ABD", "error", 3), ("AB", "success", 2), ("XYZ", "success", 4)]
    columns = columns_with_grains(ways)
    whole = nearest(columns, 1, 500)
    assert len(whole) == 7
    assert nearest(columns, 1, limit) == whole[:limit]


def test_shared_nodes_come_in_the_order_of_the_session_asked_for() -> None:
    columns = columns_with_grains([("ABCA", "success", 1), ("CXA", "success", 1)])
    assert [one.shared_nodes for one in nearest(columns, 0)] == [(0, 2)]
    assert [one.shared_nodes for one in nearest(columns, 1)] == [(2, 0)]


def test_a_session_without_steps_is_like_others_without() -> None:
    columns = columns_with_grains([("", "success", 3), ("AB", "success", 2)])
    assert [(one.row, one.similarity, one.shared_nodes) for one in nearest(columns, 1)] == [
        (2, 1.0, ()),
        (0, 1.0, ()),
    ]


def test_sessions_that_were_taken_out_are_not_found_and_not_counted() -> None:
    columns = columns_with_grains([("AB", "success", 3), ("AC", "success", 2)])
    columns.removed[[1, 3, 4]] = 1
    assert [one.row for one in nearest(columns, 0)] == [2]
    assert lookup_of(columns).find(["ses_0", "ses_1", "ses_nobody"]).tolist() == [0, NOWHERE, NOWHERE]


def test_the_weights_are_made_once_for_each_version() -> None:
    columns = columns_with_grains([("AB", "success", 3)])
    assert similar_index(columns) is similar_index(columns)
    assert isinstance(similar_index(columns), SimilarIndex)


def grown(columns: GraphColumns, before: Sequence[Way], *ways: Way) -> GraphColumns:
    """The next version of columns of some ways, in which sessions came on others."""
    later = columns_with_grains([*before, *ways])
    later.version, later.lasting = 2, columns.lasting
    later.added[len(columns.session_id) :] = 2
    return later


def test_weights_outlast_a_version_that_brings_few_sessions() -> None:
    ways: list[Way] = [("AB", "success", 50), ("CD", "success", 50)]
    columns = columns_with_grains(ways)
    weights = bags_of(columns)
    later = grown(columns, ways, ("AB", "error", 1), ("ABX", "success", 1))
    newer = nearest(later, 0, 200)
    assert bags_of(later).version == weights.version == 1
    # The same nodes in a variant of its own, and one with a node that no weight was made for.
    assert [one.similarity for one in newer if one.row == 100] == [1.0]
    old, unseen = log(101 / 51), log(101 / 1)
    # Three grains of A, B and AB are shared; X and BX, at three grains, are not.
    expected = 9 * old**2 / (3 * old * sqrt(9 * old**2 + 6 * unseen**2))
    assert [one.similarity for one in newer if one.row == 101] == [pytest.approx(expected, abs=1e-9)]
    assert nearest(later, 101, 200)[-1].similarity == pytest.approx(expected, abs=1e-9)
    assert {one.row for one in newer} == {*range(1, 50), 100, 101}


def test_deleted_sessions_are_left_out_also_where_weights_are_older() -> None:
    ways: list[Way] = [("AB", "success", 2), ("ABC", "success", 1), ("D", "success", 97)]
    columns = columns_with_grains(ways)
    assert [one.row for one in nearest(columns, 0)] == [1, 2]
    later = grown(columns, ways, ("ABE", "success", 1))
    later.removed[[1, 2]] = 2
    # None is left of the second variant: it takes no place among the nearest.
    assert [one.row for one in nearest(later, 0, 1)] == [100]
    assert bags_of(later).version == 1


def test_weights_are_made_anew_when_a_twentieth_of_the_sessions_came_or_went() -> None:
    ways: list[Way] = [("AB", "success", 50), ("CD", "success", 50)]
    columns = columns_with_grains(ways)
    nearest(columns, 0)
    later = grown(columns, ways, ("ABX", "success", 3))
    later.removed[:3] = 2
    fresh = grown(columns_with_grains(ways), ways, ("ABX", "success", 3))
    fresh.removed[:3] = 2
    assert bags_of(later).version == 2
    assert nearest(later, 4, 200) == nearest(fresh, 4, 200)


def test_a_reader_of_an_earlier_version_may_use_what_a_later_one_made() -> None:
    ways: list[Way] = [("AB", "success", 50), ("CD", "success", 50)]
    columns = columns_with_grains(ways)
    later = grown(columns, ways, ("ABX", "success", 3))
    nearest(later, 0)
    assert {one.row for one in nearest(columns, 0, 200)} == set(range(1, 50))
