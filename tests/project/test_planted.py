"""The graph on a workflow whose truth is known: paths, outliers and anchors are found again. Spec §2.6."""

from collections import Counter

import pytest

from benchmarks.memory.planted import ANCHORS, PATHS, Planted, plant
from benchmarks.memory.planted_quality import Found, find_again

_SESSIONS = 1_500


@pytest.fixture(scope="module")
def planted() -> Planted:
    """Return a planted workflow."""
    return plant(_SESSIONS, seed=4)


@pytest.fixture(scope="module")
def quality(planted: Planted) -> Found:
    """Return the quality with which it is found again."""
    return find_again(planted)


def test_equal_seeds_plant_equal_sessions_and_others_do_not() -> None:
    assert plant(50, seed=7) == plant(50, seed=7) != plant(50, seed=8)


def test_more_sessions_begin_with_the_same(planted: Planted) -> None:
    assert plant(100, seed=4).sessions == planted.sessions[:100]


def test_sessions_are_planted_in_the_shares_that_are_told(planted: Planted) -> None:
    sessions = planted.sessions
    followed = [session for session in sessions if session.path is not None]
    failing = [session for session in followed if session.failed_ms is not None]
    recovered = Counter(session.anchor for session in failing if session.anchor is not None)
    assert 1 - len(followed) / len(sessions) == pytest.approx(0.02, abs=0.01)
    assert len(failing) / len(followed) == pytest.approx(0.20, abs=0.03)
    assert recovered.total() / len(failing) == pytest.approx(0.60, abs=0.08)
    assert [anchor for anchor, _ in recovered.most_common()] == list(ANCHORS)
    assert {session.path for session in followed} == set(range(PATHS))


def test_who_does_not_recover_ends_in_error(planted: Planted) -> None:
    ends = {(session.failed_ms is None, session.anchor is None): set() for session in planted.sessions}
    for session in planted.sessions:
        ends[session.failed_ms is None, session.anchor is None].add(session.outcome)
    assert ends == {(True, True): {"success"}, (False, False): {"success"}, (False, True): {"error"}}


def test_paths_are_found_again_and_far_better_than_exact_variants(quality: Found) -> None:
    assert min(quality.sealed_ari, quality.rebuilt_ari) >= 0.78
    assert quality.variant_ari <= 0.55


def test_as_many_outliers_as_were_planted_are_the_planted_ones(quality: Found) -> None:
    assert quality.outliers >= 0.95


def test_recovery_anchors_are_told_in_order_and_at_their_frequency(quality: Found) -> None:
    assert quality.anchor_error <= 0.02
