"""Steps that sessions leave out: one alarm, about the step. Spec §6.1, docs/drift.md."""

from collections.abc import Sequence

import numpy as np
import pytest

from recorder.memory.drift.baseline_terms import Term
from recorder.memory.drift.detector import Alarm, DetectorState, detect_alarms
from recorder.memory.drift.drift_subjects import list_drift_subjects
from recorder.memory.drift.history import History
from recorder.memory.drift.left_out_nodes import KnownWays
from recorder.memory.drift.thresholds import DriftRules

TERM = Term(0, 500, 500, known=500)
LONG, LONG_TOO, OTHER = tuple(range(8)), (0, 20, *range(2, 8)), (0, 10, 11, 12)


def make_history_of(ways: Sequence[tuple[int, ...]]) -> History:
    """Make one session an hour on each of these ways; every way is a path."""
    numbers: dict[tuple[int, ...], int] = {}
    variants = np.array([numbers.setdefault(way, len(numbers)) for way in ways], dtype=np.int64)
    subjects = list_drift_subjects(
        np.arange(len(numbers)),
        np.cumsum([0, *map(len, numbers)]),
        np.array([node for way in numbers for node in way], dtype=np.int64),
    )
    sessions = np.arange(len(ways), dtype=np.int64)
    return History(sessions + 1, variants, sessions * 3_600_000, sessions % 2, subjects)


def list_alarms(history: History) -> list[Alarm]:
    """Return the alarms after a full baseline."""
    state = DetectorState(term=TERM)
    return [alarm for check in detect_alarms(history, state, DriftRules()) for alarm in check.alarms]


def draw_ways(sessions: int, seed: int) -> list[tuple[int, ...]]:
    """Draw sessions of which half take one of the long ways."""
    drawn = np.random.default_rng(seed).integers(4, size=sessions)
    return [(LONG, LONG_TOO, OTHER, OTHER)[way] for way in drawn.tolist()]


def leave_out(way: tuple[int, ...], node: int) -> tuple[int, ...]:
    """Return a way without a node."""
    return tuple(visited for visited in way if visited != node)


@pytest.mark.parametrize("node", [3, 7])
def test_a_step_that_all_leave_out_is_one_alarm_about_the_step(node: int) -> None:
    for seed in range(3):
        ways = draw_ways(1_000, seed)
        history = make_history_of([*ways[:500], *(leave_out(way, node) for way in ways[500:])])
        [alarm] = list_alarms(history)
        subject = history.subjects.describe(alarm.subject)
        assert (alarm.kind, subject.kind, subject.key) == ("stopped", "node", (node,))


@pytest.mark.parametrize("node", [3, 7])
def test_a_step_that_half_leave_out_is_one_alarm(node: int) -> None:
    for seed in range(3):
        ways = draw_ways(1_000, seed)
        changed = [leave_out(way, node) if number % 2 else way for number, way in enumerate(ways[500:])]
        assert len(list_alarms(make_history_of([*ways[:500], *changed]))) == 1


def test_a_step_that_is_inserted_is_one_alarm() -> None:
    for seed in range(3):
        ways = draw_ways(1_000, seed)
        changed = [(0, 9, *way[1:]) if way == LONG else way for way in ways[500:]]
        history = make_history_of([*ways[:500], *changed])
        [alarm] = list_alarms(history)
        assert (alarm.kind, history.subjects.describe(alarm.subject).key) == ("new", (9,))


def test_a_way_that_leaves_a_step_out_is_known_with_it() -> None:
    loop = (0, 1, 2, 1, 3)
    history = make_history_of([loop, LONG, (0, 2, 3), (0, 2, 3), (0, 1, 3), (0, 3)])
    ways = KnownWays.read(history, 0, 2)
    assert ways.list_nodes_left_out(np.array([2, 3])) == (1,)
    # One session may be chance; equal neighbours are one visit; two nodes are not one step.
    assert ways.list_nodes_left_out(np.array([2, 4])) == ()
    assert ways.list_nodes_left_out(np.array([4, 4])) == (2,)
    assert ways.list_nodes_left_out(np.array([5, 5])) == ()
