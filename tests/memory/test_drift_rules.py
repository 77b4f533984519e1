"""The arithmetic of drift, against figures found otherwise. Spec §6.1, docs/drift.md."""

import math
from math import comb

import numpy as np
import pytest

from recorder.memory.drift.thresholds import (
    Rules,
    least_rate,
    misses_needed,
    most_expected,
    sightings_needed,
    unseen_nodes,
)

RULES = Rules()


def at_least(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) ≥ k), term by term."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize(("seen", "sessions", "level"), [(15, 500, 0.001), (250, 500, 0.01), (5, 100, 0.005)])
def test_the_least_rate_makes_so_many_sightings_just_as_unlikely_as_the_level(
    seen: int, sessions: int, level: float
) -> None:
    assert at_least(seen, sessions, least_rate(seen, sessions, level)) == pytest.approx(level)


def test_the_least_rate_at_the_ends() -> None:
    assert least_rate(0, 500, 0.01) == 0
    assert least_rate(100, 100, 0.01) == pytest.approx(0.01 ** (1 / 100))
    assert least_rate(1, 100, 0.01) == pytest.approx(1 - 0.99 ** (1 / 100))


@pytest.mark.parametrize(
    ("rate", "watched", "needed"),
    [
        (0.05, 10, 167),  # ln(10 · 10,000 · .05) / -ln(.95) = 8.517 / .05129 = 166.05
        (0.5, 1, 13),  # ln(5,000) / ln 2 = 12.29
        (0.9, 2, 5),  # ln(18,000) / ln 10 = 4.26
        (0.01168, 5, 543),  # ln(584) / .011749 = 542.1
    ],
)
def test_so_many_misses_are_needed(rate: float, watched: int, needed: int) -> None:
    assert misses_needed(rate, watched=watched, run_length=10_000) == needed


def test_chance_brings_a_run_of_misses_once_in_ten_thousand_sessions() -> None:
    rate, watched = 0.08, 7
    needed = misses_needed(rate, watched=watched, run_length=10_000)
    # A run begins at a sighting; of all watched paths together one in 10,000 sessions is that long.
    assert watched * rate * (1 - rate) ** needed <= 1e-4 < watched * rate * (1 - rate) ** (needed - 1)


def test_unseen_nodes_are_at_least_one() -> None:
    assert unseen_nodes(np.array([500, 200, 7])) == 1
    # Five nodes seen once, one seen twice: 5 · 4 / (2 · 2).
    assert unseen_nodes(np.array([1, 1, 1, 1, 1, 2, 90, 0])) == 5


@pytest.mark.parametrize(("sessions", "unseen"), [(500, 1.0), (500, 40.0), (100, 1.0), (400, 12.5)])
def test_so_many_sightings_are_needed_that_no_rare_node_is_likely_to_come_so_often(
    sessions: int, unseen: float
) -> None:
    rates = [math.exp(x) for x in np.linspace(math.log(1e-5), math.log(0.5), 300)]

    def worst(k: int) -> float:
        odds = ((1 - p) ** sessions * unseen * 2_000 * p * at_least(k - 1, 99, p) for p in rates)
        return max(odds)

    needed = sightings_needed(sessions, unseen, RULES)
    assert worst(needed) <= RULES.node_level * 1.001
    assert needed == 2 or worst(needed - 1) > RULES.node_level


def test_the_needed_sightings_grow_with_what_the_baseline_leaves_open() -> None:
    found = [sightings_needed(500, unseen, RULES) for unseen in (1, 5, 50, 500)]
    assert found == sorted(found) and found[0] >= 4
    assert sightings_needed(100, 1, RULES) > sightings_needed(500, 1, RULES)


def test_at_most_three_in_so_many_are_expected_of_what_none_showed() -> None:
    # The rule of three: none of 500 leaves rates up to about 3 / 500.
    assert most_expected(500, 100) == pytest.approx(0.6, abs=0.01)
