"""Recovery points of written cases, beside the points that a person would name. Spec §2.7."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from recorder.memory.graph.arrays import Ints
from recorder.memory.queries.recovery_anchors import find_recovery_anchors
from tests.support.graph_columns import Way, columns_of

#: A capital is an act; `!` stands after the act that failed. Sessions without one succeeded.
CLEAN = "ABCD"


@dataclass(frozen=True)
class Case:
    """Sessions, and the recovery points of a person with their frequencies."""

    #: Ways with outcome and number; those with a `!` failed there.
    ways: Sequence[Way]
    points: Mapping[str, float]
    basis: str = "cross_session"


CASES = {
    "goes back and repeats the step": Case(
        [(CLEAN, "success", 8), ("ABX!BCD", "success", 3)], {"B": 1}, "in_session"
    ),
    "presses a stray key and goes on": Case(
        [(CLEAN, "success", 8), ("ABX!KCD", "success", 3)], {"C": 1}, "in_session"
    ),
    "presses a key that some press elsewhere and goes on": Case(
        [(CLEAN, "success", 8), ("AKBCD", "success", 2), ("ABX!KCD", "success", 3)], {"C": 1}, "in_session"
    ),
    "presses a stray key and stops": Case([(CLEAN, "success", 8), ("ABX!K", "success", 3)], {"B": 1}),
    "begins again": Case([(CLEAN, "success", 8), ("ABCX!ABCD", "success", 2)], {"A": 1}, "in_session"),
    "goes on with the way of another task": Case(
        [(CLEAN, "success", 8), ("EFGH", "success", 8), ("ABX!FGH", "success", 2)], {"F": 1}, "in_session"
    ),
    "ends in a dead end": Case([(CLEAN, "success", 8), ("ABX!", "error", 4)], {"B": 1}),
    "takes a wrong turn long before it fails": Case(
        [(CLEAN, "success", 8), ("ABWVZ!", "error", 3)], {"B": 1}
    ),
    "takes two wrong turns": Case(
        [(CLEAN, "success", 8), ("ABX!", "error", 3), ("ABCY!", "error", 2)], {"B": 0.6, "C": 0.4}
    ),
    "fails in the last act of the usual way": Case([(CLEAN, "success", 8), ("ABCD!", "error", 3)], {"C": 1}),
    "fails in the middle of the usual way": Case([(CLEAN, "success", 8), ("ABC!", "error", 3)], {"B": 1}),
    "fails after all is done": Case([(CLEAN, "success", 8), ("ABCDX!", "error", 3)], {}),
    "fails in the first act": Case([(CLEAN, "success", 8), ("X!", "error", 3)], {}),
    "takes a way on which most fail": Case(
        [(CLEAN, "success", 10), ("ARX!", "error", 4), ("ARCD", "success", 2)], {"A": 1}
    ),
    "does only the last act after the failure": Case(
        [(CLEAN, "success", 8), ("ABX!D", "success", 3)], {"B": 1}
    ),
    "fails in one of two tasks": Case(
        [(CLEAN, "success", 10), ("EFGH", "success", 10), ("EFX!", "error", 3)], {"F": 1}
    ),
    "repeats the failing act": Case([(CLEAN, "success", 8), ("ABXBX!", "error", 2)], {"B": 1}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_points_are_those_of_a_person(case: Case) -> None:
    failed_ms: dict[int, int] = {}
    rows = 0
    for acts, _, count in case.ways:
        if "!" in acts:
            # A step takes a second; the tag follows the failing act by half of one.
            failed_ms |= dict.fromkeys(range(rows, rows + count), 1_000 * acts.index("!") + 500)
        rows += count
    columns = columns_of(
        [([act for act in acts if act != "!"], outcome, count) for acts, outcome, count in case.ways]
    )

    def read_successes(_: Ints) -> Mapping[int, Sequence[int]]:
        return {}

    anchors = find_recovery_anchors(columns, columns.current(), failed_ms, read_successes)
    points = {columns.nodes[anchor.node].label: anchor.frequency for anchor in anchors}
    assert points == pytest.approx(case.points)
    assert {anchor.basis for anchor in anchors} <= {case.basis}
