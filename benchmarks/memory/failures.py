"""Failed runs among good ones of the same task, by the typicality of outliers. Spec §4.2 (outliers).

All demonstrations are in one workflow. A failed and a good run of one task make a pair, and the figure is the
share of pairs in which the failed run is the less typical one (AUC, pooled within tasks): the task of a run
changes nothing.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.figure_reports import Figure, Skipped, at_least
from benchmarks.memory.graphs import Sealed, stored_graph
from benchmarks.memory.tasks import DATA, Demonstration, read_demonstrations
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.outliers import find_outliers
from recorder.memory.steps.session_steps import Step

#: Failed and good runs that a task must have.
LEAST_RUNS = 5
_SEEDS, _QUICK_SEEDS = range(5), range(2)
_TASKS = 10
#: Of each kind of failure so many runs of a task, from so many good ones of so many steps at least.
_RUNS_OF_A_KIND, _LEAST_GOOD, _LEAST_STEPS = 5, 20, 3
_DETOUR_STEPS = 2


@dataclass(frozen=True, slots=True)
class Ranked:
    """Typicality of the failed and the good runs of one task."""

    failed: Sequence[float]
    good: Sequence[float]

    def count_right(self) -> float:
        """Return the number of pairs in which the failed run is less typical; equal ones count half."""
        difference = np.subtract.outer(np.array(self.good), np.array(self.failed))
        return float((difference > 0).sum() + (difference == 0).sum() / 2)

    @property
    def pairs(self) -> int:
        """Number of pairs of a failed and a good run."""
        return len(self.failed) * len(self.good)


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure real failures, and planted ones of three kinds.

    Raises:
        Skipped: if the demonstrations are not beside the project.
    """
    if not DATA.is_dir():
        raise Skipped("the demonstrations (../shared/data/miniwob) are absent")
    demonstrations = read_demonstrations(DATA)
    planted = [measure_planted(demonstrations, seed) for seed in (_QUICK_SEEDS if quick else _SEEDS)]
    return [
        _describe_real(demonstrations),
        Figure(
            name="memory, MiniWoB: planted failures before good runs by typicality, AUC within 10 tasks",
            unit="",
            ours=[kinds["all"] for kinds in planted],
            goal=at_least(0.70),
            detail={kind: [kinds[kind] for kinds in planted] for kind in planted[0]},
        ),
    ]


def compute_auc(ranked: Sequence[Ranked]) -> float:
    """Return the share of pairs within tasks in which the failed run is the less typical one."""
    return sum(task.count_right() for task in ranked) / sum(task.pairs for task in ranked)


def _describe_real(demonstrations: Sequence[Demonstration]) -> Figure:
    typical = _measure_typicality([item.session for item in demonstrations])
    runs: defaultdict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for item in demonstrations:
        if item.session.session_id in typical:
            failed, good = runs[item.task]
            is_failed = item.session.outcome == "error"
            (failed if is_failed else good).append(typical[item.session.session_id])
    ranked = {
        task: Ranked(failed, good)
        for task, (failed, good) in runs.items()
        if min(len(failed), len(good)) >= LEAST_RUNS
    }
    return Figure(
        name="memory, MiniWoB: failed before good runs by typicality, AUC within tasks",
        unit="",
        ours=[compute_auc(list(ranked.values()))],
        goal=at_least(0.70),
        detail={task: compute_auc([runs]) for task, runs in ranked.items()}
        | {"failed runs": sum(len(runs.failed) for runs in ranked.values())},
    )


def measure_planted(demonstrations: Sequence[Demonstration], seed: int) -> dict[str, float]:
    """Return the AUC of planted failures, of all and by kind.

    Good runs of ten tasks are changed, five of a kind in each task; the others stay as they are.
    """
    draw = random.Random(seed)
    runs: defaultdict[str, list[Sealed]] = defaultdict(list)
    for item in demonstrations:
        if item.session.outcome == "success" and len(item.session.steps) >= _LEAST_STEPS:
            runs[item.task].append(item.session)
    tasks = draw.sample(sorted(task for task, good in runs.items() if len(good) >= _LEAST_GOOD), _TASKS)
    changed: dict[str, Sealed] = {}
    kind_of: dict[str, str] = {}
    for task in tasks:
        others = [run for other, good in sorted(runs.items()) if other != task for run in good]
        kinds = {
            "skipped step": partial(skip_step, draw),
            "early stop": partial(stop_early, draw),
            "detour": partial(make_detour, draw, others),
        }
        drawn = iter(draw.sample(runs[task], len(kinds) * _RUNS_OF_A_KIND))
        for kind, change in kinds.items():
            for _ in range(_RUNS_OF_A_KIND):
                run = next(drawn)
                changed[run.session_id] = replace(run, steps=_renumber(change(run.steps)))
                kind_of[run.session_id] = kind
    typical = _measure_typicality(
        [changed.get(item.session.session_id, item.session) for item in demonstrations]
    )
    good = {
        task: [typical[run.session_id] for run in runs[task] if run.session_id not in changed]
        for task in tasks
    }
    return {
        kind: compute_auc(
            [
                Ranked(_select_failed(typical, runs[task], kind_of, kind), task_good)
                for task, task_good in good.items()
            ]
        )
        for kind in ("all", *dict.fromkeys(kind_of.values()))
    }


def skip_step(draw: random.Random, steps: Sequence[Step]) -> list[Step]:
    """Return the steps without one between the first and the last."""
    skipped = draw.randrange(1, len(steps) - 1)
    return [*steps[:skipped], *steps[skipped + 1 :]]


def stop_early(draw: random.Random, steps: Sequence[Step]) -> list[Step]:
    """Return a beginning of the steps, two thirds of them at most."""
    return list(steps[: draw.randint(1, max(1, len(steps) * 2 // 3))])


def make_detour(draw: random.Random, others: Sequence[Sealed], steps: Sequence[Step]) -> list[Step]:
    """Return the steps with some of another task's run after one of them."""
    other = draw.choice(others).steps
    begin = draw.randrange(len(other) - _DETOUR_STEPS + 1)
    after = draw.randrange(1, len(steps))
    return [*steps[:after], *other[begin : begin + _DETOUR_STEPS], *steps[after:]]


def _renumber(steps: Sequence[Step]) -> list[Step]:
    """Return the steps in this order, a second apart."""
    return [
        replace(step, pos=pos, t_in_ms=1_000 * pos, t_out_ms=1_000 * pos) for pos, step in enumerate(steps)
    ]


def _select_failed(
    typical: Mapping[str, float], runs: Sequence[Sealed], kind_of: Mapping[str, str], kind: str
) -> list[float]:
    return [
        typical[run.session_id]
        for run in runs
        if run.session_id in kind_of and kind in ("all", kind_of[run.session_id])
    ]


def _measure_typicality(sessions: Sequence[Sealed]) -> dict[str, float]:
    """Return the typicality of each session by id, all in one workflow; those without steps have none."""
    with stored_graph() as graph:
        graph.add(sessions)
        graph.rebuild("anchored")
        columns = graph.columns()
    return list_typicality(columns)


def list_typicality(columns: GraphColumns) -> dict[str, float]:
    """Return the typicality of the sessions of a graph, by id."""
    outliers = find_outliers(columns, columns.current(), rank="typicality")
    ids = (session.decode() for session in columns.session_id[outliers.rows].tolist())
    return dict(zip(ids, outliers.typicality.tolist(), strict=True))
