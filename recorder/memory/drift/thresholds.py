"""Thresholds of drift: evidence, misses or sightings that raise an alarm. Spec §6.1, docs/drift.md."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recorder.memory.graph.arrays import Ints


@dataclass(frozen=True, slots=True)
class DriftRules:
    """The numbers of all rules; the defaults are those that were measured (`benchmarks/drift.py`)."""

    #: Sessions of a baseline, and how many there must be before there is a first, smaller one.
    baseline: int = 500
    least_baseline: int = 100
    #: A baseline is in force for so many times its sessions, then the latest ones take its place.
    term: int = 4
    #: Share of the baseline from which on a subject is watched, and so many of its sessions.
    least_share: float = 0.03
    least_seen: int = 5
    #: Sessions between two false alarms of one rule in a workflow that does not change, at least, on average.
    #: Both rules of falls and `growth_level` for each kind together allow .05 false alarms in 2,000 sessions.
    run_length: float = 160_000.0
    #: Misses that are needed in any case: a handful is an incident, not a change of the work.
    least_misses: int = 10
    #: Rates to which a subject may have dropped, as shares of its rate in the baseline.
    drops: tuple[float, ...] = (0.1, 0.25, 0.4, 0.6)
    #: A drop is an alarm where at most this share of the rate is left.
    most_left: float = 2 / 3
    #: Odds, of the former rate against the present one, from which on a subject has returned.
    return_odds: float = 10_000.0
    #: Sessions in which the sightings of a new subject are counted, and how many such windows a term has.
    window: int = 100
    windows: int = 20
    #: Odds of a false alarm about a growing subject of one kind within them.
    growth_level: float = 0.008


@lru_cache(maxsize=4096)
def misses_needed(seen: int, sessions: int, *, watched: int, run_length: float) -> int:
    """Return the number of misses in a row after which a subject has stopped (zero-run rule).

    So many that chance brings such a run of any of the `watched` subjects about once in `run_length`
    sessions. A run of n follows a sighting (rate p) with odds p · (1 - p)^n. The baseline leaves p
    uncertain, so the odds are those of n misses after `seen` sightings in `sessions`, over all p by Jeffreys'
    prior (Beta ½, ½).

    Args:
        seen: sessions of the baseline with the subject.
        sessions: sessions of the baseline.
        watched: number of subjects that are watched.
        run_length: sessions between two false alarms.
    """
    from scipy.special import betaln

    ever, never = seen + 0.5, sessions - seen + 0.5
    allowed = -math.log(max(math.e, watched * run_length * ever / (sessions + 1)))
    low, high = 0, 1
    while float(betaln(ever, never + high) - betaln(ever, never)) > allowed:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if float(betaln(ever, never + middle) - betaln(ever, never)) > allowed:
            low = middle
        else:
            high = middle
    return high


def unseen_subjects(counts: Ints) -> float:
    """Estimate how many subjects a baseline missed, at least 1 (Chao 1984, after Good and Turing).

    Args:
        counts: for each subject the number of sessions that have it.
    """
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return max(1.0, once * (once - 1) / (2 * (twice + 1)))


def compute_most_expected(seen: int, sessions: int, window: int) -> float:
    """Return the most sessions of a window that may have a subject, given its baseline (95 %)."""
    from scipy.special import betaincinv

    return window * float(betaincinv(seen + 1, max(1, sessions - seen), 0.95))


@lru_cache(maxsize=4096)
def sightings_needed(seen: int, sessions: int, subjects: float, rules: DriftRules) -> int:
    """Return the number of sessions of a window that must have a subject before it has grown, at least 2.

    So many that a subject of whatever rate p, which the baseline showed as rarely by chance, hardly comes
    that often. The window slides, so each sighting checks whether its window holds `needed` of them:
    sup over p of P(Bin(sessions, p) ≤ seen) · term · p · P(Bin(window - 1, p) ≥ needed - 1) · subjects is at
    most the level.

    Args:
        seen: sessions of the baseline with the subject.
        sessions: sessions of the baseline.
        subjects: how many subjects the baseline may show as rarely.
        rules: the numbers of the rule.
    """
    from scipy.special import betainc

    rates = np.geomspace(1e-6, 0.9, 600)
    # P(Bin(n, p) ≥ k) is the regularized incomplete beta function I_p(k, n - k + 1).
    so_rare = 1 - betainc(seen + 1, max(1, sessions - seen), rates)
    sightings = so_rare * subjects * rates * rules.windows * rules.window
    for needed in range(2, rules.window):
        odds = betainc(needed - 1, rules.window - needed + 1, rates)
        if float((sightings * odds).max()) <= rules.growth_level:
            return needed
    return rules.window
