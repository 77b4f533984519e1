"""Statistical evidence for falls: sightings and misses of a subject, and the return of a fallen one.

Docs: docs/drift.md.
"""

import math
from dataclasses import dataclass

import numpy as np

from recorder.memory.drift.history import DAY_MS, History
from recorder.memory.drift.thresholds import DriftRules
from recorder.memory.drift.watched_subjects import SubjectWatch
from recorder.memory.graph.arrays import Bools, Floats, Ints

_LONG_AGO = -(2**62)


@dataclass(frozen=True, slots=True)
class Trail:
    """Sightings and misses from session `watch.start` on; all positions count from there."""

    is_sighting: Bools
    is_miss: Bools
    last_seen_ms: Ints

    @classmethod
    def read(cls, history: History, watch: SubjectWatch, end: int) -> "Trail":
        """Read the sessions before position `end`.

        One that began more than a day before the subject was last seen is passed over, whether it has it or
        not: it is a recording of the past, imported later. Within a day sessions may end in any order.
        """
        started = history.started_ms[watch.start : end]
        has = history.has(watch.subject, watch.start, end)
        last_seen = np.maximum.accumulate(np.where(has, started, _LONG_AGO))
        counts = started >= np.concatenate([[_LONG_AGO], last_seen - DAY_MS])[:-1]
        counts &= ~history.has_any(watch.left_out, watch.start, end)
        return cls(counts & has, counts & ~has, last_seen)

    def runs(self, first: int) -> Ints:
        """Return for each session the number of misses in a row that end with it, counted from `first` on."""
        misses = np.cumsum(self.is_miss)
        base = np.where(self.is_sighting, misses, 0)
        base[:first] = misses[first - 1] if first else 0
        return misses - np.maximum.accumulate(base)


@dataclass(frozen=True, slots=True)
class FallEvidence:
    """Evidence for each session from `first` on that the rate fell before it (Shiryaev–Roberts).

    Every session multiplies the evidence by the odds of a lower rate against that of the sessions so far:
    R = (R + 1) · q(x) / p(x). While nothing changes its mean grows by one a session, so it exceeds a limit
    at most once in as many sessions as that limit says. p is predicted, by Jeffreys' prior, from the baseline
    and all sessions since, so what a small baseline leaves open is part of it.
    """

    first: int
    #: Logarithm of the evidence: the mean over the rates that were tried.
    log_odds: Floats
    #: Logarithms of the odds from `first` to each session, a row for each rate.
    sums: Floats

    @classmethod
    def weigh(cls, trail: Trail, watch: SubjectWatch, first: int, rules: DriftRules) -> "FallEvidence":
        """Weigh the sessions from `first` on."""
        sighting, miss = trail.is_sighting[first:], trail.is_miss[first:]
        seen = watch.seen + np.cumsum(sighting) - sighting
        sessions = watch.sessions + np.cumsum(sighting | miss) - (sighting | miss)
        rate = (seen + 0.5) / (sessions + 1)
        lower = np.array(rules.drops)[:, None] * (watch.seen + 0.5) / (watch.sessions + 1)
        steps = np.where(
            sighting, np.log(lower) - np.log(rate), np.where(miss, np.log1p(-lower) - np.log1p(-rate), 0.0)
        )
        sums = np.cumsum(steps, axis=1)
        before = np.concatenate([np.zeros((len(lower), 1)), sums[:, :-1]], axis=1)
        log_odds = sums + np.logaddexp.accumulate(-before, axis=1)
        return cls(first, np.logaddexp.reduce(log_odds, axis=0) - math.log(len(lower)), sums)

    def begins_at(self, index: int) -> int:
        """Return the earliest session that the fall seen at session `index` may have begun with.

        The likeliest beginning has the highest odds up to `index`; one with a seventh of them (e⁻²) is
        plausible too.
        """
        last = index - self.first
        before = np.concatenate([np.zeros((len(self.sums), 1)), self.sums[:, :last]], axis=1)
        odds = self.sums[:, last : last + 1] - before
        best = odds[odds.max(axis=1).argmax()]
        return self.first + int((best >= best.max() - 2.0).argmax())


def find_return_after_fall(
    trail: Trail, fell_at: int, *, before: float, after: float, rules: DriftRules
) -> int | None:
    """Return the session with which a subject that fell has returned; None if it has not.

    It has returned when the odds of its former rate against the present one reach a limit, counted from the
    session that favours it most (a cumulative sum, Page 1954). A rate below a quarter counts as a quarter.
    """
    high = min(before, 0.99)
    low = min(max(after, high / 4), rules.most_left * high)
    sighting, miss = trail.is_sighting[fell_at + 1 :], trail.is_miss[fell_at + 1 :]
    steps = np.where(
        sighting, math.log(high / low), np.where(miss, math.log1p(-high) - math.log1p(-low), 0.0)
    )
    sums = np.concatenate([[0.0], np.cumsum(steps)])
    is_back = sums - np.minimum.accumulate(sums) >= math.log(rules.return_odds)
    return fell_at + int(is_back.argmax()) if is_back.any() else None
