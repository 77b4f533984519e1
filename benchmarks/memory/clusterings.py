"""Clusterings of variants, compared on recorded and planted sessions as in decision 0038. Contract §4.

Every method groups the same variants of the same rebuilt nodes. The sets are those of `task_sets`: all
recordings, 2 to 60 a task, 5 to 600 varied ones, ten tasks cut to 3 to 12; and planted workflows.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.figure_reports import Figure, Skipped
from benchmarks.memory import library_peers
from benchmarks.memory.clustering_methods import METHODS, Method, Variants
from benchmarks.memory.graphs import Sealed, stored_graph
from benchmarks.memory.planted import plant
from benchmarks.memory.planted_quality import sealed_of
from benchmarks.memory.task_sets import draw_rare, draw_skewed, draw_varied, group_by_task
from benchmarks.memory.tasks import DATA, Demonstration, in_order, read_demonstrations
from recorder.memory.graph.arrays import Ints
from recorder.memory.graph.shown_way import MAX_EDITS, ShownWayVariants, choose_shown_way

_SEEDS, _QUICK_SEEDS = 5, 2
_PLANTED, _QUICK_PLANTED = 3_000, 1_000
#: Tasks of at most so many sessions are rare.
_RARE_SESSIONS = 12
#: Sessions sealed at once; only the rebuild after them is judged.
_BATCH = 500

ByTask = Mapping[str, Sequence[Demonstration]]


@dataclass(frozen=True, slots=True)
class Judged:
    """Result of one method on one set."""

    ari: float
    #: Mean number of paths of a task: a rare one where the set has such, else any.
    paths_per_task: float
    #: Share of the sessions of those tasks on a path that most sessions of the same task share, 0 to 1.
    purity: float
    #: Share of sessions within an edit of the shown way of their path, 0 to 1.
    within_one_edit: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Sessions of one set as variants of rebuilt nodes, and the task of each."""

    variants: Variants
    #: By session: its row in `variants`, and its task.
    rows: Ints
    tasks: list[str]


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure each method on each set, and the product's own code beside that of the libraries.

    Raises:
        Skipped: if the demonstrations are not beside the project.
    """
    if not DATA.is_dir():
        raise Skipped("the demonstrations (../shared/data/miniwob) are absent")
    by_task = group_by_task(read_demonstrations(DATA))
    seeds = range(1, 1 + (_QUICK_SEEDS if quick else _SEEDS))
    figures = []
    for name, draw in _DRAWS.items():
        sets = [recorded_set(in_order(draw(by_task, seed), seed)) for seed in seeds]
        figures += compare(f"MiniWoB, {name}", sets, seeds)
    sets = [planted_set(_QUICK_PLANTED if quick else _PLANTED, seed) for seed in seeds]
    figures += compare("planted", sets, seeds)
    return [*figures, *library_peers.measure(quick=quick)]


def _draw_all(by_task: ByTask, seed: int) -> list[Demonstration]:
    return [item for items in by_task.values() for item in items]


_DRAWS: dict[str, Callable[[ByTask, int], list[Demonstration]]] = {
    "all": _draw_all,
    "2 to 60 a task": draw_skewed,
    "ten tasks cut to 3 to 12": draw_rare,
    "5 to 600 a task, varied": draw_varied,
}


def compare(name: str, sets: Sequence[TaskSet], seeds: Sequence[int]) -> list[Figure]:
    """Return a figure for each method; a run is a set, drawn and ordered by its seed."""
    figures = []
    for method, group in METHODS.items():
        results = [judge(group, some) for some in sets]
        figures.append(
            Figure(
                name=f"clusterings, {name}: adjusted Rand index, {method}",
                unit="",
                ours=[result.ari for result in results],
                detail={
                    "seeds of set and order": " ".join(map(str, seeds)),
                    "sessions": [len(some.rows) for some in sets],
                    "variants": [len(some.variants.sequences) for some in sets],
                    "paths a task": [result.paths_per_task for result in results],
                    "purity": [result.purity for result in results],
                    "within an edit": [result.within_one_edit for result in results],
                    "seconds": [result.seconds for result in results],
                },
            )
        )
    return figures


def recorded_set(demonstrations: Sequence[Demonstration]) -> TaskSet:
    """Return recordings in this order as a set."""
    tasks = {item.session.session_id: item.task for item in demonstrations}
    return _rebuilt([item.session for item in demonstrations], tasks)


def planted_set(sessions: int, seed: int) -> TaskSet:
    """Return a planted workflow as a set; each outlier is a task of its own."""
    planted = plant(sessions, seed=seed).sessions
    tasks = {item.session_id: item.session_id if item.is_outlier else f"path {item.path}" for item in planted}
    return _rebuilt([sealed_of(item) for item in planted], tasks)


def _rebuilt(sessions: Sequence[Sealed], tasks: Mapping[str, str]) -> TaskSet:
    """Return sessions as variants of the nodes of a fresh rebuild; those without steps are left out."""
    with stored_graph() as graph:
        graph.add(sessions, batch=_BATCH)
        graph.rebuild("fresh")
        columns, nodes = graph.columns(), graph.recorded().nodes
    taken: dict[tuple[int, ...], list[str]] = {}
    for row in np.flatnonzero(columns.current()).tolist():
        number = columns.variant[row]
        bounds = columns.variant_start[number], columns.variant_start[number + 1]
        sequence = tuple(columns.variant_nodes[bounds[0] : bounds[1]].tolist())
        if sequence:
            taken.setdefault(sequence, []).append(tasks[columns.session_id[row].decode()])
    sequences = sorted(taken, key=lambda sequence: (-len(taken[sequence]), sequence))
    counts = np.array([len(taken[sequence]) for sequence in sequences], dtype=np.int64)
    labels = [task for sequence in sequences for task in taken[sequence]]
    return TaskSet(Variants.of(sequences, counts, nodes), np.repeat(np.arange(len(counts)), counts), labels)


def judge(group: Method, some: TaskSet) -> Judged:
    """Group the variants of a set, and compare the groups with the tasks of its sessions."""
    began = time.perf_counter()
    groups = group(some.variants)
    seconds = time.perf_counter() - began
    paths = groups[some.rows].tolist()
    sizes = Counter(some.tasks)
    # A planted outlier, alone in its task, has nothing to share a path with.
    rare = {task for task, size in sizes.items() if 1 < size <= _RARE_SESSIONS}
    rare = rare or {task for task, size in sizes.items() if size > 1}
    tasks_of: defaultdict[int, Counter[str]] = defaultdict(Counter)
    paths_of: defaultdict[str, set[int]] = defaultdict(set)
    for task, path in zip(some.tasks, paths, strict=True):
        tasks_of[path][task] += 1
        paths_of[task].add(path)
    pure = [
        tasks_of[path].most_common(1)[0][0] == task
        for task, path in zip(some.tasks, paths, strict=True)
        if task in rare
    ]
    return Judged(
        ari=float(adjusted_rand_score(some.tasks, paths)),
        paths_per_task=float(np.mean([len(paths_of[task]) for task in rare])),
        purity=float(np.mean(pure)),
        within_one_edit=_share_near(some.variants, groups),
        seconds=seconds,
    )


def _share_near(variants: Variants, groups: Ints) -> float:
    near = 0
    for number in np.unique(groups):
        rows = np.flatnonzero(groups == number)
        ways = ShownWayVariants.of(
            [variants.sequences[row] for row in rows], variants.sessions[rows].tolist()
        )
        near += int(ways.sessions[choose_shown_way(ways).edits <= MAX_EDITS].sum())
    return near / int(variants.sessions.sum())
