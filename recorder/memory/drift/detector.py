"""Drift detector: all rules over the sessions since the last check, by term. Spec §6.1, docs/drift.md.

However sessions are cut into checks, the alarms are the same, except for a first check of a long history.
The schedule, the backtest and the benchmark are this one function.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from recorder.memory.drift.baseline_terms import Term, latest_baseline_term, next_baseline_term
from recorder.memory.drift.changes import NoticedChange, report_order_of
from recorder.memory.drift.explained_changes import (
    is_fall_explained,
    is_growth_explained,
    leave_out_explained_sessions,
)
from recorder.memory.drift.falls import Fall, find_falls, measure_strength_of_fall
from recorder.memory.drift.growth import Growth, find_growth
from recorder.memory.drift.history import History
from recorder.memory.drift.thresholds import DriftRules
from recorder.memory.drift.watched_subjects import SubjectWatch, inherit_watches, list_watched_subjects

Alarm = Fall | Growth


@dataclass(frozen=True, slots=True)
class DetectorState:
    """State of drift detection after a check."""

    #: Position of the first session that was not judged.
    judged: int = 0
    #: None while there are too few sessions.
    term: Term | None = None
    #: The last change of each subject, reported or not, that the present baseline does not hold.
    changes: dict[int, NoticedChange] = field(default_factory=dict)
    #: Subjects that were reported as new: they are never again.
    reported: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TermCheck:
    """Result of a check of one term: its alarms in the order of the sessions, and the state after it."""

    alarms: list[Alarm]
    watched: list[SubjectWatch]
    state: DetectorState


def detect_alarms(
    history: History, state: DetectorState, rules: DriftRules, *, from_the_start: bool = False
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
        term = latest_baseline_term(len(history) - back, rules)
    if term.end > len(history):
        return
    while True:
        check = _detect_term_alarms(history, state, term, rules)
        is_over = term.over_at(rules) <= len(history)
        if is_over:
            term, check = _end_term(history, check, term, rules)
        yield check
        if not is_over:
            return
        state = check.state


def _detect_term_alarms(history: History, state: DetectorState, term: Term, rules: DriftRules) -> TermCheck:
    """Judge one term, the earliest change first: what it explains is not reported."""
    begin, end = max(state.judged, term.end), min(len(history), term.over_at(rules))
    changes, reported, alarms = dict(state.changes), state.reported, []
    watched = list_watched_subjects(history, term, rules)
    waiting = _find_candidate_alarms(history, term, watched, changes, reported, (begin, end), rules)
    while waiting:
        alarm = waiting.pop(0)
        is_explained = (
            is_fall_explained(history, alarm, changes.values(), rules)
            if isinstance(alarm, Fall)
            else is_growth_explained(history, alarm, changes.values())
        )
        reported_before = _list_reported(changes)
        changes[alarm.subject] = alarm.as_change(is_reported=not is_explained)
        if not is_explained:
            alarms.append(alarm)
        if alarm.kind == "new" and not is_explained:
            reported |= {alarm.subject}
        if _list_reported(changes) != reported_before:
            # What was noticed later was noticed without regard to this change.
            waiting = _find_candidate_alarms(
                history, term, watched, changes, reported, (alarm.position, end), rules
            )
    state = DetectorState(max(state.judged, end), term, changes, reported)
    return TermCheck(alarms, watched, state)


def _list_reported(changes: dict[int, NoticedChange]) -> set[int]:
    """Return the subjects whose noticed changes were reported as alarms."""
    return {change.subject for change in changes.values() if change.is_reported}


def _find_candidate_alarms(
    history: History,
    term: Term,
    watched: list[SubjectWatch],
    changes: dict[int, NoticedChange],
    reported: frozenset[int],
    judged: tuple[int, int],
    rules: DriftRules,
) -> list[Alarm]:
    """Return all alarms of some sessions, those that another one explains too, in their order."""
    begin, end = judged
    alarms: list[Alarm] = []
    for watch in watched:
        fallen = changes.get(watch.subject)
        fallen = None if fallen is None or fallen.rose else fallen
        besides = leave_out_explained_sessions(history, watch, changes.values(), rules)
        alarms += find_falls(history, watch, besides, begin=begin, end=end, fallen=fallen, rules=rules)
    known = {*reported, *(change.subject for change in changes.values() if change.rose)}
    alarms += find_growth(history, term, watched, begin=begin, end=end, known=known, rules=rules)
    return sorted(alarms, key=lambda alarm: report_order_of(history, alarm.as_change(is_reported=True)))


def _end_term(history: History, check: TermCheck, term: Term, rules: DriftRules) -> tuple[Term, TermCheck]:
    """Return the next term, and the check with the state that the next term begins with."""
    end, changes = term.over_at(rules), check.state.changes
    suspects = {
        watch.subject
        for watch in check.watched
        if watch.subject not in changes
        and measure_strength_of_fall(history, watch, end, rules) >= 0.5
        and measure_strength_of_fall(
            history, leave_out_explained_sessions(history, watch, changes.values(), rules), end, rules
        )
        >= 0.5
    }
    following = next_baseline_term(term, rules)
    inherited = inherit_watches(check.watched, suspects, changes, following.start)
    following = replace(following, inherited=inherited)
    # What the next baseline holds from its first session on is what is expected now.
    later = {number: change for number, change in changes.items() if change.since >= following.start}
    return following, replace(check, state=replace(check.state, term=following, changes=later))
