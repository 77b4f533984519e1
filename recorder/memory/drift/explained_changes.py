"""Changes that another change explains, whose alarms are not sent. Docs: docs/drift.md.

A change of the work shows in many subjects: a path that stops takes its nodes and edges along, a step that is
left out makes an edge around it, new work makes all other work rarer. One alarm reports it.
"""

from collections.abc import Collection

from recorder.memory.drift.changes import NoticedChange
from recorder.memory.drift.drift_subjects import NODE, DriftSubject
from recorder.memory.drift.falls import Fall
from recorder.memory.drift.growth import Growth
from recorder.memory.drift.history import History
from recorder.memory.drift.left_out_nodes import KnownWays
from recorder.memory.drift.thresholds import DriftRules
from recorder.memory.drift.watched_subjects import SubjectWatch, watch_without_subjects

#: Share of the sessions of the rarer of two subjects from which on they change together.
_SHARED = 0.5


def is_fall_explained(
    history: History, fall: Fall, changes: Collection[NoticedChange], rules: DriftRules
) -> bool:
    """Return whether a change that was noticed before explains why a subject fell."""
    watch, since = fall.watch, int(fall.window[0])
    # Where it returned and fell again, what explained the first fall does not explain the second.
    earlier = [change.position for change in changes if change.subject == fall.subject]
    for other in changes:
        if other.subject == fall.subject or (earlier and other.position <= earlier[0]):
            continue
        if (
            other.rose
            and other.is_reported
            and _is_explained_by_neighbourhood(history, fall.subject, other.subject)
        ):
            return True
        is_together = since <= other.position + rules.window
        if is_together and other.rose and other.is_reported and _is_fall_of_grown_way(history, watch, other):
            return True
        if (
            is_together
            and not other.rose
            and _measure_overlap(history, fall.subject, other.subject, watch.start, watch.end) >= _SHARED
        ):
            return True
    besides = leave_out_explained_sessions(history, watch, changes, rules)
    return bool(besides.left_out) and besides.seen < rules.least_seen


def leave_out_explained_sessions(
    history: History, watch: SubjectWatch, changes: Collection[NoticedChange], rules: DriftRules
) -> SubjectWatch:
    """Return a watch among the sessions that no reported change of another subject is about.

    What most sessions have now is not left out: it is no addition to the other work, but takes its place.
    """
    reported = {
        change.subject
        for change in changes
        if change.is_reported
        and change.subject != watch.subject
        and not (change.rose and change.most_after > 0.5)
    }
    return watch_without_subjects(history, watch, tuple(sorted(reported)), rules)


def is_growth_explained(history: History, growth: Growth, changes: Collection[NoticedChange]) -> bool:
    """Return whether a change that was noticed before explains why a subject grew."""
    others = [change for change in changes if change.subject != growth.subject]
    start, end = int(growth.sightings[0]), int(growth.sightings[-1]) + 1
    ways = None
    if growth.leads_around:
        ways = KnownWays.read(history, growth.baseline_start, growth.baseline_start + growth.baseline)
    for other in others:
        if other.rose:
            if _measure_overlap(history, growth.subject, other.subject, start, end) >= _SHARED:
                return True
            is_earlier = other.is_reported and other.position <= growth.position
            if ways and is_earlier and set(growth.leads_around) & set(_list_nodes_left_out(ways, other)):
                return True
            continue
        if _is_node_among(history, other.subject, growth.leads_around):
            return True
        if other.is_reported and _is_explained_by_neighbourhood(history, growth.subject, other.subject):
            return True
    fallen = [other.subject for other in others if other.is_reported and not other.rose]
    if not fallen or not growth.baseline_seen:
        return False
    # What is left is as much more frequent as there are fewer sessions besides it.
    gone = history.has_any(fallen, growth.baseline_start, growth.baseline_start + growth.baseline)
    return len(growth.sightings) * (growth.baseline - int(gone.sum())) < growth.needed * growth.baseline


def _is_fall_of_grown_way(history: History, watch: SubjectWatch, grown: NoticedChange) -> bool:
    """Return whether a watched subject fell since a grown one is a known way with a node less or more."""
    ways = KnownWays.read(history, watch.start, watch.end)
    sightings = history.sessions_with(grown.subject, grown.since, grown.position + 1)
    if history.subjects.kind[watch.subject] != NODE and ways.is_replaced(watch.subject, sightings):
        return True
    return any(
        _measure_overlap(history, watch.subject, number, watch.start, watch.end) >= _SHARED
        for node in _list_nodes_left_out(ways, grown)
        if (number := history.subjects.find(DriftSubject("node", (node,)))) is not None
    )


def _list_nodes_left_out(ways: KnownWays, grown: NoticedChange) -> tuple[int, ...]:
    """Return the nodes that the sessions of a grown edge or path leave out of known ways."""
    if ways.history.subjects.kind[grown.subject] == NODE:
        return ()
    sightings = ways.history.sessions_with(grown.subject, grown.since, grown.position + 1)
    return ways.list_nodes_left_out(sightings)


def _is_node_among(history: History, subject: int, nodes: Collection[int]) -> bool:
    return history.subjects.kind[subject] == NODE and int(history.subjects.first[subject]) in nodes


def _measure_overlap(history: History, subject: int, other: int, start: int, end: int) -> float:
    """Return the sessions that two subjects share, as a share of those of the rarer one."""
    has, has_other = history.has(subject, start, end), history.has(other, start, end)
    least = min(has.sum(), has_other.sum())
    return float((has & has_other).sum() / least) if least else 0.0


def _is_explained_by_neighbourhood(history: History, subject: int, other: int) -> bool:
    """Return whether an edge or path leads through the neighbourhood of another subject."""
    if history.subjects.kind[subject] == NODE:
        return False
    nodes = history.subjects.nodes_around(subject)
    return len(nodes & history.subjects.nodes_around(other)) * 2 >= len(nodes)
