"""Drift: false alarms, recall and delay of both rules, on streams whose changes are known. Spec §6.1.

Three streams (`benchmarks/drift_streams.py`), shuffled again for every repeat, so that nothing changes but
what is put in: a path that stops, or a node that appears. A path is one exact sequence of nodes, as in the
measurements that the goals rest on. The real log is also judged at in its real order, for information:
no record says what changed in it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.drift_streams import Stream, plant_sessions, read_log, read_tasks
from benchmarks.figures import Figure, Skipped, at_least, at_most
from recorder.memory.drift.alarm_rules import PathGone
from recorder.memory.drift.detector import Alarm, DetectorState, check_terms
from recorder.memory.drift.history import History
from recorder.memory.drift.thresholds import Rules, Term

_RULES = Rules()
_BASELINE = _RULES.baseline
_LIVE = _RULES.term * _BASELINE
#: The place of the first session behind the change.
_CHANGE = _BASELINE + 500
_NODE_SHARE = 0.10
#: Terms of the long run, the first and small one not counted.
_TERMS = 5


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure false alarms, recall and delay for each stream.

    Raises:
        Skipped: if a stream's data are not beside the project.
    """
    repeats = 25 if quick else 200
    figures: list[Figure] = []
    absent: list[str] = []
    for read in (read_log, read_tasks, plant_sessions):
        try:
            stream = read()
        except Skipped as reason:
            absent.append(str(reason))
            continue
        figures += [
            _false_alarms(stream, repeats),
            _long_run(stream, repeats // 5),
            _first_term(stream, repeats),
        ]
        figures += [*_stopped_path(stream, repeats), *_new_node(stream, repeats)]
        if stream.started_ms is not None:
            figures.append(_real_order(stream))
    if absent:
        figures.append(
            Figure(
                name="drift: streams left out", unit="", ours=[len(absent)], detail=dict.fromkeys(absent, "")
            )
        )
    return figures


def judge(history: History) -> list[Alarm]:
    """Return the alarms after a full baseline, up to the end of its term."""
    term = Term(0, _BASELINE, _BASELINE, known=_BASELINE)
    return next(check_terms(history, DetectorState(term=term), _RULES)).alarms


def replay(history: History) -> list[Alarm]:
    """All alarms from the first session on."""
    return [
        alarm
        for check in check_terms(history, DetectorState(), _RULES, from_the_start=True)
        for alarm in check.alarms
    ]


def stop_path(history: History, seed: int) -> tuple[History, int]:
    """Return the same sessions with a common path replaced by others from the change on, and that path."""
    draw = np.random.default_rng(seed)
    counts = np.bincount(history.path[:_BASELINE])
    gone = int(draw.choice(np.nonzero(counts >= _RULES.least_share * _BASELINE)[0]))
    path = history.path.copy()
    places = np.nonzero(path == gone)[0]
    places = places[places >= _CHANGE]
    path[places] = draw.choice(path[path != gone], len(places))
    return replace(history, path=path, variant=path), gone


def _false_alarms(stream: Stream, repeats: int) -> Figure:
    alarms = [judge(stream.shuffled(_BASELINE + _LIVE, seed)) for seed in range(repeats)]
    return Figure(
        name=f"drift, {stream.name}: false alarms per {_LIVE:,} sessions",
        unit="",
        ours=[_per_repeat(alarms)],
        goal=at_most(0.05),
        detail={**_kinds(alarms), "repeats": repeats, "variants": len(stream.variants)},
    )


def _long_run(stream: Stream, repeats: int) -> Figure:
    """Return the same over several terms, each with the latest baseline."""
    sessions = _BASELINE + _TERMS * _LIVE
    alarms = [
        [alarm for alarm in replay(stream.shuffled(sessions, seed)) if alarm.position >= _BASELINE]
        for seed in range(repeats)
    ]
    return Figure(
        name=f"drift, {stream.name}: the same over {_TERMS} terms",
        unit="",
        ours=[_per_repeat(alarms) / _TERMS],
        goal=at_most(0.05),
        detail={**_kinds(alarms), "repeats": repeats},
    )


def _first_term(stream: Stream, repeats: int) -> Figure:
    """Return the same figures for a workflow's first baseline, of 100 sessions and in force for 400."""
    alarms = [replay(stream.shuffled(_BASELINE - 1, seed)) for seed in range(repeats)]
    return Figure(
        name=f"drift, {stream.name}: false alarms in a first term of 400 sessions",
        unit="",
        ours=[_per_repeat(alarms)],
        goal=at_most(0.05),
        detail={**_kinds(alarms), "repeats": repeats},
    )


def _stopped_path(stream: Stream, repeats: int) -> list[Figure]:
    results, delays, ratios = [], [], []
    for seed in range(repeats):
        history, gone = stop_path(stream.shuffled(_BASELINE + _LIVE, seed), seed)
        reports = [
            alarm
            for alarm in judge(history)
            if isinstance(alarm, PathGone) and alarm.watched.path == gone and alarm.position >= _CHANGE
        ]
        results.append(len(reports) == 1)
        delays += [alarm.position + 1 - _CHANGE for alarm in reports]
        ratios += [(alarm.position + 1 - _CHANGE) / alarm.watched.needed for alarm in reports]
    return [
        Figure(
            name=f"drift, {stream.name}: a path that stops is told of, once",
            unit="",
            ours=[statistics.fmean(results)],
            goal=at_least(1.0),
            detail={"repeats": repeats, "sessions until then": delays},
        ),
        Figure(
            name=f"drift, {stream.name}: longest delay by the misses needed",
            unit="",
            ours=[max(ratios)],
            goal=at_most(1.5),
            detail={"median": statistics.median(ratios)},
        ),
    ]


def _new_node(stream: Stream, repeats: int) -> list[Figure]:
    results, delays = [], []
    for seed in range(repeats):
        history = stream.shuffled(_BASELINE + _LIVE, seed)
        chosen = np.random.default_rng(seed).random(len(history)) < _NODE_SHARE
        chosen[:_CHANGE] = False
        history, node = stream.with_node(history, chosen)
        reports = [
            alarm for alarm in judge(history) if not isinstance(alarm, PathGone) and alarm.node == node
        ]
        results.append(len(reports) == 1)
        delays += [alarm.position + 1 - _CHANGE for alarm in reports]
    return [
        Figure(
            name=f"drift, {stream.name}: a node in 10 % of sessions is told of, once",
            unit="",
            ours=[statistics.fmean(results)],
            goal=at_least(1.0),
            detail={"repeats": repeats, "sessions until then": delays},
        )
    ]


def _real_order(stream: Stream) -> Figure:
    history = stream.in_order()
    alarms = replay(history)
    return Figure(
        name=f"drift, {stream.name} in its real order: alarms",
        unit="",
        ours=[len(alarms)],
        detail={
            **_kinds([alarms]),
            "sessions": len(history),
            "per 2,000": len(alarms) / len(history) * 2_000,
            "at session": ", ".join(f"{alarm.position + 1:,}" for alarm in alarms),
        },
    )


def _per_repeat(alarms: Sequence[Sequence[Alarm]]) -> float:
    return statistics.fmean(len(alarm) for alarm in alarms)


def _kinds(alarms: Sequence[Sequence[Alarm]]) -> dict[str, int]:
    paths = sum(isinstance(alarm, PathGone) for raised in alarms for alarm in raised)
    return {"about paths": paths, "about nodes": sum(map(len, alarms)) - paths}
