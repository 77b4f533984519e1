"""Outliers: which sessions, in which order, and the figures beside them, by hand. Contract §4."""

from math import prod

import numpy as np
import pytest

from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.outliers import compute_typicality, find_outliers
from tests.support.graph_columns import columns_of

#: Eight of ten go alike; one leaves a node out, one ends elsewhere.
COLUMNS = columns_of([("ABC", "success", 8), ("AC", "success", 1), ("ABD", "error", 1)])


def act_edges(steps: int) -> float:
    """Return the product of the edges between actions of a session of COLUMNS alone on its path.

    All nodes are one action: the nine other sessions begin and end with it; of all sessions, 19 of its 29
    departures lead to itself.
    """
    departures = 29 - steps + 1
    return 9.5 / 10 * ((19.5 - (steps - 1)) / departures) ** (steps - 1) * 9.5 / departures


def everyone(columns: GraphColumns) -> np.typing.NDArray[np.bool_]:
    """Return all rows."""
    return columns.current()


def test_the_least_typical_way_comes_first_with_its_figures() -> None:
    outliers = find_outliers(COLUMNS, everyone(COLUMNS), threshold=0.2)
    assert outliers.rows.tolist() == [9, 8]
    assert outliers.path_frequency.tolist() == [0.1, 0.1]
    # Of the nine others all begin with A, none goes from A to C, and all eight on C end there. Five targets
    # (A, B, C, D, the end) get a half added to each count.
    short = 9.5 / 11.5 * 0.5 / 11.5 * 8.5 / 10.5 * act_edges(2)
    other = 9.5 / 11.5 * 8.5 / 11.5 * 0.5 / 10.5 * 0.5 / 2.5 * act_edges(3)
    assert outliers.typicality.tolist() == pytest.approx([other ** (1 / 8), short ** (1 / 6)])


def test_the_common_way_is_the_most_typical_one() -> None:
    usual, *others = compute_typicality(COLUMNS, everyone(COLUMNS)).tolist()
    # On its path seven others do the same; the whole graph weighs as much as ten sessions more.
    anywhere = [9.5 / 11.5, 8.5 / 11.5, 7.5 / 10.5, 8.5 / 10.5]
    nodes = prod((7 + 10 * share) / 17 for share in anywhere)
    start, again, end = 9.5 / 10, 17.5 / 27, 9.5 / 27
    acts = (7 + 10 * start) / 17 * ((14 + 10 * again) / 31) ** 2 * (7 + 10 * end) / 31
    assert usual == pytest.approx((nodes * acts) ** (1 / 8))
    assert 0 < max(others) < usual < 1


def test_a_path_at_the_threshold_is_no_outlier() -> None:
    assert find_outliers(COLUMNS, everyone(COLUMNS), threshold=0.1).rows.tolist() == []
    assert find_outliers(COLUMNS, everyone(COLUMNS), threshold=1.0).rows.tolist()[:2] == [9, 8]


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
    # None of the nine others goes from the start to the end; A, B (or the act) and the end are targets.
    expected = (0.5 / 10.5 * 0.5 / 10) ** (1 / 2)
    assert (outliers.rows.tolist(), outliers.typicality.tolist()) == ([9], pytest.approx([expected]))


def test_a_session_that_stops_early_is_less_typical_than_one_that_goes_on() -> None:
    columns = columns_of([("ABCD", "success", 30), ("ABC", "error", 1), ("AB", "error", 1)])
    typical = compute_typicality(columns, everyone(columns)).tolist()
    assert typical[0] > typical[1] > typical[2]


def test_a_way_that_is_usual_elsewhere_is_less_typical_on_another_path() -> None:
    columns = columns_of([("ABC", "success", 30), ("ADC", "success", 30), ("ADC", "error", 1)])
    # The last session is of the first path; its way is that of the second one.
    columns.variant_path = np.array([0, 1, 0])
    typical = compute_typicality(columns, everyone(columns)).tolist()
    assert typical[2] < typical[1]


def test_a_session_makes_itself_no_more_typical() -> None:
    columns = columns_of([("AB", "success", 40), ("CDCDCDCD", "error", 1)])
    usual, loop = compute_typicality(columns, everyone(columns)).tolist()
    assert loop < usual / 2


def test_by_typicality_all_sessions_are_listed_whatever_their_path() -> None:
    outliers = find_outliers(COLUMNS, everyone(COLUMNS), rank="typicality")
    assert sorted(outliers.rows.tolist()) == list(range(10))
    assert outliers.typicality.tolist() == sorted(outliers.typicality.tolist())
    assert outliers.rows.tolist()[:2] == [9, 8]


def test_sessions_without_steps_are_listed_by_typicality_alone() -> None:
    columns = columns_of([("AB", "success", 9), ("", "abandoned", 2)])
    columns.variant_path = np.array([0, NO_PATH])
    outliers = find_outliers(columns, everyone(columns), rank="typicality")
    assert sorted(outliers.rows.tolist()) == list(range(11))
    assert set(outliers.rows[:2].tolist()) == {9, 10}
    assert outliers.path_frequency.tolist() == pytest.approx([0, 0] + [9 / 11] * 9)
    assert find_outliers(columns, everyone(columns), threshold=0.9).rows.tolist() == list(range(8, -1, -1))


def test_nobody_is_an_outlier_among_nobody() -> None:
    nobody = np.zeros(10, dtype=np.bool_)
    assert find_outliers(COLUMNS, nobody, threshold=1.0).rows.tolist() == []
    empty = GraphColumns()
    assert find_outliers(empty, empty.current(), threshold=1.0).rows.tolist() == []


def test_purged_sessions_count_and_are_not_listed() -> None:
    columns = columns_of([("ABC", "success", 8), ("AC", "success", 1), ("ABD", "error", 1)])
    columns.session_id[:8] = [f"ano_{row}".encode() for row in range(8)]
    columns.session_id[9] = b"ano_9"
    for listed in (
        find_outliers(columns, everyone(columns), threshold=0.2),
        find_outliers(columns, everyone(columns), rank="typicality"),
    ):
        assert (listed.rows.tolist(), listed.path_frequency.tolist()) == ([8], [0.1])
        unpurged = find_outliers(COLUMNS, everyone(COLUMNS), threshold=0.2)
        assert listed.typicality.tolist() == [unpurged.typicality[1]]
