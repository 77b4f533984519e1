"""Outliers: which sessions, in which order, and the figures beside them, by hand. Contract §4."""

import numpy as np
import pytest

from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.outliers import compute_typicality, find_outliers
from tests.support.graph_columns import columns_of

#: Eight of ten go alike; one leaves a node out, one ends elsewhere.
COLUMNS = columns_of([("ABC", "success", 8), ("AC", "success", 1), ("ABD", "error", 1)])


def act_edges(steps: int) -> float:
    """Return the product of the edges between actions of a session of COLUMNS; all its nodes are one action.

    From the start all ten sessions go to the action, 19 times one follows another, ten times the end follows.
    """
    return 10.5 / 11 * (19.5 / 30) ** (steps - 1) * 10.5 / 30


def everyone(columns: GraphColumns) -> np.typing.NDArray[np.bool_]:
    """All rows."""
    return columns.current()


def test_the_least_typical_way_comes_first_with_its_figures() -> None:
    outliers = find_outliers(COLUMNS, everyone(COLUMNS), threshold=0.2)
    assert outliers.rows.tolist() == [8, 9]
    assert outliers.path_frequency.tolist() == [0.1, 0.1]
    # Of ten sessions nine go from A to B and one to C; then eight to C, one to D; all end there. Five targets
    # (A, B, C, D, the end) get a half added to each count.
    to_a, to_b, to_c, end_c = 10.5 / 12.5, 9.5 / 12.5, 1.5 / 12.5, 9.5 / 11.5
    short = to_a * to_c * end_c * act_edges(2)
    other = to_a * to_b * 1.5 / 11.5 * 1.5 / 3.5 * act_edges(3)
    assert outliers.typicality.tolist() == pytest.approx([short ** (1 / 6), other ** (1 / 8)])


def test_the_common_way_is_the_most_typical_one() -> None:
    usual, *others = compute_typicality(COLUMNS, everyone(COLUMNS)).tolist()
    nodes = 10.5 / 12.5 * 9.5 / 12.5 * 8.5 / 11.5 * 9.5 / 11.5
    assert usual == pytest.approx((nodes * act_edges(3)) ** (1 / 8))
    assert 0 < max(others) < usual < 1


def test_a_path_at_the_threshold_is_no_outlier() -> None:
    assert find_outliers(COLUMNS, everyone(COLUMNS), threshold=0.1).rows.tolist() == []
    assert find_outliers(COLUMNS, everyone(COLUMNS), threshold=1.0).rows.tolist()[:2] == [8, 9]


def test_frequencies_are_those_among_the_chosen_sessions() -> None:
    failed = everyone(COLUMNS) & (COLUMNS.outcome == 1)
    outliers = find_outliers(COLUMNS, failed, threshold=1.0)
    assert (outliers.rows.tolist(), find_outliers(COLUMNS, failed, threshold=0.99).rows.tolist()) == ([], [])


def test_equally_typical_sessions_come_by_start_and_then_by_id() -> None:
    columns = columns_of([("AB", "success", 7), ("AC", "success", 3)])
    columns.started_ms = np.array([0] * 7 + [5, 9, 5])
    assert find_outliers(columns, everyone(columns), threshold=0.5).rows.tolist() == [8, 7, 9]


def test_a_session_without_steps_goes_from_the_start_to_the_end() -> None:
    columns = columns_of([("AB", "success", 9), ("", "abandoned", 1)])
    outliers = find_outliers(columns, everyone(columns), threshold=0.2)
    # From the start one of ten sessions goes to the end; A, B (or the act) and the end are targets.
    expected = (1.5 / 11.5 * 1.5 / 11) ** (1 / 2)
    assert (outliers.rows.tolist(), outliers.typicality.tolist()) == ([9], pytest.approx([expected]))


def test_a_session_that_stops_early_is_less_typical_than_one_that_goes_on() -> None:
    columns = columns_of([("ABCD", "success", 30), ("ABC", "error", 1), ("AB", "error", 1)])
    typical = compute_typicality(columns, everyone(columns)).tolist()
    assert typical[0] > typical[1] > typical[2]


def test_by_typicality_all_sessions_are_listed_whatever_their_path() -> None:
    outliers = find_outliers(COLUMNS, everyone(COLUMNS), rank="typicality")
    assert sorted(outliers.rows.tolist()) == list(range(10))
    assert outliers.typicality.tolist() == sorted(outliers.typicality.tolist())
    assert outliers.rows.tolist()[:2] == [8, 9]


def test_nobody_is_an_outlier_among_nobody() -> None:
    nobody = np.zeros(10, dtype=np.bool_)
    assert find_outliers(COLUMNS, nobody, threshold=1.0).rows.tolist() == []
    empty = GraphColumns()
    assert find_outliers(empty, empty.current(), threshold=1.0).rows.tolist() == []
