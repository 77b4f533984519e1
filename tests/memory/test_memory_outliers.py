"""Outliers: which sessions, in which order, and the figures beside them, by hand. Contract §4."""

import numpy as np
import pytest

from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.similarity import find_outliers, typicality
from recorder.memory.queries.transitions import END, START, transitions_of
from tests.support.graph_columns import columns_of

#: Eight of ten go alike; one leaves a node out, one ends elsewhere.
COLUMNS = columns_of([("ABC", "success", 8), ("AC", "success", 1), ("ABD", "error", 1)])


def everyone(columns: GraphColumns) -> np.typing.NDArray[np.bool_]:
    """All rows."""
    return columns.current()


def test_the_least_typical_way_comes_first_with_its_figures() -> None:
    found = find_outliers(COLUMNS, everyone(COLUMNS), threshold=0.2)
    assert found.rows.tolist() == [8, 9]
    assert found.path_frequency.tolist() == [0.1, 0.1]
    # Four nodes are entered; one is added to every count.
    assert found.typicality.tolist() == pytest.approx(
        [(11 / 14 * 2 / 14) ** (1 / 2), (11 / 14 * 10 / 14 * 2 / 13) ** (1 / 3)]
    )


def test_the_common_way_is_the_most_typical_one() -> None:
    usual, *others = typicality(COLUMNS, everyone(COLUMNS)).tolist()
    assert usual == pytest.approx((11 / 14 * 10 / 14 * 9 / 13) ** (1 / 3))
    assert 0 < max(others) < usual < 1


def test_a_path_at_the_threshold_is_no_outlier() -> None:
    assert find_outliers(COLUMNS, everyone(COLUMNS), threshold=0.1).rows.tolist() == []
    assert find_outliers(COLUMNS, everyone(COLUMNS), threshold=1.0).rows.tolist()[:2] == [8, 9]


def test_frequencies_are_those_among_the_chosen_sessions() -> None:
    failed = everyone(COLUMNS) & (COLUMNS.outcome == 1)
    found = find_outliers(COLUMNS, failed, threshold=1.0)
    assert (found.rows.tolist(), find_outliers(COLUMNS, failed, threshold=0.99).rows.tolist()) == ([], [])


def test_equally_typical_sessions_come_by_start_and_then_by_id() -> None:
    columns = columns_of([("AB", "success", 7), ("AC", "success", 3)])
    columns.started_ms = np.array([0] * 7 + [5, 9, 5])
    assert find_outliers(columns, everyone(columns), threshold=0.5).rows.tolist() == [8, 7, 9]


def test_a_session_without_steps_goes_from_the_start_to_the_end() -> None:
    columns = columns_of([("AB", "success", 9), ("", "abandoned", 1)])
    steps = transitions_of(columns)
    assert list(zip(steps.source.tolist(), steps.target.tolist(), strict=True)) == [
        (START, 0),
        (0, 1),
        (START, END),
    ]
    found = find_outliers(columns, everyone(columns), threshold=0.2)
    assert (found.rows.tolist(), found.typicality.tolist()) == ([9], pytest.approx([2 / 13]))


def test_nobody_is_an_outlier_among_nobody() -> None:
    nobody = np.zeros(10, dtype=np.bool_)
    assert find_outliers(COLUMNS, nobody, threshold=1.0).rows.tolist() == []
    empty = GraphColumns()
    assert find_outliers(empty, empty.current(), threshold=1.0).rows.tolist() == []
