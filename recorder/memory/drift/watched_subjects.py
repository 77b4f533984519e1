"""Watched subjects of a baseline term: their frequency, and misses that raise alarms. Docs: docs/drift.md."""

from dataclasses import dataclass, replace

import numpy as np

from recorder.memory.drift.baseline_terms import Inherited, Term
from recorder.memory.drift.changes import NoticedChange
from recorder.memory.drift.history import History
from recorder.memory.drift.thresholds import DriftRules, misses_needed
from recorder.memory.graph.arrays import Ints, sort_distinct


@dataclass(frozen=True, slots=True)
class SubjectWatch:
    """A subject and what is expected of it."""

    subject: int
    #: Positions of its baseline.
    start: int
    end: int
    #: Sessions count from this position on.
    watched_from: int
    #: How many of the baseline's sessions have it.
    seen: int
    sessions: int
    #: After so many misses in a row it has stopped.
    needed: int
    #: Number of subjects that are watched beside it, with itself: those that always come together count once.
    watched: int
    #: Whether its baseline is that of the term before.
    is_inherited: bool
    #: Subjects whose sessions are left out of its baseline and of what is counted later.
    left_out: tuple[int, ...] = ()

    @property
    def frequency(self) -> float:
        """Its share of the baseline, 0 to 1; 0 where all sessions of that were deleted."""
        return self.seen / self.sessions if self.sessions else 0.0


def list_watched_subjects(history: History, term: Term, rules: DriftRules) -> list[SubjectWatch]:
    """Return the subjects that a term watches, the most common first; then those of the term before."""
    counts = history.counts(term.start, term.end)
    sessions = term.end - term.start
    left = {old.subject for old in term.inherited}
    common = np.flatnonzero(counts >= max(rules.least_seen, rules.least_share * sessions))
    common = common[np.lexsort((history.subjects.kind[common], -counts[common]))]
    fresh = [
        Inherited(number, term.start, term.end, term.end) for number in common.tolist() if number not in left
    ]
    watched = _count_distinct_subjects(history, common, term) + len(left - set(common.tolist()))
    return [
        *(_make_watch(history, entry, watched, rules, is_inherited=False) for entry in fresh),
        *(_make_watch(history, entry, watched, rules, is_inherited=True) for entry in term.inherited),
    ]


def _count_distinct_subjects(history: History, numbers: Ints, term: Term) -> int:
    """Return the number of distinct columns: subjects that come in the same sessions are one."""
    variants = sort_distinct(history.variant[term.start : term.end])
    return len({history.subjects.variants_with(number)[variants].tobytes() for number in numbers.tolist()})


def _make_watch(
    history: History, entry: Inherited, watched: int, rules: DriftRules, *, is_inherited: bool
) -> SubjectWatch:
    """Return the watch over a node or edge from the sessions since its last alarm."""
    watch = SubjectWatch(
        subject=entry.subject,
        start=entry.start,
        end=entry.end,
        watched_from=entry.watched_from,
        seen=0,
        sessions=0,
        needed=0,
        watched=watched,
        is_inherited=is_inherited,
    )
    return watch_without_subjects(history, watch, (), rules)


def watch_without_subjects(
    history: History, watch: SubjectWatch, subjects: tuple[int, ...], rules: DriftRules
) -> SubjectWatch:
    """Return the same watch among the sessions that have none of some subjects."""
    is_left = ~history.has_any(subjects, watch.start, watch.end)
    sessions = int(is_left.sum())
    seen = int((history.has(watch.subject, watch.start, watch.end) & is_left).sum())
    needed = len(history) + 1  # where no session is left, nothing is expected of it
    if seen:
        needed = misses_needed(seen, sessions, watched=watch.watched, run_length=rules.run_length)
    needed = max(rules.least_misses, needed)
    return replace(watch, seen=seen, sessions=sessions, needed=needed, left_out=subjects)


def inherit_watches(
    watches: list[SubjectWatch], suspects: set[int], changes: dict[int, NoticedChange], start: int
) -> tuple[Inherited, ...]:
    """Return the subjects that keep their baseline for one more term.

    These are subjects with half of the evidence of an alarm, and those that fell in sessions which the next
    baseline, from position `start` on, would hold against them.
    """
    remaining = []
    for watch in watches:
        change = changes.get(watch.subject)
        has_fallen = change is not None and not change.rose and change.since >= start
        if has_fallen or (watch.subject in suspects and not watch.is_inherited):
            remaining.append(Inherited(watch.subject, watch.start, watch.end, watch.watched_from))
    return tuple(remaining)
