"""The arithmetic of drift, against figures found otherwise. Spec §6.1, docs/drift.md."""

import math
from math import comb

import numpy as np
import pytest

from recorder.memory.drift.fall_evidence import FallEvidence, Trail, find_return_after_fall
from recorder.memory.drift.thresholds import (
    DriftRules,
    compute_most_expected,
    misses_needed,
    sightings_needed,
    unseen_subjects,
)
from recorder.memory.drift.watched_subjects import SubjectWatch

RULES = DriftRules()


def at_least(k: int, n: int, p: float) -> float:
    """Return P(Bin(n, p) ≥ k), term by term."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize(
    ("seen", "sessions", "watched"), [(15, 500, 60), (50, 500, 7), (250, 500, 1), (5, 100, 3)]
)
def test_chance_brings_a_run_of_misses_once_in_the_run_length(seen: int, sessions: int, watched: int) -> None:
    needed = misses_needed(seen, sessions, watched=watched, run_length=10_000)

    def odds(misses: int) -> float:
        """Return the odds of a sighting and so many misses, each predicted from earlier sessions."""
        chance = (seen + 0.5) / (sessions + 1)
        for past in range(misses):
            chance *= (sessions + past - seen + 0.5) / (sessions + past + 1)
        return watched * chance

    assert odds(needed) <= 1e-4 < odds(needed - 1)


def test_fewer_sightings_need_more_misses() -> None:
    needed = [misses_needed(seen, 500, watched=20, run_length=100_000) for seen in (5, 15, 50, 250, 500)]
    assert needed == sorted(needed, reverse=True)


def test_evidence_exceeds_its_limit_as_seldom_as_it_says() -> None:
    # A mean of one a session: 300 sessions reach 1,000 in at most three of ten trials.
    draw, over = np.random.default_rng(1), 0
    for _ in range(200):
        is_seen = draw.random(800) < 0.2
        watch = SubjectWatch(0, 0, 500, 500, int(is_seen[:500].sum()), 500, 999, 1, is_inherited=False)
        trail = Trail(is_seen, ~is_seen, np.zeros(800, dtype=np.int64))
        over += FallEvidence.weigh(trail, watch, 500, RULES).log_odds.max() >= math.log(1_000)
    assert over / 200 <= 0.3


def test_unseen_nodes_are_at_least_one() -> None:
    assert unseen_subjects(np.array([500, 200, 7])) == 1
    # Five nodes seen once, one seen twice: 5 · 4 / (2 · 2).
    assert unseen_subjects(np.array([1, 1, 1, 1, 1, 2, 90, 0])) == 5


@pytest.mark.parametrize(("sessions", "unseen"), [(500, 1.0), (500, 40.0), (100, 1.0), (400, 12.5)])
def test_so_many_sightings_are_needed_that_no_rare_node_is_likely_to_come_so_often(
    sessions: int, unseen: float
) -> None:
    rates = [math.exp(x) for x in np.linspace(math.log(1e-5), math.log(0.5), 300)]

    def worst(k: int) -> float:
        odds = ((1 - p) ** sessions * unseen * 2_000 * p * at_least(k - 1, 99, p) for p in rates)
        return max(odds)

    needed = sightings_needed(0, sessions, unseen, RULES)
    assert worst(needed) <= RULES.growth_level * 1.001
    assert needed == 2 or worst(needed - 1) > RULES.growth_level


def test_the_needed_sightings_grow_with_what_the_baseline_leaves_open() -> None:
    needed = [sightings_needed(0, 500, unseen, RULES) for unseen in (1, 5, 50, 500)]
    assert needed == sorted(needed) and needed[0] >= 4
    assert sightings_needed(4, 500, 1, RULES) > sightings_needed(0, 500, 1, RULES)
    assert sightings_needed(0, 100, 1, RULES) > sightings_needed(0, 500, 1, RULES)


def test_at_most_three_in_so_many_are_expected_of_what_none_showed() -> None:
    # The rule of three: none of 500 leaves rates up to about 3 / 500.
    assert compute_most_expected(0, 500, 100) == pytest.approx(0.6, abs=0.01)


def test_a_subject_has_returned_with_the_sighting_that_reaches_the_odds() -> None:
    before, after, fell_at, gap = 0.8, 0.2, 20, 7
    needed = math.ceil(math.log(RULES.return_odds) / math.log(before / after))
    is_seen = np.array([True] * 10 + [False] * (11 + gap) + [True] * needed)
    for length, expected in ((len(is_seen), fell_at + gap + needed), (len(is_seen) - 1, None)):
        trail = Trail(is_seen[:length], ~is_seen[:length], np.zeros(length, dtype=np.int64))
        assert find_return_after_fall(trail, fell_at, before=before, after=after, rules=RULES) == expected
