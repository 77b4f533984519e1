"""Similar sessions: the measure, ties and what is left out, by hand. Contract §4."""

from collections.abc import Sequence

import numpy as np
import pytest

from recorder.memory.queries.columns import NOWHERE, GraphColumns, make_session_lookup
from recorder.memory.queries.similarity import SimilarityIndex, SimilarRow, index_similarity
from recorder.memory.queries.step_vectors import step_vectors
from tests.support.graph_columns import Way, columns_of


def columns_with_grains(ways: Sequence[Way], screens: str = "") -> GraphColumns:
    """Return columns whose nodes, in the order of their first visit, have these screens, else their own."""
    columns = columns_of(ways)
    columns.nodes = [
        node._replace(screen=ord(screens[number]) if screens else number, act=number)
        for number, node in enumerate(columns.nodes)
    ]
    return columns


def nearest(columns: GraphColumns, row: int, limit: int = 10) -> list[SimilarRow]:
    """Return the sessions most like that of a row."""
    return index_similarity(columns).nearest(row, limit)


def with_parts(columns: GraphColumns) -> GraphColumns:
    """Return the columns with screens that have no part in common."""
    columns.nodes = [
        node._replace(parts=(3 * number, 3 * number + 1, 3 * number + 2))
        for number, node in enumerate(columns.nodes)
    ]
    return columns


def test_sessions_of_the_same_way_have_similarity_1_also_where_all_sessions_take_it() -> None:
    columns = columns_with_grains([("ABCDE", "success", 40), ("ABC", "success", 2), ("D", "error", 1)])
    assert [similar.similarity for similar in nearest(columns, 0, 39)] == [1.0] * 39
    assert [similar.similarity for similar in nearest(columns, 42, 39)][:1] != [1.0]


def test_purged_sessions_take_no_place_of_those_that_can_be_listed() -> None:
    columns = columns_with_grains([("ABC", "success", 9), ("ABCD", "success", 2)])
    columns.session_id[1:9] = [f"ano_{row}".encode() for row in range(1, 9)]
    assert {similar.row for similar in nearest(columns, 0, 2)} == {9, 10}


@pytest.mark.parametrize("length", [2, 4, 8, 16])
@pytest.mark.parametrize("is_alternating", [False, True])
def test_half_of_the_steps_shared_is_about_a_half(length: int, is_alternating: bool) -> None:
    shared = [f"s{step}" for step in range(length)]
    kept = range(0, length, 2) if is_alternating else range(length // 2)
    other = [name if step in kept else f"o{step}" for step, name in enumerate(shared)]
    columns = with_parts(columns_with_grains([(shared, "success", 30), (other, "success", 20)]))
    similarity = nearest(columns, 0, 40)[-1].similarity
    assert 0.35 <= similarity <= 0.6
    # On the screens of a single page, what is done there counts.
    on_a_page = columns_with_grains([(shared, "success", 3), (other, "success", 2)])
    on_a_page.nodes = [node._replace(screen=0, parts=(1, 2, 3)) for node in on_a_page.nodes]
    assert 0.5 <= nearest(on_a_page, 0, 40)[-1].similarity <= 0.75


@pytest.mark.parametrize("shared", [1, 3, 5, 7, 9])
def test_similarity_rises_with_the_share_of_equal_steps(shared: int) -> None:
    first = [f"s{step}" for step in range(10)]
    ways = [(first, "success", 1)] + [
        ([*first[:kept], *(f"o{kept}.{step}" for step in range(kept, 10))], "success", 1)
        for kept in (shared - 1, shared)
    ]
    columns = with_parts(columns_with_grains(ways))
    by_row = {similar.row: similar.similarity for similar in nearest(columns, 0)}
    assert by_row.get(1, 0.0) < by_row.get(2, 0.0) or shared == 1
    assert by_row.get(2, 0.0) == pytest.approx(shared / 10, abs=0.1)


def test_sessions_that_share_only_a_generic_act_are_left_out() -> None:
    ways: list[Way] = [("ABCx", "success", 5), ("DEFy", "success", 5), ("Gz", "success", 5)]
    columns = columns_with_grains(ways)
    # x, y and z press Enter, each on a screen of its own.
    enter = [node._replace(act=99) if node.label in "xyz" else node for node in columns.nodes]
    columns.nodes = [node._replace(parts=(0, 10 + number)) for number, node in enumerate(enter)]
    for row in (0, 5, 10):
        similar = nearest(columns, row)
        assert len(similar) == 4
        assert {item.similarity for item in similar} == {1.0}


def test_screens_and_their_parts_make_different_nodes_similar() -> None:
    ways: list[Way] = [("AB", "success", 1), ("CD", "success", 1), ("EF", "success", 1)]
    assert nearest(columns_with_grains(ways), 0) == []
    on_like_screens = nearest(columns_with_grains(ways, screens="121234"), 0)
    assert [similar.row for similar in on_like_screens] == [1] and 0 < on_like_screens[0].similarity < 1
    columns = columns_with_grains(ways)
    parts = [(1, 2), (3,), (4,), (5,), (1, 2), (3,)]
    columns.nodes = [node._replace(parts=some) for node, some in zip(columns.nodes, parts, strict=True)]
    assert [similar.row for similar in nearest(columns, 0)] == [2]


def test_repeats_of_a_loop_cost_nothing() -> None:
    columns = columns_with_grains([("ABAB", "success", 1), ("ABABABAB", "success", 1), ("C", "success", 8)])
    (other,) = nearest(columns, 0)
    assert (other.row, other.similarity) == (1, 1.0)


def test_equally_similar_sessions_come_by_outcome_then_the_newest_then_by_id() -> None:
    columns = columns_with_grains([("AB", "success", 4), ("AB", "error", 2)])
    columns.trace[:] = 0
    columns.started_ms = np.array([0, 5, 9, 5, 1, 20])
    assert [similar.row for similar in nearest(columns, 0)] == [2, 1, 3, 5, 4]
    assert [similar.row for similar in nearest(columns, 4)] == [5, 2, 1, 3, 0]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_a_limit_keeps_the_first_of_the_whole_order(limit: int) -> None:
    ways = [("ABC", "success", 3), ("ABD", "error", 3), ("AB", "success", 2), ("XYZ", "success", 4)]
    columns = columns_with_grains(ways)
    whole = nearest(columns, 1, 500)
    assert len(whole) == 7
    assert nearest(columns, 1, limit) == whole[:limit]


def test_shared_nodes_come_in_the_order_of_the_session_asked_for() -> None:
    columns = columns_with_grains([("ABCA", "success", 1), ("CXA", "success", 1)])
    assert [similar.shared_nodes for similar in nearest(columns, 0)] == [(0, 2)]
    assert [similar.shared_nodes for similar in nearest(columns, 1)] == [(2, 0)]


def test_a_session_without_steps_is_like_others_without() -> None:
    columns = columns_with_grains([("", "success", 3), ("AB", "success", 2)])
    assert [(similar.row, similar.similarity, similar.shared_nodes) for similar in nearest(columns, 1)] == [
        (2, 1.0, ()),
        (0, 1.0, ()),
    ]


def test_sessions_that_were_taken_out_are_not_found_and_not_counted() -> None:
    columns = columns_with_grains([("AB", "success", 3), ("AC", "success", 2)])
    columns.removed[[1, 3, 4]] = 1
    assert [similar.row for similar in nearest(columns, 0)] == [2]
    assert make_session_lookup(columns).find(["ses_0", "ses_1", "ses_nobody"]).tolist() == [
        0,
        NOWHERE,
        NOWHERE,
    ]


def test_the_index_is_made_once_for_each_version() -> None:
    columns = columns_with_grains([("AB", "success", 3)])
    assert index_similarity(columns) is index_similarity(columns)
    assert isinstance(index_similarity(columns), SimilarityIndex)


def grown(columns: GraphColumns, before: Sequence[Way], *ways: Way) -> GraphColumns:
    """Return the next version of columns of some ways, in which sessions came on others."""
    later = columns_with_grains([*before, *ways])
    later.version, later.lasting = 2, columns.lasting
    later.added[len(columns.session_id) :] = 2
    return later


def test_a_later_version_compares_as_if_it_were_read_whole() -> None:
    ways: list[Way] = [("AB", "success", 50), ("CD", "success", 50)]
    columns = columns_with_grains(ways)
    nearest(columns, 0)
    later = grown(columns, ways, ("AB", "error", 1), ("ABX", "success", 1))
    whole = columns_with_grains([*ways, ("AB", "error", 1), ("ABX", "success", 1)])
    assert len(step_vectors(later).variants) == 4
    for row in (0, 50, 100, 101):
        assert nearest(later, row, 200) == nearest(whole, row, 200)
    similar = {item.row: item.similarity for item in nearest(later, 0, 200)}
    assert set(similar) == {*range(1, 50), 100, 101}
    # The same nodes in a variant of its own, and one with a node more.
    assert similar[100] == 1.0 and 0.5 < similar[101] < 1


def test_deleted_sessions_are_left_out_also_where_their_vectors_are_kept() -> None:
    ways: list[Way] = [("AB", "success", 2), ("ABC", "success", 1), ("D", "success", 97)]
    columns = columns_with_grains(ways)
    assert [similar.row for similar in nearest(columns, 0)] == [1, 2]
    later = grown(columns, ways, ("ABE", "success", 1))
    later.removed[[1, 2]] = 2
    # None is left of the second variant: it takes no place among the nearest.
    assert [similar.row for similar in nearest(later, 0, 1)] == [100]


def test_a_reader_of_an_earlier_version_may_use_what_a_later_one_made() -> None:
    ways: list[Way] = [("AB", "success", 50), ("CD", "success", 50)]
    columns = columns_with_grains(ways)
    later = grown(columns, ways, ("ABX", "success", 3))
    nearest(later, 0)
    assert {similar.row for similar in nearest(columns, 0, 200)} == set(range(1, 50))
