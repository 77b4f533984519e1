"""Drift: false alarms, recall, delay and repeated alarms, on streams whose changes are known. Spec §6.1.

Six streams: the cases of BPIC 2012 in their own order and at random, two more logs, demonstrations, the
planted workflow. After a baseline of 500 sessions come 2,000; the last 1,500 of them have one change. A path
is one exact sequence of nodes. In its own order a log has changes of its own: those alarms have no goal.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from benchmarks.drift_plants import NEW_SHARE, How, Kind, plant_change
from benchmarks.drift_streams import Sample, Stream, plant_sessions, read_log, read_tasks, shuffle
from benchmarks.figure_reports import Figure, Skipped, at_least, at_most
from recorder.memory.drift.baseline_terms import Term
from recorder.memory.drift.detector import Alarm, DetectorState, TermCheck, detect_alarms
from recorder.memory.drift.thresholds import DriftRules

_RULES = DriftRules()
_BASELINE = _RULES.baseline
_LIVE = _RULES.term * _BASELINE
_SESSIONS = _BASELINE + _LIVE
#: Position of the first session with the change.
_CHANGE = _BASELINE + 500
#: Least share of a subject that stops or is halved.
_SHARE = 0.10
#: Sessions per false alarm that the goal allows.
_RUN_LENGTH = 2_000 / 0.05
_READERS: tuple[Callable[[], Stream], ...] = (
    lambda: read_log("bpic2012.xes.gz", "BPIC 2012"),
    lambda: shuffle(read_log("bpic2012.xes.gz", "BPIC 2012")),
    lambda: shuffle(read_log("02_teleclaims.xes.gz", "teleclaims")),
    lambda: shuffle(read_log("03_repairExample.xes.gz", "repair")),
    read_tasks,
    plant_sessions,
)


@dataclass(frozen=True)
class _Outcome:
    """Result of a planted change."""

    alarms: int
    #: Sessions until the first alarm, and the least that chance allows.
    delay: int | None
    least: int


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure false alarms, recall, delay and repetitions for each stream.

    Raises:
        Skipped: if no stream's data are beside the project.
    """
    repeats = 10 if quick else 40
    figures: list[Figure] = []
    absent: list[str] = []
    for read in _READERS:
        try:
            stream = read()
        except Skipped as reason:
            absent.append(str(reason))
            continue
        figures.append(_measure_false_alarms(stream, repeats))
        for how in get_args(How):
            figures += _measure_change(stream, how, repeats)
        if stream.started_ms is not None:
            figures.append(_measure_own_order(stream))
    if absent:
        detail = dict.fromkeys(absent, "")
        figures.append(Figure(name="drift: streams left out", unit="", ours=[len(absent)], detail=detail))
    return figures


def judge(sample: Sample) -> TermCheck:
    """Return the check of the sessions after a full baseline, up to the end of its term."""
    term = Term(0, _BASELINE, _BASELINE, known=_BASELINE)
    return next(detect_alarms(sample.history(), DetectorState(term=term), _RULES))


def _measure_false_alarms(stream: Stream, repeats: int) -> Figure:
    checks = [judge(stream.sample(_SESSIONS, seed)) for seed in range(repeats)]
    alarms = [alarm for check in checks for alarm in check.alarms]
    return Figure(
        name=f"drift, {stream.name}: false alarms per {_LIVE:,} sessions",
        unit="",
        ours=[len(alarms) / repeats],
        goal=at_most(0.05) if stream.started_ms is None else None,
        detail={**_count_kinds(alarms), "repeats": repeats, "watched": checks[0].watched[0].watched},
    )


def _measure_change(stream: Stream, how: How, repeats: int) -> list[Figure]:
    outcomes = {
        kind: [
            outcome
            for seed in range(repeats)
            if (outcome := _try_change(stream, kind, how, seed)) is not None
        ]
        for kind in get_args(Kind)
    }
    pooled = [outcome for of_kind in outcomes.values() for outcome in of_kind]
    if not pooled:
        return []
    ratios = [outcome.delay / outcome.least for outcome in pooled if outcome.delay is not None]
    tried = {f"{kind}s": len(of_kind) for kind, of_kind in outcomes.items()}
    missed = {f"{kind}s missed": sum(not o.alarms for o in of_kind) for kind, of_kind in outcomes.items()}
    again = {f"{kind}s again": sum(o.alarms > 1 for o in of_kind) for kind, of_kind in outcomes.items()}
    delays = [outcome.delay for outcome in pooled if outcome.delay is not None]
    name = f"drift, {stream.name}: {how}"
    return [
        Figure(
            name=f"{name}, reported",
            unit="",
            ours=[statistics.fmean(outcome.alarms > 0 for outcome in pooled)],
            goal=at_least(1.0),
            detail={**tried, **missed, "sessions until then": delays},
        ),
        Figure(
            name=f"{name}, reported once, of those reported",
            unit="",
            ours=[statistics.fmean(o.alarms == 1 for o in pooled if o.alarms)],
            goal=at_least(1.0) if stream.started_ms is None else None,
            detail=again,
        ),
        Figure(
            name=f"{name}, mean delay by the least that chance allows",
            unit="",
            ours=[statistics.fmean(ratios)],
            goal=at_most(1.5),
            detail={"median": statistics.median(ratios), "longest": max(ratios)},
        ),
    ]


def _try_change(stream: Stream, kind: Kind, how: How, seed: int) -> _Outcome | None:
    sample = stream.sample(_SESSIONS, seed)
    plain = judge(sample)
    watched = plain.watched[0].watched

    def is_eligible(share: float) -> bool:
        return share >= _SHARE and 1.5 * least_delay(share, how, watched) <= _SESSIONS - _CHANGE

    planted = plant_change(sample, kind, how, at=_CHANGE, seed=seed, is_eligible=is_eligible)
    if planted is None:
        return None
    # What the same sessions give without the change is a false alarm and counted as such: it is no report.
    besides = _describe_alarms(sample, plain)
    check = judge(planted.sample)
    alarms = [
        alarm
        for alarm, described in zip(check.alarms, _describe_alarms(planted.sample, check), strict=True)
        if alarm.position >= _CHANGE and described not in besides
    ]
    delay = alarms[0].position + 1 - _CHANGE if alarms else None
    return _Outcome(len(alarms), delay, least_delay(planted.share, how, watched))


def _describe_alarms(sample: Sample, check: TermCheck) -> list[tuple[object, ...]]:
    """Return kind and subject of each alarm, as another sample has them too: a path by its nodes."""
    history = sample.history()
    described: list[tuple[object, ...]] = []
    for alarm in check.alarms:
        subject = history.subjects.describe(alarm.subject)
        key = subject.key
        if subject.kind == "path":
            key = history.subjects.nodes_of_variant(
                int(history.subjects.variants_with(alarm.subject).argmax())
            )
        described.append((alarm.kind, subject.kind, key))
    return described


def least_delay(share: float, how: How, watched: int) -> int:
    """Return after how many sessions a change can be known, if false alarms are as rare as the goal asks.

    The log-likelihood ratio of two rates, before and after, against one must reach ln(watched · run length):
    no test has more than the sessions. Falls need ten misses in any case, which take as many sessions more as
    the subject still comes.
    """
    after = {"stopped": 0.0, "halved": share / 2, "new": NEW_SHARE}[how]
    needed = math.log(watched * _RUN_LENGTH)
    sessions = 2 if how == "new" else math.ceil(_RULES.least_misses / (1 - after))
    while sessions < _SESSIONS and _log_ratio(share, after, sessions) < needed:
        sessions += 1
    return sessions


def _log_ratio(before: float, after: float, sessions: int) -> float:
    both = (before * _CHANGE + after * sessions) / (_CHANGE + sessions)
    return _CHANGE * _divergence(before, both) + sessions * _divergence(after, both)


def _divergence(rate: float, other: float) -> float:
    """Return the Kullback–Leibler divergence of two rates."""
    pairs = ((rate, other), (1 - rate, 1 - other))
    return sum(share * math.log(share / instead) for share, instead in pairs if share > 0)


def _measure_own_order(stream: Stream) -> Figure:
    history = stream.in_order().history()
    checks = detect_alarms(history, DetectorState(), _RULES, from_the_start=True)
    alarms = [alarm for check in checks for alarm in check.alarms]
    return Figure(
        name=f"drift, {stream.name}, whole log in its own order: alarms per {_LIVE:,} sessions",
        unit="",
        ours=[len(alarms) / len(history) * _LIVE],
        detail={
            **_count_kinds(alarms),
            "sessions": len(history),
            "at session": ", ".join(f"{alarm.position + 1:,}" for alarm in alarms),
        },
    )


def _count_kinds(alarms: Sequence[Alarm]) -> dict[str, int]:
    kinds = [alarm.kind for alarm in alarms]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}
