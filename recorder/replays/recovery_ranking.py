"""Ranking of recovery candidates. Spec §4.6.

Score = lower bound of the Wilson interval of successes among hits × replayability of the suffix
× (1 − 0.5 × consequential steps to repeat). By the lower bound, 3 of 4 never outranks 60 of 80.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

#: Two-sided 95 %.
_Z = 1.959963984540054
_CONSEQUENCE_PENALTY = 0.5
#: Decimals of a score: rounding errors must decide no tie.
_DECIMALS = 9


@dataclass(frozen=True, slots=True)
class RecoveryCandidate:
    """A node that a failed session passed before its failure."""

    node_id: str
    event_id: str
    t_ms: int
    frame_id: str | None
    #: Sessions that failed the same way after this node, and those of them that reached success from it.
    hits: int
    successes: int
    #: Share of the suffix's steps that can be resolved; None without snapshots: the graph alone decides.
    replayability: float | None
    consequential_steps: int
    median_recovery_ms: int | None


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate with every factor of its score."""

    candidate: RecoveryCandidate
    frequency: float
    lower_bound: float
    consequence_factor: float
    score: float


def rank_recovery_candidates(candidates: Iterable[RecoveryCandidate]) -> list[RankedCandidate]:
    """Return the candidates, the best first.

    Ties: the smaller median time to success, then the later `(t_ms, event_id)`, then the smaller frame id.
    """
    ranked = sorted(map(_rate_candidate, candidates), key=lambda entry: entry.candidate.frame_id or "")
    ranked.sort(key=lambda entry: (entry.candidate.t_ms, entry.candidate.event_id), reverse=True)
    ranked.sort(key=_rank_by_median)
    ranked.sort(key=lambda entry: -entry.score)
    return ranked


def compute_wilson_bound(successes: int, hits: int) -> float:
    """Return the lower bound of the 95 % Wilson interval of a share; 0 without hits."""
    if hits <= 0:
        return 0.0
    share, square = successes / hits, _Z * _Z
    spread = _Z * math.sqrt((share * (1 - share) + square / (4 * hits)) / hits)
    return max(0.0, (share + square / (2 * hits) - spread) / (1 + square / hits))


def _rate_candidate(candidate: RecoveryCandidate) -> RankedCandidate:
    bound = compute_wilson_bound(candidate.successes, candidate.hits)
    factor = max(0.0, 1 - _CONSEQUENCE_PENALTY * candidate.consequential_steps)
    replayability = 1.0 if candidate.replayability is None else candidate.replayability
    return RankedCandidate(
        candidate=candidate,
        frequency=candidate.successes / candidate.hits if candidate.hits else 0.0,
        lower_bound=round(bound, _DECIMALS),
        consequence_factor=factor,
        score=round(bound * replayability * factor, _DECIMALS),
    )


def _rank_by_median(entry: RankedCandidate) -> float:
    median = entry.candidate.median_recovery_ms
    return math.inf if median is None else median
