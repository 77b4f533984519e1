"""The zero-run rule: a path that was common is missing for longer than chance explains. Spec §6.1.

Every path of at least 3 % of the baseline is watched. What is assumed of its rate is the least that the
baseline allows; so many misses in a row are an alarm as chance brings about once in 10,000 sessions.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recorder.memory.drift.history import DAY_MS, History
from recorder.memory.drift.thresholds import (
    Inherited,
    Rules,
    Term,
    least_rate,
    misses_needed,
    sightings_needed,
    unseen_nodes,
)
from recorder.memory.graph.inverted_index import Ints

_LONG_AGO = -(2**62)


@dataclass(frozen=True, slots=True)
class WatchedPath:
    """A path and what is expected of it."""

    path: int
    #: Positions of its baseline.
    start: int
    end: int
    #: Misses count from this position on.
    watched_from: int
    #: How many of the baseline's sessions took it.
    seen: int
    sessions: int
    #: After so many misses in a row it is gone.
    needed: int
    #: Left over from an earlier term: no longer watched once it is seen at or after this position.
    until_seen_from: int | None

    @property
    def frequency(self) -> float:
        """Its share of the baseline, 0 to 1; 0 where all sessions of that were deleted."""
        return self.seen / self.sessions if self.sessions else 0.0


@dataclass(frozen=True, slots=True)
class PathGone:
    """A path that disappeared: found at the session of this position."""

    position: int
    watched: WatchedPath
    #: Positions of the sessions since it was last seen, none of which took it.
    misses: Ints
    #: When the latest session that took it began.
    last_seen_ms: int


def watch_paths(history: History, term: Term, rules: Rules) -> list[WatchedPath]:
    """Return the paths that a term watches, the most common first; then those left from earlier terms."""
    # Sessions without steps, on path -1, are none of the paths but count as sessions.
    counts = np.bincount(history.path[term.start : term.end] + 1)[1:]
    least = max(rules.least_seen, rules.least_share * (term.end - term.start))
    common = np.nonzero(counts >= least)[0]
    common = common[np.argsort(-counts[common], kind="stable")]
    since = {old.path: old.watched_from for old in term.inherited}
    listed = [Inherited(path, term.start, term.end, since.get(path, term.end)) for path in common.tolist()]
    left = [old for old in term.inherited if old.path not in set(common.tolist())]
    watched = len(listed) + len(left)
    return [
        *(_watch(history, watched_path, None, watched, rules) for watched_path in listed),
        *(_watch(history, watched_path, term.end, watched, rules) for watched_path in left),
    ]


def _watch(
    history: History, path: Inherited, until_seen_from: int | None, watched: int, rules: Rules
) -> WatchedPath:
    seen, sessions = int((history.path[path.start : path.end] == path.path).sum()), path.end - path.start
    needed = len(history) + 1  # where all of its sessions were deleted, nothing is expected of it
    if seen:
        rate = least_rate(seen, sessions, rules.level / watched)
        needed = misses_needed(rate, watched=watched, run_length=rules.run_length)
        needed = max(rules.least_misses, needed)
    return WatchedPath(
        path.path, path.start, path.end, path.watched_from, seen, sessions, needed, until_seen_from
    )


def inherit_paths(
    history: History, watched: list[WatchedPath], end: int, alarms: dict[int, int]
) -> tuple[Inherited, ...]:
    """Return the paths that the next term, which begins at `end`, inherits with their runs of misses.

    Args:
        history: the sessions.
        watched: the paths that the term watched.
        end: position of the first session of the next term.
        alarms: position of the last alarm of each path that had one.
    """
    inherited = []
    for path in watched:
        taken = np.nonzero(history.path[path.start : end] == path.path)[0] + path.start
        last = int(taken[-1]) if len(taken) else -1
        was_left = path.until_seen_from is not None and last >= path.until_seen_from
        if not was_left and alarms.get(path.path, -1) <= last:
            inherited.append(Inherited(path.path, path.start, path.end, path.watched_from))
    return tuple(inherited)


@dataclass(frozen=True, slots=True)
class _Trail:
    """Sightings and misses of one path from session `start` on; all positions count from there."""

    is_miss: npt.NDArray[np.bool_]
    sightings: Ints
    last_seen_ms: Ints

    @classmethod
    def of(cls, history: History, watched: WatchedPath, end: int) -> "_Trail":
        """Read the sessions before position `end`.

        One that began more than a day before the path was last seen is passed over, whichever path it took:
        it is a recording of the past, brought in later. Within a day sessions may end in any order.
        """
        started = history.started_ms[watched.start : end]
        is_taken = history.path[watched.start : end] == watched.path
        last_seen = np.maximum.accumulate(np.where(is_taken, started, _LONG_AGO))
        counts = started >= np.concatenate([[_LONG_AGO], last_seen - DAY_MS])[:-1]
        is_miss = counts & ~is_taken
        is_miss[: max(0, watched.watched_from - watched.start)] = False
        return cls(is_miss, np.nonzero(counts & is_taken)[0], last_seen)

    def long_runs(self, needed: int) -> list[tuple[int, Ints]]:
        """Return each run of at least so many misses: the sightings before it, and its positions."""
        bounds = np.concatenate([[0], self.sightings, [len(self.is_miss)]])
        missed = np.concatenate([[0], np.cumsum(self.is_miss)])
        return [
            (run, np.nonzero(self.is_miss[bounds[run] : bounds[run + 1]])[0] + bounds[run])
            for run in np.nonzero(np.diff(missed[bounds]) >= needed)[0].tolist()
        ]


def misses_so_far(history: History, watched: WatchedPath, end: int) -> int:
    """In how many sessions before position `end` a path was missed since it was last seen."""
    trail = _Trail.of(history, watched, end)
    last = int(trail.sightings[-1]) if len(trail.sightings) else 0
    return int(trail.is_miss[last:].sum())


def find_gone(
    history: History, watched: WatchedPath, *, begin: int, end: int, last_alarm: int | None, rules: Rules
) -> list[PathGone]:
    """Yield the alarms of one path at the sessions from position `begin` to before `end`.

    Args:
        history: the sessions.
        watched: the path.
        begin: position of the first session to judge.
        end: position after the last session to judge.
        last_alarm: position of the last alarm so far. The next one needs that the path came back, that
            is, was seen some times since.
        rules: the numbers of the rule.
    """
    trail, start = _Trail.of(history, watched, end), watched.start
    alarms = []
    for run, misses in trail.long_runs(watched.needed):
        since = int(trail.sightings[run - 1]) + start if run else -1
        if watched.until_seen_from is not None and since >= watched.until_seen_from:
            break
        if last_alarm is not None:
            seen_then = int(np.searchsorted(trail.sightings, last_alarm - start, side="right"))
            if run - seen_then < rules.return_after:
                continue
        enough = max(
            watched.needed,
            history.first_mixed(misses + start),
            int(np.searchsorted(misses, begin - start)) + 1,
        )
        if enough > len(misses):
            continue
        misses = misses[:enough]
        last_alarm = int(misses[-1]) + start
        alarms.append(PathGone(last_alarm, watched, misses + start, int(trail.last_seen_ms[misses[-1]])))
    return alarms


@dataclass(frozen=True, slots=True)
class NodeNew:
    """A node that appeared: found at the session of this position."""

    position: int
    node: int
    #: How many sessions of the baseline lack it, from `baseline_start` on.
    baseline_start: int
    baseline: int
    #: Positions of the sessions within the window that go through it, and the window's first position.
    sightings: Ints
    window_start: int
    needed: int


def find_new(
    history: History, term: Term, *, begin: int, end: int, alarmed: set[int], rules: Rules
) -> list[NodeNew]:
    """Yield the alarms about nodes at the sessions from position `begin` to before `end`, each node once.

    Args:
        history: the sessions.
        term: the baseline that the sessions are compared with.
        begin: position of the first session to judge.
        end: position after the last session to judge.
        alarmed: nodes of earlier alarms.
        rules: the numbers of the rule.
    """
    candidates = [node for node in history.nodes_since(term.known, end) if node not in alarmed]
    if not candidates:
        return []
    unseen = unseen_nodes(history.node_counts(term.start, term.known))
    needed = sightings_needed(term.known - term.start, unseen, rules)
    alarms = (_find(history, node, term, begin, end, needed, rules) for node in candidates)
    return [alarm for alarm in alarms if alarm is not None]


def _find(
    history: History, node: int, term: Term, begin: int, end: int, needed: int, rules: Rules
) -> NodeNew | None:
    places = history.sessions_with(node, term.known, end)
    # At each sighting, how many there are in the window that ends with it.
    firsts = np.searchsorted(places, places - rules.window, side="right")
    counted = np.arange(1, len(places) + 1) - firsts
    for last in np.nonzero((counted >= needed) & (places >= begin))[0].tolist():
        sightings = places[firsts[last] : last + 1]
        if history.first_mixed(sightings) <= len(sightings):
            alarm_at = int(sightings[-1])
            start = max(term.known, alarm_at + 1 - rules.window)
            return NodeNew(alarm_at, node, term.start, term.known - term.start, sightings, start, needed)
    return None
