"""Streams of sessions for the figures of drift: a real log, people's demonstrations, the planted workflow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import Skipped
from benchmarks.memory.planted import plant
from benchmarks.memory.tasks import steps_of
from recorder.clock import to_ms
from recorder.interchange.xes_reader import RESOURCE, read_traces
from recorder.memory.drift.history import History, unique_visits
from recorder.memory.graph.inverted_index import Ints

_DATA = Path(__file__).parents[2] / "shared" / "data"
_LOG = _DATA / "xes" / "bpic2012.xes.gz"
_TASKS = ("click-tab-2", "email-inbox", "enter-text-dynamic", "login-user", "social-media")
_MINUTE_MS, _ACTORS = 60_000, 5


@dataclass(frozen=True)
class Stream:
    """Sessions of a workflow: the variant of each, and the nodes of each variant."""

    name: str
    variant: Ints
    variants: Sequence[tuple[int, ...]]
    #: When each began, and a number for who acted; None where nobody knows.
    started_ms: Ints | None = None
    actor: Ints | None = None

    @cached_property
    def visits(self) -> tuple[Ints, Ints]:
        """Each node of each variant once."""
        owners = np.repeat(np.arange(len(self.variants)), [len(nodes) for nodes in self.variants])
        return unique_visits(owners, np.array([node for nodes in self.variants for node in nodes]))

    def shuffled(self, sessions: int, seed: int) -> History:
        """So many of the sessions in another order, one a minute, by five actors.

        Where there are fewer they are drawn with replacement.
        """
        draw = np.random.default_rng(seed)
        taken = draw.choice(self.variant, sessions, replace=sessions > len(self.variant))
        return self._history(taken, np.arange(sessions) * _MINUTE_MS, draw.integers(_ACTORS, size=sessions))

    def in_order(self) -> History:
        """All sessions in the order in which they began."""
        assert self.started_ms is not None and self.actor is not None, "nobody knows when they began"
        order = np.argsort(self.started_ms, kind="stable")
        return self._history(self.variant[order], self.started_ms[order], self.actor[order])

    def with_node(self, history: History, chosen: npt.NDArray[np.bool_]) -> tuple[History, int]:
        """Return the same sessions, the chosen ones with one more node, which no other has; and that node."""
        node = int(self.visits[1].max()) + 1
        twins = np.arange(len(self.variants)) + len(self.variants)
        owners = np.concatenate([self.visits[0], self.visits[0] + len(self.variants), twins])
        nodes = np.concatenate([self.visits[1], self.visits[1], np.full(len(twins), node)])
        variant = history.variant + chosen * len(self.variants)
        return replace(history, variant=variant, visit_variant=owners, visit_node=nodes), node

    def _history(self, variant: Ints, started_ms: Ints, actor: Ints) -> History:
        return History(np.arange(len(variant)), variant, variant, started_ms, actor, *self.visits)


def read_log() -> Stream:
    """Return the cases of BPIC 2012.

    Raises:
        Skipped: if the log is not beside the project.
    """
    if not _LOG.is_file():
        raise Skipped("the log (../shared/data/xes/bpic2012.xes.gz) is absent")
    cases = [trace.events for trace in read_traces(_LOG)]
    firsts = [events[0] for events in cases]
    actors: dict[Any, int] = {}
    return _stream(
        "BPIC 2012",
        [[event.activity for event in events] for events in cases],
        started_ms=np.array([to_ms(first.time) if first.time else 0 for first in firsts]),
        actor=np.array([actors.setdefault(first.attributes.get(RESOURCE), len(actors)) for first in firsts]),
    )


def read_tasks() -> Stream:
    """Return the demonstrations of five tasks.

    Raises:
        Skipped: if they are not beside the project.
    """
    root = _DATA / "miniwob"
    if not root.is_dir():
        raise Skipped("the demonstrations (../shared/data/miniwob) are absent")
    files = [path for task in _TASKS for path in sorted((root / task).glob("*.json.gz"))]
    return _stream("MiniWoB, 5 tasks", [[step.micro_key for step in steps_of(path)] for path in files])


def plant_sessions() -> Stream:
    """Return the sessions of the planted workflow; all appearances of a step are one node."""
    return _stream("planted", [[step.label for step in session.steps] for session in plant().sessions])


def _stream(name: str, sequences: Sequence[Sequence[object]], **more: Ints) -> Stream:
    """Return a stream of sessions that are sequences of anything; equal neighbours count once."""
    nodes: dict[object, int] = {}
    variants: dict[tuple[int, ...], int] = {}
    taken = []
    for sequence in sequences:
        route = tuple(nodes.setdefault(item, len(nodes)) for item, _ in groupby(sequence))
        taken.append(variants.setdefault(route, len(variants)))
    return Stream(name, np.array(taken), list(variants), **more)
