"""Baselines and thresholds of drift: misses or sightings that raise an alarm. Spec §6.1, docs/drift.md."""

import math
from dataclasses import dataclass

import numpy as np

from recorder.memory.graph.inverted_index import Ints


@dataclass(frozen=True, slots=True)
class Rules:
    """The numbers of both rules; the defaults are those that were measured (`benchmarks/drift.py`)."""

    #: Sessions of a baseline, and how many there must be before there is a first, smaller one.
    baseline: int = 500
    least_baseline: int = 100
    #: A baseline is in force for so many times its sessions, then the latest ones take its place.
    term: int = 4
    #: Share of the baseline from which on a path is watched, and so many of its sessions: fewer are chance.
    least_share: float = 0.03
    least_seen: int = 5
    #: Odds that the rate of any watched path lies below what is assumed of it.
    level: float = 0.01
    #: Sessions between two false alarms of a workflow that does not change, on average.
    run_length: float = 10_000.0
    #: Misses in a row that are needed in any case: a handful is an incident, not a change of the work.
    least_misses: int = 10
    #: Sessions in which the sightings of a new node are counted, and how many such windows a term has.
    window: int = 100
    windows: int = 20
    #: Odds of a false alarm about a node within them.
    node_level: float = 0.01
    #: Sightings after which a path that was missed counts as back.
    return_after: int = 3


def least_rate(seen: int, sessions: int, level: float) -> float:
    """Return the lowest rate that explains so many sightings: the bound of Clopper and Pearson (1934).

    Args:
        seen: number of sightings.
        sessions: number of sessions.
        level: odds, 0 to 1, that the true rate is below it.
    """
    from scipy.special import betaincinv

    return float(betaincinv(seen, sessions - seen + 1, level)) if seen else 0.0


def misses_needed(rate: float, *, watched: int, run_length: float) -> int:
    """After how many misses in a row a path of this rate is gone (zero-run rule).

    So many that chance brings such a run of any of the `watched` paths about once in `run_length` sessions. A
    run of n follows a sighting (`rate`) with odds (1 - rate)^n, so
    n = ln(watched · run_length · rate) / -ln(1 - rate).
    """
    odds = max(math.e, watched * run_length * rate)
    return math.ceil(math.log(odds) / -math.log1p(-rate))


def unseen_nodes(counts: Ints) -> float:
    """Estimate the nodes that a baseline missed, at least 1: Chao's estimate (1984), after Good and Turing.

    Args:
        counts: for each node the number of sessions that went through it.
    """
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return max(1.0, once * (once - 1) / (2 * (twice + 1)))


def most_expected(sessions: int, window: int) -> float:
    """In how many sessions of a window a node may be expected at most that so many sessions lack (95 %)."""
    return window * (1 - math.exp(math.log(0.05) / sessions))


def sightings_needed(sessions: int, unseen: float, rules: Rules) -> int:
    """Return the number of sessions of a window that must visit a node before it is new, at least 2.

    So many that a node of whatever rate p, which the baseline missed only by chance, hardly comes that often.
    The window slides, so each sighting checks whether its window holds `needed` of them:
    sup over p of (1 - p)^sessions · term · p · P(Bin(window - 1, p) ≥ needed - 1) · unseen ≤ node_level.

    Args:
        sessions: sessions of the baseline.
        unseen: how many nodes the baseline missed.
        rules: the numbers of the rule.
    """
    from scipy.special import betainc

    rates = np.geomspace(1e-6, 0.9, 600)
    sightings = np.exp(sessions * np.log1p(-rates)) * unseen * rates * rules.windows * rules.window
    for needed in range(2, rules.window):
        # P(Bin(n, p) ≥ k) is the regularized incomplete beta function I_p(k, n - k + 1).
        odds = betainc(needed - 1, rules.window - needed + 1, rates)
        if float((sightings * odds).max()) <= rules.node_level:
            return needed
    return rules.window


@dataclass(frozen=True, slots=True)
class Inherited:
    """A path that was watched before the present term, with the places of its baseline."""

    path: int
    start: int
    end: int
    #: Misses count from this position on.
    watched_from: int


@dataclass(frozen=True, slots=True)
class Term:
    """A baseline: the sessions from position `start` to before `end`, and what was settled with it."""

    start: int
    end: int
    #: How many sessions it had when it was chosen; deletions since then do not move the end of the term.
    sessions: int
    #: Nodes that any session before this position went through are not new.
    known: int
    inherited: tuple[Inherited, ...] = ()

    def over_at(self, rules: Rules) -> int:
        """Return the position of the first session that the next baseline judges."""
        return self.end + rules.term * self.sessions


def first_term(rules: Rules) -> Term:
    """Return the term that a workflow begins with, once it has so many sessions."""
    sessions = min(rules.least_baseline, rules.baseline)
    return Term(0, sessions, sessions, known=sessions)


def next_term(term: Term, rules: Rules, inherited: tuple[Inherited, ...] = ()) -> Term:
    """Return the term that follows.

    Nodes first seen within a window before its beginning are still new: no alarm could name them yet.
    """
    end = term.over_at(rules)
    start = max(0, end - rules.baseline)
    return Term(start, end, end - start, max(0, end - rules.window), inherited)


def latest_term(sessions: int, rules: Rules) -> Term:
    """Return the term that the last of so many sessions belongs to."""
    term = first_term(rules)
    while term.over_at(rules) <= sessions:
        term = next_term(term, rules)
    return term
