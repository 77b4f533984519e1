"""Recorded tasks, all in one workflow: agreement of the graph's paths with the tasks. Spec §2.6.

Every demonstration of the shared data goes through the importer's reader and the service's own steps into one
graph; the task, which is the name of the file's folder, is only used to judge. How well paths separate tasks
apart hangs on the order in which sessions were sealed, so several orders are shown: that of the files, and
random ones.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from benchmarks.figure_reports import Figure, Skipped, at_least
from benchmarks.memory import pm4py_clustering
from benchmarks.memory.graphs import BATCH, Sealed, paths_by_session, stored_graph
from benchmarks.memory.path_fit import Fit, measure_fit
from recorder.importers.miniwob.elements import (
    make_event_target,
    make_miniwob_snapshot,
    take_miniwob_target_elements,
)
from recorder.importers.miniwob.format import (
    DemonstrationState,
    convert_action,
    join_demonstration_action_halves,
    read_demonstration_file,
)
from recorder.memory.graph.rebuild import RebuildKind
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.similarity import index_similarity
from recorder.memory.steps.screens import FrameScreen, describe_screen, locate_elements_on_screen
from recorder.memory.steps.session_steps import Step, session_steps

DATA = Path(__file__).parents[3] / "shared" / "data" / "miniwob"
_ORDERS, _QUICK_ORDERS, _PM4PY_RUNS = 9, 3, 3
_SESSION_GAP_MS = 60_000
_BESIDE = "memory, MiniWoB: adjusted Rand index less that of PM4Py's clusters"
_KINDS: tuple[RebuildKind, ...] = ("anchored", "fresh")
#: Tasks that show the same pages and differ in the wording of the request alone.
SAME_PAGES = {
    "email-inbox-nl-turk": "email-inbox",
    "social-media-some": "social-media",
    "click-checkboxes-transfer": "click-checkboxes-large",
}
_STATES = {
    "sealed": f"sealed in batches of {BATCH}",
    "anchored": "after an anchored rebuild",
    "fresh": "after a fresh rebuild",
}


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A recorded session and the task it was recorded for."""

    session: Sealed
    task: str


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure the agreement of paths with tasks, beside PM4Py's clusters; the quality of similar sessions.

    Raises:
        Skipped: if the demonstrations are not beside the project.
    """
    if not DATA.is_dir():
        raise Skipped("the demonstrations (../shared/data/miniwob) are absent")
    demonstrations = read_demonstrations(DATA)
    tasks = {demonstration.session.session_id: demonstration.task for demonstration in demonstrations}
    runs: dict[str, list[dict[str, str]]] = {"sealed": [], "anchored": [], "fresh": []}
    fits: dict[str, list[Fit]] = {"sealed": [], "anchored": [], "fresh": []}
    for order in range(_QUICK_ORDERS if quick else _ORDERS):
        with stored_graph() as graph:
            graph.add([item.session for item in in_order(demonstrations, order)])
            runs["sealed"].append(paths_by_session(graph.columns()))
            fits["sealed"].append(measure_fit(graph.columns()))
            merged = {session_id: SAME_PAGES.get(task, task) for session_id, task in tasks.items()}
            merged_ranks, strict = (measure_ranks(graph.columns(), labels) for labels in (merged, tasks))
            for kind in _KINDS:
                graph.rebuild(kind)
                runs[kind].append(paths_by_session(graph.columns()))
                fits[kind].append(measure_fit(graph.columns()))
    figures = [_agreement(name, runs[name], tasks) for name in runs]
    figures += [_show_fit(name, fits[name]) for name in fits]
    try:
        figures.append(_beside_pm4py(demonstrations, tasks, runs["sealed"]))
    except Skipped as reason:
        figures.append(Figure(name=_BESIDE, unit="", ours=[], detail={"skipped": str(reason)}))
    return [
        *figures,
        Figure(
            name="memory, MiniWoB: sessions of the same task, mean average precision",
            unit="",
            ours=[merged_ranks.mean_average_precision],
            goal=at_least(0.90),
            detail={"each task for itself": strict.mean_average_precision, "sessions": len(tasks)},
        ),
        Figure(
            name="memory, MiniWoB: sessions of the same task among the first ten",
            unit="",
            ours=[merged_ranks.precision_at_10],
            goal=at_least(0.92),
            detail={"each task for itself": strict.precision_at_10},
        ),
    ]


def read_demonstrations(folder: Path) -> list[Demonstration]:
    """Return all demonstrations below a folder of tasks, in the order of their names."""
    files = sorted(folder.glob("*/*.json.gz"))
    with ProcessPoolExecutor() as processes:
        runs = list(processes.map(read_run, files, chunksize=16))
    return [
        Demonstration(replace(run, session_id=f"ses_{index:06d}"), file.parent.name)
        for index, (file, run) in enumerate(zip(files, runs, strict=True))
    ]


def read_run(file: Path) -> Sealed:
    """Return a demonstration as a session, read as the importer reads it but without pictures."""
    demonstration = read_demonstration_file(file)[0]
    steps = _list_steps(demonstration.states)
    return Sealed(
        file.name,
        steps,
        outcome="success" if demonstration.raw_reward > 0 else "error",
        duration_ms=steps[-1].t_out_ms if steps else 0,
    )


def steps_of(file: Path) -> Sequence[Step]:
    """Return the steps of a demonstration."""
    return read_run(file).steps


def _list_steps(states: list[DemonstrationState]) -> list[Step]:
    targets = [take_miniwob_target_elements(state.dom) for state in states]
    frames = []
    for index, state in enumerate(states):
        screen = describe_screen(dom=make_miniwob_snapshot(state.dom), url=None, title=None, cells=None)
        locations = locate_elements_on_screen(screen.state_tokens)
        frames.append(FrameScreen(round(state.time), f"frm_{index:06d}", screen, locations))
    seen = join_demonstration_action_halves(states)
    events: list[dict[str, Any]] = []
    for item, members in zip(seen, convert_action(seen), strict=True):
        frame = frames[item.index]
        event = {"id": f"evt_{item.index:06d}", "t_ms": frame.t_ms, "frame_id": frame.frame_id, **members}
        if targets[item.index]:
            event["target"] = make_event_target(targets[item.index])
        events.append(event)
    return session_steps(events, frames)


def in_order(demonstrations: Sequence[Demonstration], order: int) -> list[Demonstration]:
    """Return the demonstrations in the order of files (0) or a random one; each starts a minute later."""
    ordered = list(demonstrations)
    if order:
        random.Random(order).shuffle(ordered)
    return [
        replace(demonstration, session=replace(demonstration.session, started_ms=index * _SESSION_GAP_MS))
        for index, demonstration in enumerate(ordered)
    ]


@dataclass(frozen=True, slots=True)
class SimilarRanks:
    """Ranks of sessions of the same task among the similar ones, means over all sessions, 0 to 1."""

    mean_average_precision: float
    #: Sessions of the same task among the first ten, or among as many as the task has others.
    precision_at_10: float


def measure_ranks(columns: GraphColumns, tasks: Mapping[str, str]) -> SimilarRanks:
    """Measure the ranks of sessions of the same task in the list of similar ones of each session.

    A task of one session asks nothing; sessions that share nothing with the one that asks count as not found.
    """
    index = index_similarity(columns)
    labels = np.array([tasks[session.decode()] for session in columns.session_id.tolist()])
    sizes = Counter(labels.tolist())
    precisions, firsts = [], []
    for row, label in enumerate(labels.tolist()):
        if sizes[label] == 1:
            continue
        ranked = np.array([item.row for item in index.nearest(row, len(labels))], dtype=np.int64)
        places = np.flatnonzero(labels[ranked] == label)
        precisions.append(float(((np.arange(len(places)) + 1) / (places + 1)).sum()) / (sizes[label] - 1))
        firsts.append(float((places < 10).sum()) / min(10, sizes[label] - 1))
    return SimilarRanks(float(np.mean(precisions)), float(np.mean(firsts)))


def _agreement(state: str, runs: Sequence[Mapping[str, str]], tasks: Mapping[str, str]) -> Figure:
    """Return the agreement of the paths of each order with the tasks, those of the same pages as one."""
    strict = list(tasks.values())
    labels = [SAME_PAGES.get(task, task) for task in strict]
    paths = [[run[session_id] for session_id in tasks] for run in runs]
    return Figure(
        name=f"memory, MiniWoB: adjusted Rand index of paths and tasks, {_STATES[state]}",
        unit="",
        ours=[float(adjusted_rand_score(labels, path)) for path in paths],
        goal=at_least(0.75),
        detail={
            "in the order of the files": float(adjusted_rand_score(labels, paths[0])),
            "each task for itself": [float(adjusted_rand_score(strict, path)) for path in paths],
            "NMI": [float(normalized_mutual_info_score(labels, path)) for path in paths],
            "paths": [len(set(path)) for path in paths],
            "tasks": len(set(labels)),
            "sessions": len(tasks),
        },
    )


def _show_fit(state: str, fits: Sequence[Fit]) -> Figure:
    """Return the sessions within one edit of the shown way of their path."""
    return Figure(
        name=f"memory, MiniWoB: sessions within one edit of the shown way of their path, {_STATES[state]}",
        unit="",
        ours=[fit.within_one_edit for fit in fits],
        goal=at_least(0.85),
        detail={"exactly on it": [fit.exact for fit in fits]},
    )


def _beside_pm4py(
    demonstrations: Sequence[Demonstration], tasks: Mapping[str, str], runs: Sequence[Mapping[str, str]]
) -> Figure:
    """Return how much better our paths agree than PM4Py's clusters, which get the number of tasks.

    Sessions without any step are left out on both sides: a log cannot hold them.
    """
    cases = {
        demonstration.session.session_id: [
            f"{step.action}|{step.target}" for step in demonstration.session.steps
        ]
        for demonstration in demonstrations
        if demonstration.session.steps
    }
    labels = [tasks[case] for case in cases]
    with pm4py_clustering.find_pm4py() as python:
        clusters = pm4py_clustering.cluster(python, cases, clusters=len(set(labels)), runs=_PM4PY_RUNS)
    theirs = [float(adjusted_rand_score(labels, [run[case] for case in cases])) for run in clusters]
    ours = [float(adjusted_rand_score(labels, [run[case] for case in cases])) for run in runs]
    return Figure(
        name=_BESIDE,
        unit="",
        # Its best starting point against every order of ours, as sealed.
        ours=[run - max(theirs) for run in ours],
        goal=at_least(0.10),
        detail={
            "ours": ours,
            f"PM4Py {pm4py_clustering.VERSION} cluster_log, KMeans, true k": theirs,
            "k": len(set(labels)),
            "its activities": "action|target",
            "sessions with steps": len(cases),
        },
    )
