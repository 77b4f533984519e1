"""Growth: subjects that no session had, or few, and that now come too often to be rare. Spec §6.1."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from recorder.memory.drift.baseline_terms import Term
from recorder.memory.drift.changes import NoticedChange
from recorder.memory.drift.drift_subjects import KINDS, NODE
from recorder.memory.drift.history import History
from recorder.memory.drift.left_out_nodes import KnownWays
from recorder.memory.drift.thresholds import DriftRules, sightings_needed, unseen_subjects
from recorder.memory.drift.watched_subjects import SubjectWatch
from recorder.memory.graph.arrays import Ints

#: Logarithm of the odds from which on a node that is left out counts as unchanged.
_CLEAR = 1.5


@dataclass(frozen=True, slots=True)
class Growth:
    """A subject that appeared or grew: noticed at the session of this position."""

    position: int
    kind: Literal["new", "grew"]
    subject: int
    #: The sessions of the baseline begin at `baseline_start`; so many of them have it.
    baseline_start: int
    baseline: int
    baseline_seen: int
    #: Positions of the sessions within the window that have it, and the window's first position.
    sightings: Ints
    window_start: int
    needed: int
    #: Nodes without which its sessions take ways of the baseline.
    leads_around: tuple[int, ...]

    def as_change(self, *, is_reported: bool) -> NoticedChange:
        """Return the change, for later alarms to be compared with."""
        before = self.baseline_seen / self.baseline
        after = len(self.sightings) / (int(self.sightings[-1]) + 1 - self.window_start)
        return NoticedChange(
            self.subject, True, int(self.sightings[0]), self.position, before, after, is_reported
        )


def find_growth(
    history: History,
    term: Term,
    watches: list[SubjectWatch],
    *,
    begin: int,
    end: int,
    known: set[int],
    rules: DriftRules,
) -> list[Growth]:
    """Return the subjects that grew, noticed from position `begin` to before `end`; each once.

    Args:
        history: the sessions.
        term: the baseline that the sessions are compared with.
        watches: the subjects whose fall is noticed.
        begin: position of the first session to judge.
        end: position after the last session to judge.
        known: subjects whose change was noticed before.
        rules: the numbers of the rules.
    """
    baseline, since = history.counts(term.start, term.known), history.counts(term.known, end)
    sessions = term.known - term.start
    is_rare = (since >= 2) & (baseline < max(rules.least_seen, rules.least_share * sessions))
    needed = np.full(len(since), rules.window, dtype=np.int64)
    for kind in range(len(KINDS)):
        is_kind = history.subjects.kind == kind
        unseen = unseen_subjects(baseline[is_kind])
        for seen in np.unique(baseline[is_kind & is_rare]).tolist():
            subjects = unseen + int((is_kind & (baseline > 0) & (baseline <= seen)).sum())
            needed[is_kind & (baseline == seen)] = sightings_needed(seen, sessions, subjects, rules)
    earlier = history.counts(0, term.known)
    ways = KnownWays.read(history, term.start, term.known)
    watched_nodes = {
        int(history.subjects.first[watch.subject]): watch
        for watch in watches
        if history.subjects.kind[watch.subject] == NODE
    }
    growths = []
    for subject in np.flatnonzero(is_rare & (since >= needed)).tolist():
        if subject not in known:
            kind_of_change: Literal["new", "grew"] = "grew" if earlier[subject] else "new"
            growth = _find_growth_window(
                ways, watched_nodes, subject, term, (begin, end), int(needed[subject]), rules
            )
            if growth is not None:
                sightings, position, around = growth
                growths.append(
                    Growth(
                        position=position,
                        kind=kind_of_change,
                        subject=subject,
                        baseline_start=term.start,
                        baseline=sessions,
                        baseline_seen=int(baseline[subject]),
                        sightings=sightings,
                        window_start=max(term.known, int(sightings[-1]) + 1 - rules.window),
                        needed=int(needed[subject]),
                        leads_around=around,
                    )
                )
    return growths


def _find_growth_window(
    ways: KnownWays,
    watched_nodes: dict[int, SubjectWatch],
    subject: int,
    term: Term,
    judged: tuple[int, int],
    needed: int,
    rules: DriftRules,
) -> tuple[Ints, int, tuple[int, ...]] | None:
    """Return the first window with enough sightings: these, position of the alarm, and what is left out.

    An edge or path that leaves out a watched node waits: where that node fell, its own alarm says more.
    """
    history, (begin, end) = ways.history, judged
    positions = history.sessions_with(subject, term.known, end)
    # At each sighting, how many there are in the window that ends with it.
    firsts = np.searchsorted(positions, positions - rules.window, side="right")
    counted = np.arange(1, len(positions) + 1) - firsts
    for last in np.flatnonzero(counted >= needed).tolist():
        sightings = positions[firsts[last] : last + 1]
        if history.count_until_mixed(sightings) > len(sightings):
            continue
        around = () if history.subjects.kind[subject] == NODE else ways.list_nodes_left_out(sightings)
        waits = [watched_nodes[node] for node in around if node in watched_nodes]
        position = _find_settled_position(history, waits, sightings, end, rules)
        if position is None:
            return None
        if begin <= position:
            return sightings, position, around
    return None


def _find_settled_position(
    history: History, watches: list[SubjectWatch], sightings: Ints, end: int, rules: DriftRules
) -> int | None:
    """Return the position at which the nodes that a subject leaves out are known to be unchanged.

    The former rate of each must be e^1.5 times as likely as the highest that counts as a drop. A node that
    stopped raises its own alarm within as many sessions as its stop needs; after those, and a window at
    least, the subject is reported in any case. None if the sessions before `end` do not suffice.
    """
    first, last = int(sightings[0]), int(sightings[-1])
    position = last
    for watch in watches:
        latest = max(last + rules.window, first + watch.needed)
        before = min(0.99, watch.frequency)
        lost = rules.most_left * before
        has = history.has(watch.subject, first, min(end, latest + 1))
        odds = np.cumsum(np.where(has, math.log(before / lost), math.log1p(-before) - math.log1p(-lost)))
        is_clear = np.flatnonzero(odds[last - first :] >= _CLEAR)
        position = max(position, last + int(is_clear[0]) if len(is_clear) else latest)
    return position if position < end else None
