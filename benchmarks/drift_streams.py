"""Streams of sessions for the figures of drift: real logs, people's demonstrations, the planted workflow."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figure_reports import Skipped
from benchmarks.memory.planted import plant
from benchmarks.memory.tasks import steps_of
from recorder.clock import to_ms
from recorder.interchange.xes_reader import RESOURCE, read_xes_traces
from recorder.memory.drift.drift_subjects import list_drift_subjects
from recorder.memory.drift.history import History
from recorder.memory.graph.arrays import Ints

_DATA = Path(__file__).parents[2] / "shared" / "data"
_TASKS = ("click-tab-2", "email-inbox", "enter-text-dynamic", "login-user", "social-media")
_MINUTE_MS, _ACTORS = 60_000, 5

Route = tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """Sessions in order: the nodes of each, when it began, and a number for who acted."""

    routes: Sequence[Route]
    started_ms: Ints
    actor: Ints

    def history(self) -> History:
        """Return the sessions as drift detection reads them; a path is one exact sequence of nodes."""
        numbers: dict[Route, int] = {}
        variant = np.array([numbers.setdefault(route, len(numbers)) for route in self.routes])
        starts, nodes = _flatten_variants(list(numbers))
        subjects = list_drift_subjects(np.arange(len(numbers)), starts, nodes)
        return History(np.arange(len(variant)) + 1, variant, self.started_ms, self.actor, subjects)


@dataclass(frozen=True)
class Stream:
    """Sessions of a workflow, to draw samples from."""

    name: str
    routes: Sequence[Route]
    #: When each began and who acted, in the order of their starts; None where samples are drawn at random.
    started_ms: Ints | None = None
    actor: Ints | None = None

    def sample(self, sessions: int, seed: int) -> Sample:
        """Return so many sessions.

        A stream with an order of its own gives sessions that follow each other, the first drawn by the seed.
        Of others they are drawn with replacement where there are too few, one a minute, by five actors.
        """
        draw = np.random.default_rng(seed)
        if self.started_ms is not None and self.actor is not None:
            first = int(draw.integers(len(self.routes) - sessions + 1))
            taken = np.arange(first, first + sessions)
            return Sample([self.routes[i] for i in taken.tolist()], self.started_ms[taken], self.actor[taken])
        taken = draw.choice(len(self.routes), sessions, replace=sessions > len(self.routes)).tolist()
        times, actors = np.arange(sessions) * _MINUTE_MS, draw.integers(_ACTORS, size=sessions)
        return Sample([self.routes[i] for i in taken], times, actors)

    def in_order(self) -> Sample:
        """Return all sessions in the order in which they began."""
        assert self.started_ms is not None and self.actor is not None, "the stream has no order"
        return Sample(self.routes, self.started_ms, self.actor)


@cache
def read_log(name: str, title: str) -> Stream:
    """Return the cases of a log in the order in which they began.

    Raises:
        Skipped: if the log is not beside the project.
    """
    path = _DATA / "xes" / name
    if not path.is_file():
        raise Skipped(f"the log (../shared/data/xes/{name}) is absent")
    cases = [trace.events for trace in read_xes_traces(path) if trace.events]
    started = np.array([to_ms(events[0].time) if events[0].time else 0 for events in cases])
    actors: dict[Any, int] = {}
    actor = np.array([actors.setdefault(e[0].attributes.get(RESOURCE), len(actors)) for e in cases])
    order = np.argsort(started, kind="stable")
    routes = _number_routes([[event.activity for event in events] for events in cases])
    return Stream(title, [routes[i] for i in order.tolist()], started[order], actor[order])


def shuffle(stream: Stream) -> Stream:
    """Return the sessions of a stream without their order."""
    return Stream(f"{stream.name}, shuffled", stream.routes)


def read_tasks() -> Stream:
    """Return the demonstrations of five tasks.

    Raises:
        Skipped: if they are not beside the project.
    """
    root = _DATA / "miniwob"
    if not root.is_dir():
        raise Skipped("the demonstrations (../shared/data/miniwob) are absent")
    files = [path for task in _TASKS for path in sorted((root / task).glob("*.json.gz"))]
    return Stream(
        "MiniWoB, 5 tasks", _number_routes([[step.micro_key for step in steps_of(path)] for path in files])
    )


def plant_sessions() -> Stream:
    """Return the sessions of the planted workflow, each variation of a step being the same node."""
    sessions = plant().sessions
    return Stream("planted", _number_routes([[step.label for step in session.steps] for session in sessions]))


def _number_routes(sequences: Sequence[Sequence[object]]) -> list[Route]:
    """Return sequences of anything as routes of numbers; equal neighbours count once."""
    nodes: dict[object, int] = {}
    return [
        tuple(nodes.setdefault(item, len(nodes)) for item, _ in groupby(sequence)) for sequence in sequences
    ]


def _flatten_variants(variants: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return offsets and nodes of variants given as sequences."""
    starts = np.cumsum([0, *map(len, variants)])
    return starts, np.array([node for nodes in variants for node in nodes], dtype=np.int64)
