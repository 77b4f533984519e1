"""Falls: watched subjects that stopped (misses in a row) or dropped (lower rate).

Spec §6.1, docs/drift.md.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from recorder.memory.drift.changes import NoticedChange
from recorder.memory.drift.fall_evidence import FallEvidence, Trail, find_return_after_fall
from recorder.memory.drift.history import History
from recorder.memory.drift.thresholds import DriftRules
from recorder.memory.drift.watched_subjects import SubjectWatch
from recorder.memory.graph.arrays import Ints

View = tuple[SubjectWatch, Trail]


@dataclass(frozen=True, slots=True)
class Fall:
    """A subject that stopped or dropped: noticed at the session of this position."""

    position: int
    kind: Literal["stopped", "dropped"]
    watch: SubjectWatch
    #: Positions of the sessions that count: those since it was last seen, or since its rate fell.
    window: Ints
    #: How many of them have it; 0 where it stopped.
    seen: int
    #: How many misses among them make an alarm.
    needed: int
    #: When the latest session that has it began.
    last_seen_ms: int

    @property
    def subject(self) -> int:
        """Number of the subject."""
        return self.watch.subject

    @property
    def after(self) -> float:
        """Its share of the window."""
        return self.seen / len(self.window)

    def as_change(self, *, is_reported: bool) -> NoticedChange:
        """Return the change, for later alarms to be compared with."""
        since = int(self.window[0])
        most = compute_highest_remaining_rate(self.seen, len(self.window))
        return NoticedChange(
            self.subject, False, since, self.position, self.watch.frequency, most, is_reported
        )


def compute_highest_remaining_rate(seen: int, sessions: int) -> float:
    """Return the highest rate that so many sightings allow (95 %)."""
    from scipy.special import betaincinv

    return float(betaincinv(seen + 1, sessions - seen, 0.95)) if seen < sessions else 1.0


def find_falls(
    history: History,
    watch: SubjectWatch,
    besides: SubjectWatch,
    *,
    begin: int,
    end: int,
    fallen: NoticedChange | None,
    rules: DriftRules,
) -> list[Fall]:
    """Return the falls of one subject that are noticed from position `begin` to before `end`.

    Args:
        history: the sessions.
        watch: the subject.
        besides: the same among the sessions that no reported change is about. Both must show a fall: new work
            makes all other work rarer, and that is one change.
        begin: position of the first session to judge.
        end: position after the last session to judge.
        fallen: its last fall so far. The next one needs that the subject returned.
        rules: the numbers of the rules.
    """
    views = [(watch, Trail.read(history, watch, end))]
    if besides.left_out and besides.seen >= rules.least_seen:
        views.append((besides, Trail.read(history, besides, end)))
    trail, first = views[0][1], watch.watched_from - watch.start
    falls: list[Fall] = []
    while True:
        if fallen is not None:
            before, after = watch.frequency or fallen.before, fallen.most_after
            back = find_return_after_fall(
                trail, fallen.position - watch.start, before=before, after=after, rules=rules
            )
            if back is None:
                return falls
            first = max(first, back + 1)
        if first >= len(trail.is_miss):
            return falls
        noticed = [
            fall
            for find in (_find_fall_by_stop, _find_fall_by_drop)
            if (fall := find(history, views, first, max(first, begin - watch.start), rules)) is not None
        ]
        if not noticed:
            return falls
        falls.append(min(noticed, key=lambda fall: fall.position))
        fallen = falls[-1].as_change(is_reported=True)


def _find_fall_by_stop(
    history: History, views: list[View], first: int, begin: int, rules: DriftRules
) -> Fall | None:
    watch, trail = views[0]
    runs, misses = trail.runs(first), np.flatnonzero(trail.is_miss)
    is_long = np.logical_and.reduce([view.runs(first) >= each.needed for each, view in views])
    candidates = np.flatnonzero(trail.is_miss & is_long)
    for index in candidates[candidates >= begin].tolist():
        run = misses[misses <= index][-int(runs[index]) :]
        if history.count_until_mixed(run + watch.start) <= len(run):
            last = int(trail.last_seen_ms[index])
            return Fall(index + watch.start, "stopped", watch, run + watch.start, 0, watch.needed, last)
    return None


def _find_fall_by_drop(
    history: History, views: list[View], first: int, begin: int, rules: DriftRules
) -> Fall | None:
    watch, trail = views[0]
    if not watch.seen:
        return None
    evidence = [FallEvidence.weigh(view, each, first, rules) for each, view in views]
    limit = math.log(watch.watched * rules.run_length)
    is_alarm = np.logical_and.reduce([each.log_odds >= limit for each in evidence]) & trail.is_miss[first:]
    candidates = np.flatnonzero(is_alarm) + first
    for index in candidates[candidates >= begin].tolist():
        since = evidence[0].begins_at(index)
        is_counted = trail.is_miss[since : index + 1] | trail.is_sighting[since : index + 1]
        window = np.flatnonzero(is_counted) + since + watch.start
        missed = np.flatnonzero(trail.is_miss[since : index + 1]) + since + watch.start
        seen = len(window) - len(missed)
        most = rules.most_left * watch.frequency * len(window)
        is_clear = 0 < seen <= most and len(missed) >= rules.least_misses
        if is_clear and history.count_until_mixed(missed) <= len(missed):
            last = int(trail.last_seen_ms[index])
            return Fall(index + watch.start, "dropped", watch, window, seen, len(missed), last)
    return None


def misses_so_far(history: History, watch: SubjectWatch, end: int) -> int:
    """Count the sessions before position `end` that missed a subject since it was last seen."""
    runs = Trail.read(history, watch, end).runs(watch.watched_from - watch.start)
    return int(runs[-1]) if len(runs) else 0


def measure_strength_of_fall(history: History, watch: SubjectWatch, end: int, rules: DriftRules) -> float:
    """Return the evidence at position `end` that a subject fell; 1 is an alarm (ratio of logarithms)."""
    trail, first = Trail.read(history, watch, end), watch.watched_from - watch.start
    if not watch.seen or first >= len(trail.is_miss):
        return 0.0
    odds = float(FallEvidence.weigh(trail, watch, first, rules).log_odds[-1])
    limit = math.log(watch.watched * rules.run_length)
    return max(odds / limit, int(trail.runs(first)[-1]) / watch.needed)
