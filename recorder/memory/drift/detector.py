"""A look at the sessions that came since the last one: both rules, term after term. Spec §6.1, docs/drift.md.

However sessions are cut into looks, the alarms are the same, but for a first look at a long history. The live
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
    hand_over,
    watch_paths,
)
from recorder.memory.drift.history import History
from recorder.memory.drift.thresholds import Rules, Term, latest_term, next_term

Alarm = PathGone | NodeNew


@dataclass(frozen=True, slots=True)
class Standing:
    """Where drift stands after a look."""

    #: Place of the first session that was not judged.
    looked: int = 0
    #: None while there are too few sessions.
    term: Term | None = None
    #: Place of the last alarm of each path; nodes of all alarms.
    path_alarms: dict[int, int] = field(default_factory=dict)
    node_alarms: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at one term found, in the order of the sessions, and where it leaves off."""

    alarms: list[Alarm]
    watched: list[WatchedPath]
    standing: Standing


def looks(
    history: History, standing: Standing, rules: Rules, *, from_the_start: bool = False
) -> Iterator[Look]:
    """Judge all sessions that were not judged yet, one term after the other.

    Args:
        from_the_start: begin with the first baseline. Else a first look at a long history goes back by one
            term, 2,000 sessions, to the baseline of then: what happened before is no news.

    Yields:
        One look for each term that has sessions to judge; nothing while there are too few for a baseline.
    """
    term = standing.term
    if term is None or term.end - term.start < min(rules.least_baseline, rules.baseline):
        # None yet, or most of it was deleted.
        back = len(history) if from_the_start else rules.term * rules.baseline
        term = latest_term(len(history) - back, rules)
    if term.end > len(history):
        return
    while True:
        look = _look(history, standing, term, rules)
        is_over = term.over_at(rules) <= len(history)
        if is_over:
            end, alarms = term.over_at(rules), look.standing.path_alarms
            term = next_term(term, rules, hand_over(history, look.watched, end, alarms))
            look = replace(look, standing=replace(look.standing, term=term))
        yield look
        if not is_over:
            return
        standing = look.standing


def _look(history: History, standing: Standing, term: Term, rules: Rules) -> Look:
    begin, end = max(standing.looked, term.end), min(len(history), term.over_at(rules))
    watched = watch_paths(history, term, rules)
    alarms: list[Alarm] = []
    for one in watched:
        last = standing.path_alarms.get(one.path)
        alarms += find_gone(history, one, begin=begin, end=end, last_alarm=last, rules=rules)
    alarms += find_new(history, term, begin=begin, end=end, told=set(standing.node_alarms), rules=rules)
    alarms.sort(key=lambda alarm: alarm.place)
    gone = {alarm.watched.path: alarm.place for alarm in alarms if isinstance(alarm, PathGone)}
    new = {alarm.node for alarm in alarms if isinstance(alarm, NodeNew)}
    standing = Standing(
        max(standing.looked, end), term, standing.path_alarms | gone, standing.node_alarms | new
    )
    return Look(alarms, watched, standing)
