"""Alarms of drift as `data` of their events. Spec §6.1; contract §6, docs/drift.md."""

import numpy as np

from recorder import clock
from recorder.memory.drift.detector import Alarm
from recorder.memory.drift.drift_subjects import PATH, DriftSubject, SubjectKind
from recorder.memory.drift.falls import Fall
from recorder.memory.drift.growth import Growth
from recorder.memory.drift.history import History
from recorder.memory.drift.store import NEW_NODE, PATH_DISAPPEARED, make_subject_id
from recorder.memory.drift.thresholds import compute_most_expected
from recorder.memory.graph.arrays import Ints
from recorder.memory.queries.columns import GraphColumns
from recorder.models.drift import (
    ChangeKind,
    DriftBaseline,
    DriftNode,
    DriftPath,
    DriftWindow,
    EdgeSubject,
    NodeSubject,
    PathSubject,
)
from recorder.models.webhook import NewNodeData, PathDisappearedData

_VERBS: dict[SubjectKind, str] = {
    "path": "took this path",
    "node": "went through this node",
    "edge": "took this edge",
}


def make_alarm_payload(
    alarm: Alarm, history: History, columns: GraphColumns, *, workflow: str
) -> tuple[str, str, NewNodeData | PathDisappearedData]:
    """Return type of the event, id of its subject, and its data."""
    subject_id = make_subject_id(history.subjects.describe(alarm.subject), columns)
    if isinstance(alarm, Fall):
        return PATH_DISAPPEARED, subject_id, _make_fall_payload(alarm, history, columns, workflow)
    return NEW_NODE, subject_id, _make_growth_payload(alarm, history, columns, workflow)


def _make_fall_payload(
    fall: Fall, history: History, columns: GraphColumns, workflow: str
) -> PathDisappearedData:
    watch, subject = fall.watch, history.subjects.describe(fall.subject)
    sessions, verb = len(fall.window), _VERBS[subject.kind]
    expected = round(watch.frequency * sessions, 1)
    sentence = (
        f"{fall.seen} of the last {sessions} sessions {verb}; {expected} expected, since {watch.seen} of the "
        f"{watch.sessions} sessions of the baseline did. "
    )
    if fall.kind == "stopped":
        sentence += f"{watch.needed} misses in a row are an alarm."
    else:
        sentence += f"It dropped from {watch.frequency:.1%} to {fall.after:.1%}."
    path = columns.paths[_find_commonest_path(history, fall)]
    nodes = [columns.nodes[number] for number in path.nodes]
    return PathDisappearedData(
        workflow=workflow,
        path=DriftPath(
            path_id=path.path_id,
            node_ids=[node.node_id for node in nodes],
            labels=[node.label for node in nodes],
        ),
        last_seen_at=clock.from_ms(fall.last_seen_ms),
        baseline_frequency=watch.frequency,
        window=_make_window_payload(
            history,
            fall.window,
            fall.window[~history.has(fall.subject, 0, len(history))[fall.window]],
            kind=fall.kind,
            subject=_name_payload_subject(subject, columns),
            seen=fall.seen,
            expected=expected,
            needed=fall.needed,
            explanation=sentence,
        ),
    )


def _find_commonest_path(history: History, fall: Fall) -> int:
    """Return the number of the path that most sessions of the baseline with this subject took."""
    subjects, watch = history.subjects, fall.watch
    if subjects.kind[fall.subject] == PATH:
        return int(subjects.first[fall.subject])
    has_it = subjects.variants_with(fall.subject)
    for start, end in ((watch.start, watch.end), (0, len(history))):
        sessions = np.bincount(history.variant[start:end], minlength=subjects.variant_count)
        counts = np.where(subjects.kind == PATH, subjects.count(sessions * has_it), 0)
        if counts.any():
            break
    return int(subjects.first[counts.argmax()])


def _make_growth_payload(
    growth: Growth, history: History, columns: GraphColumns, workflow: str
) -> NewNodeData:
    subject, seen = history.subjects.describe(growth.subject), len(growth.sightings)
    positions = np.arange(growth.window_start, int(growth.sightings[-1]) + 1)
    expected = round(compute_most_expected(growth.baseline_seen, growth.baseline, len(positions)), 1)
    sentence = (
        f"{seen} of the last {len(positions)} sessions {_VERBS[subject.kind]}, "
        f"{growth.baseline_seen or 'none'} of the {growth.baseline} of the baseline; "
        f"of a {subject.kind} that is merely rare at most {expected} expected. {growth.needed} are an alarm."
    )
    last = columns.paths[subject.key[0]].nodes[-1:] if subject.kind == "path" else subject.key[-1:]
    node = columns.nodes[last[0]]
    began = history.started_ms[growth.baseline_start : growth.baseline_start + growth.baseline]
    return NewNodeData(
        workflow=workflow,
        node=DriftNode(node_id=node.node_id, label=node.label, kind=node.kind),
        window=_make_window_payload(
            history,
            positions,
            growth.sightings,
            kind=growth.kind,
            subject=_name_payload_subject(subject, columns),
            seen=seen,
            expected=expected,
            needed=growth.needed,
            explanation=sentence,
        ),
        baseline=DriftBaseline(
            sessions=growth.baseline,
            seen=growth.baseline_seen,
            since=clock.from_ms(int(began.min())),
            until=clock.from_ms(int(began.max())),
        ),
        graph_version=columns.version,
    )


def _name_payload_subject(
    subject: DriftSubject, columns: GraphColumns
) -> PathSubject | NodeSubject | EdgeSubject:
    if subject.kind == "path":
        return PathSubject(path_id=columns.paths[subject.key[0]].path_id)
    ids = [columns.nodes[number].node_id for number in subject.key]
    return NodeSubject(node_id=ids[0]) if subject.kind == "node" else EdgeSubject(edge=(ids[0], ids[1]))


def _make_window_payload(
    history: History,
    positions: Ints,
    counted: Ints,
    *,
    kind: ChangeKind,
    subject: PathSubject | NodeSubject | EdgeSubject,
    seen: int,
    expected: float,
    needed: int,
    explanation: str,
) -> DriftWindow:
    """Return the sessions of a window; actors and days are those of the sessions that count."""
    began = history.started_ms[positions]
    actors, days = history.count_actors_and_days(counted)
    return DriftWindow(
        kind=kind,
        subject=subject,
        sessions=len(positions),
        seen=seen,
        expected=expected,
        needed=needed,
        actors=actors,
        days=days,
        since=clock.from_ms(int(began.min())),
        until=clock.from_ms(int(began.max())),
        explanation=explanation,
    )
