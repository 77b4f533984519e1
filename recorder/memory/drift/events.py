"""Alarms as the `data` of their events: every figure that the rule rests on, and a sentence. Contract §6."""

import numpy as np

from recorder import clock
from recorder.memory.drift.alarm_rules import NodeNew, PathGone
from recorder.memory.drift.detector import Alarm
from recorder.memory.drift.history import History
from recorder.memory.drift.store import NEW_NODE, PATH_DISAPPEARED
from recorder.memory.drift.thresholds import most_expected
from recorder.memory.grouping.inverted_index import Ints
from recorder.memory.queries.columns import GraphColumns
from recorder.models.drift import DriftBaseline, DriftNode, DriftPath, DriftWindow
from recorder.models.notification import NewNodeData, PathDisappearedData


def describe(
    alarm: Alarm, history: History, columns: GraphColumns, *, workflow: str
) -> tuple[str, str, NewNodeData | PathDisappearedData]:
    """Type of the event, id of what it is about, and its data."""
    if isinstance(alarm, PathGone):
        gone = _path_disappeared(alarm, history, columns, workflow)
        return PATH_DISAPPEARED, gone.path.path_id, gone
    new = _new_node(alarm, history, columns, workflow)
    return NEW_NODE, new.node.node_id, new


def _path_disappeared(
    alarm: PathGone, history: History, columns: GraphColumns, workflow: str
) -> PathDisappearedData:
    watched, missed = alarm.watched, len(alarm.misses)
    path = columns.paths[watched.path]
    nodes = [columns.nodes[number] for number in path.nodes]
    expected = round(watched.frequency * missed, 1)
    sentence = (
        f"0 of the last {missed} sessions took this path; {expected} expected, since {watched.seen} of the "
        f"{watched.sessions} sessions of the baseline did. {watched.needed} misses in a row are an alarm."
    )
    return PathDisappearedData(
        workflow=workflow,
        path=DriftPath(
            path_id=path.path_id,
            node_ids=[node.node_id for node in nodes],
            labels=[node.label for node in nodes],
        ),
        last_seen_at=clock.from_ms(alarm.last_seen_ms),
        baseline_frequency=watched.frequency,
        window=_window(history, alarm.misses, alarm.misses, 0, expected, watched.needed, sentence),
    )


def _new_node(alarm: NodeNew, history: History, columns: GraphColumns, workflow: str) -> NewNodeData:
    node, seen, sessions = columns.nodes[alarm.node], len(alarm.sightings), alarm.baseline
    places = np.arange(alarm.window_start, alarm.place + 1)
    expected = round(most_expected(sessions, len(places)), 1)
    sentence = (
        f"{seen} of the last {len(places)} sessions went through this node, none of the {sessions} of the "
        f"baseline; of a node that is merely rare at most {expected} expected. {alarm.needed} are an alarm."
    )
    began = history.started_ms[alarm.baseline_start : alarm.baseline_start + sessions]
    return NewNodeData(
        workflow=workflow,
        node=DriftNode(node_id=node.node_id, label=node.label, kind=node.kind),
        window=_window(history, places, alarm.sightings, seen, expected, alarm.needed, sentence),
        baseline=DriftBaseline(
            sessions=sessions,
            seen=0,
            since=clock.from_ms(int(began.min())),
            until=clock.from_ms(int(began.max())),
        ),
        graph_version=columns.version,
    )


def _window(
    history: History, places: Ints, counted: Ints, seen: int, expected: float, needed: int, sentence: str
) -> DriftWindow:
    """The sessions of a window; actors and days are those of the ones that count."""
    began = history.started_ms[places]
    actors, days = history.actors_and_days(counted)
    return DriftWindow(
        sessions=len(places),
        seen=seen,
        expected=expected,
        needed=needed,
        actors=actors,
        days=days,
        since=clock.from_ms(int(began.min())),
        until=clock.from_ms(int(began.max())),
        explanation=sentence,
    )
