"""Recorded tasks in unequal numbers: skewed, rare, and varied with noise. Contract §4.

The demonstrations of `tasks` are drawn again by a seed: from 2 to 60 of a task, with ten tasks cut to 3 to
12, or from 5 to 600 of a task. In the last set each session is a recording that is varied by steps of other
tasks, repeated steps and other times; no two sessions are copies.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.figure_reports import Figure, Skipped, at_least, at_most
from benchmarks.memory.graphs import Sealed, paths_by_session, stored_graph
from benchmarks.memory.tasks import DATA, SAME_PAGES, Demonstration, in_order, read_demonstrations
from recorder.memory.steps.session_steps import Step

_SEEDS, _QUICK_SEEDS = 5, 1
_DRAWS, _QUICK_DRAWS = 20, 2
_RARE_TASKS = 10


@dataclass(frozen=True, slots=True)
class RareTasks:
    """Result for the rare tasks of one draw."""

    #: Mean number of paths that the sessions of a task are on.
    paths_per_task: float
    #: Share of their sessions on a path that most sessions of the same task share, 0 to 1.
    purity: float


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the agreement of paths with tasks of unequal sizes, and paths and purity of rare tasks.

    Raises:
        Skipped: if the demonstrations are not beside the project.
    """
    if not DATA.is_dir():
        raise Skipped("the demonstrations (../shared/data/miniwob) are absent")
    by_task = group_by_task(read_demonstrations(DATA))
    seeds = range(1, 1 + (_QUICK_SEEDS if quick else _SEEDS))
    figures = []
    for name, draw in (("2 to 60 a task", draw_skewed), ("5 to 600 a task, varied", draw_varied)):
        scores = [measure_agreement(draw(by_task, seed), seed) for seed in seeds]
        for state, index in (("as sealed", 0), ("rebuilt", 1)):
            figures.append(
                Figure(
                    name=f"memory, MiniWoB, {name}: adjusted Rand index of paths and tasks, {state}",
                    unit="",
                    ours=[score[index] for score in scores],
                    goal=at_least(0.70),
                    detail={"seeds": list(seeds)},
                )
            )
    draws = range(1, 1 + (_QUICK_DRAWS if quick else _DRAWS))
    rare = [measure_rare_tasks(by_task, seed) for seed in draws]
    return [
        *figures,
        Figure(
            name="memory, MiniWoB, ten tasks cut to 3 to 12 recordings: paths a task, rebuilt",
            unit="",
            ours=[result.paths_per_task for result in rare],
            goal=at_most(1.5),
            detail={"draws": list(draws)},
        ),
        Figure(
            name="memory, MiniWoB, ten tasks cut to 3 to 12 recordings: purity, rebuilt",
            unit="",
            ours=[result.purity for result in rare],
            goal=at_least(0.90),
        ),
    ]


def group_by_task(demonstrations: Sequence[Demonstration]) -> dict[str, list[Demonstration]]:
    """Return the demonstrations by task; tasks that show the same pages count as one."""
    by_task: defaultdict[str, list[Demonstration]] = defaultdict(list)
    for item in demonstrations:
        task = SAME_PAGES.get(item.task, item.task)
        by_task[task].append(Demonstration(item.session, task))
    return dict(sorted(by_task.items()))


def draw_skewed(by_task: Mapping[str, Sequence[Demonstration]], seed: int) -> list[Demonstration]:
    """Draw from 2 to 60 recordings of each task, in equal ratios; at most those that were recorded."""
    chance = random.Random(seed)
    sizes = spread_sizes(len(by_task), 2, 60, chance)
    drawn = (
        chance.sample(items, min(size, len(items)))
        for items, size in zip(by_task.values(), sizes, strict=True)
    )
    return [item for items in drawn for item in items]


def draw_varied(by_task: Mapping[str, Sequence[Demonstration]], seed: int) -> list[Demonstration]:
    """Draw from 5 to 600 sessions of each task, each a variation of a recording."""
    chance = random.Random(seed)
    sizes = spread_sizes(len(by_task), 5, 600, chance)
    noise = [step for items in by_task.values() for item in items for step in item.session.steps]
    varied: list[Demonstration] = []
    for (task, items), size in zip(by_task.items(), sizes, strict=True):
        for _ in range(size):
            session = vary(chance.choice(items).session, noise, chance)
            number = len(varied)
            varied.append(Demonstration(replace(session, session_id=f"ses_{number:06d}"), task))
    return varied


def draw_rare(by_task: Mapping[str, Sequence[Demonstration]], seed: int) -> list[Demonstration]:
    """Cut ten tasks to 3 to 12 recordings, and take all recordings of the others."""
    chance = random.Random(seed)
    rare = choose_rare(by_task, chance)
    return [
        item
        for task, items in by_task.items()
        for item in (chance.sample(items, min(len(items), chance.randint(3, 12))) if task in rare else items)
    ]


def choose_rare(by_task: Mapping[str, Sequence[Demonstration]], chance: random.Random) -> set[str]:
    """Return the ten tasks that are cut."""
    return set(chance.sample(sorted(by_task), _RARE_TASKS))


def vary(session: Sealed, noise: Sequence[Step], chance: random.Random) -> Sealed:
    """Return a session with other times, and with a noise step, a repetition or neither for each step."""
    steps: list[Step] = []
    for step in session.steps:
        if chance.random() < 0.05:
            steps.append(chance.choice(noise))
        steps.append(step)
        if len(steps) > 1 and chance.random() < 0.05:
            steps.append(steps[-2])
    t_ms, timed = 0, []
    for pos, step in enumerate(steps):
        t_ms += chance.randrange(200, 4_000)
        timed.append(replace(step, pos=pos, t_in_ms=t_ms, t_out_ms=t_ms))
    return replace(session, steps=timed, duration_ms=t_ms)


def spread_sizes(count: int, least: int, most: int, chance: random.Random) -> list[int]:
    """Return sizes from the least to the most, each the same ratio larger than the one before, shuffled."""
    ratio = math.log(most / least) / (count - 1)
    sizes = [round(least * math.exp(ratio * number)) for number in range(count)]
    chance.shuffle(sizes)
    return sizes


def measure_agreement(demonstrations: Sequence[Demonstration], seed: int) -> tuple[float, float]:
    """Return the adjusted Rand index of paths and tasks as sealed in a random order, and rebuilt."""
    tasks = {item.session.session_id: item.task for item in demonstrations}
    with stored_graph() as graph:
        graph.add([item.session for item in in_order(demonstrations, seed)])
        sealed = paths_by_session(graph.columns())
        graph.rebuild("anchored")
        rebuilt = paths_by_session(graph.columns())
    labels = list(tasks.values())
    scores = [
        float(adjusted_rand_score(labels, [paths[session_id] for session_id in tasks]))
        for paths in (sealed, rebuilt)
    ]
    return scores[0], scores[1]


def measure_rare_tasks(by_task: Mapping[str, Sequence[Demonstration]], seed: int) -> RareTasks:
    """Cut ten tasks to 3 to 12 recordings, and judge their paths after a rebuild."""
    drawn = draw_rare(by_task, seed)
    rare = choose_rare(by_task, random.Random(seed))
    with stored_graph() as graph:
        graph.add([item.session for item in in_order(drawn, seed)])
        graph.rebuild("anchored")
        paths = paths_by_session(graph.columns())
    tasks_of: defaultdict[str, Counter[str]] = defaultdict(Counter)
    paths_of: defaultdict[str, set[str]] = defaultdict(set)
    for item in drawn:
        path = paths[item.session.session_id]
        tasks_of[path][item.task] += 1
        paths_of[item.task].add(path)
    rare_sessions = [item for item in drawn if item.task in rare]
    pure = [
        tasks_of[paths[item.session.session_id]].most_common(1)[0][0] == item.task for item in rare_sessions
    ]
    return RareTasks(float(np.mean([len(paths_of[task]) for task in rare])), float(np.mean(pure)))
