"""Ranking of recovery candidates: counts, replayability and consequences."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.replays.recovery_ranking import (
    RecoveryCandidate,
    compute_wilson_bound,
    rank_recovery_candidates,
)

MANY = RecoveryCandidate("nod_many", "evt_1", 100, "frm_1", 80, 60, 1.0, 0, 500)
FEW = replace(MANY, node_id="nod_few", hits=4, successes=3)


def names(*candidates: RecoveryCandidate) -> list[str]:
    return [entry.candidate.node_id for entry in rank_recovery_candidates(candidates)]


def test_three_of_four_never_outrank_sixty_of_eighty() -> None:
    assert names(FEW, MANY) == ["nod_many", "nod_few"]
    assert compute_wilson_bound(60, 80) == pytest.approx(0.6450, abs=5e-4)
    assert compute_wilson_bound(3, 4) == pytest.approx(0.3006, abs=5e-4)
    assert compute_wilson_bound(0, 0) == 0


def test_every_factor_counts() -> None:
    ranked = rank_recovery_candidates([replace(MANY, replayability=0.5, consequential_steps=1)])[0]
    assert ranked.score == pytest.approx(ranked.lower_bound * 0.5 * 0.5)
    assert rank_recovery_candidates([replace(MANY, consequential_steps=7)])[0].score == 0
    assert rank_recovery_candidates([replace(MANY, replayability=None)])[0].score == ranked.lower_bound


def test_ties_go_to_the_faster_then_the_later_then_the_smaller_frame() -> None:
    slow, unknown = (
        replace(MANY, node_id="slow", median_recovery_ms=900),
        replace(MANY, node_id="unknown", median_recovery_ms=None),
    )
    later, frame = (
        replace(MANY, node_id="later", event_id="evt_2"),
        replace(MANY, node_id="frame", frame_id="frm_2"),
    )
    assert names(unknown, slow, frame, MANY, later) == ["later", "nod_many", "frame", "slow", "unknown"]


@given(st.integers(1, 10_000), st.data())
def test_the_bound_is_below_the_share_and_rises_with_counts(hits: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, hits))
    bound = compute_wilson_bound(successes, hits)
    assert 0 <= bound <= successes / hits + 1e-12
    assert compute_wilson_bound(10 * successes, 10 * hits) >= bound - 1e-12
