"""Drift detector: both rules over the sessions since the last check, by term. Spec §6.1, docs/drift.md.

However sessions are cut into checks, the alarms are the same, except for a first check of a long history.
schedule, the back-test and the benchmark are this one function.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from recorder.memory.drift.alarm_rules import (
    NodeNew,
    PathGone,
    WatchedPath,
    find_gone,
    find_new,
    inherit_paths,
    watch_paths,
)
from recorder.memory.drift.history import History
from recorder.memory.drift.thresholds import Rules, Term, latest_term, next_term

Alarm = PathGone | NodeNew


@dataclass(frozen=True, slots=True)
class DetectorState:
    """State of drift detection after a check."""

    #: Place of the first session that was not judged.
    judged: int = 0
    #: None while there are too few sessions.
    term: Term | None = None
    #: Place of the last alarm of each path; nodes of all alarms.
    path_alarms: dict[int, int] = field(default_factory=dict)
    node_alarms: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TermCheck:
    """Result of a check of one term: its alarms in the order of the sessions, and the state after it."""

    alarms: list[Alarm]
    watched: list[WatchedPath]
    state: DetectorState


def check_terms(
    history: History, state: DetectorState, rules: Rules, *, from_the_start: bool = False
) -> Iterator[TermCheck]:
    """Judge all sessions that were not judged yet, one term after the other.

    Args:
        history: the sessions.
        state: the state after the check before.
        rules: the numbers of the rules.
        from_the_start: begin with the first baseline. Else a first check of a long history goes back by one
            term, 2,000 sessions, to the baseline of then: what happened before is no news.

    Yields:
        One check for each term that has sessions to judge; none while there are too few for a baseline.
    """
    term = state.term
    if term is None or term.end - term.start < min(rules.least_baseline, rules.baseline):
        # None yet, or most of it was deleted.
        back = len(history) if from_the_start else rules.term * rules.baseline
        term = latest_term(len(history) - back, rules)
    if term.end > len(history):
        return
    while True:
        check = _check_term(history, state, term, rules)
        is_over = term.over_at(rules) <= len(history)
        if is_over:
            end, alarms = term.over_at(rules), check.state.path_alarms
            term = next_term(term, rules, inherit_paths(history, check.watched, end, alarms))
            check = replace(check, state=replace(check.state, term=term))
        yield check
        if not is_over:
            return
        state = check.state


def _check_term(history: History, state: DetectorState, term: Term, rules: Rules) -> TermCheck:
    begin, end = max(state.judged, term.end), min(len(history), term.over_at(rules))
    watched = watch_paths(history, term, rules)
    alarms: list[Alarm] = []
    for path in watched:
        last = state.path_alarms.get(path.path)
        alarms += find_gone(history, path, begin=begin, end=end, last_alarm=last, rules=rules)
    alarms += find_new(history, term, begin=begin, end=end, alarmed=set(state.node_alarms), rules=rules)
    alarms.sort(key=lambda alarm: alarm.position)
    gone = {alarm.watched.path: alarm.position for alarm in alarms if isinstance(alarm, PathGone)}
    new = {alarm.node for alarm in alarms if isinstance(alarm, NodeNew)}
    state = DetectorState(max(state.judged, end), term, state.path_alarms | gone, state.node_alarms | new)
    return TermCheck(alarms, watched, state)
