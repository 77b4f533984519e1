"""Memory and time of a sealing process while one workspace floods the graphs of its workflows.

A fresh process seals a session, so that it holds what a sealing run holds. Then the indexer of such a run
takes floods in, each into a workflow of its own: sessions of 10,000 steps that are all new states, ways over
known nodes that are all new, names that are all new. At last a batch has a session of each workflow, and a
new indexer loads each graph again.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from subprocess import PIPE, run

import orjson

from benchmarks.figure_reports import Figure, at_most
from benchmarks.seal_memory import read_peak_mb, record_session, seal_all
from benchmarks.seeds import new_settings
from recorder.ids import new_id
from recorder.memory.steps.action_tokens import hash_texts
from recorder.memory.steps.session_steps import Step
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.session import SessionRow
from recorder.models.workflow import WorkflowRow
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.tenant import GraphScope, Tenant

_STEPS, _SHORT_STEPS = 10_000, 20
#: Steps of each flood.
_FLOOD, _QUICK_FLOOD = 200_000, 40_000
#: Events of a sealing batch, and its sessions.
_BATCH_STEPS, _BATCH_SESSIONS = 20_000, 100
_SCREENS, _NODES, _FEATURES, _ALL_FEATURES = 2_000, 2_000, 30, 256
_NOW = datetime(2026, 1, 5, 8, tzinfo=UTC)
_GOAL_MB, _GOAL_S = 800, 10

Sessions = Iterator[list[Step]]


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the peak memory of the process, and the longest time of a batch by flood."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        record_session(new_settings(Path(folder)), 20_000)
        command = [sys.executable, "-m", "benchmarks.graph_flood", folder]
        command.append(str(_QUICK_FLOOD if quick else _FLOOD))
        answer = run(command, stdout=PIPE, check=True, cwd=Path(__file__).parents[1])
    floods: dict[str, dict[str, float]] = orjson.loads(answer.stdout.splitlines()[-1])
    return [
        Figure(
            name="peak memory of a sealing process, graphs flooded",
            unit="MB",
            ours=[max(flood["peak_mb"] for flood in floods.values())],
            goal=at_most(_GOAL_MB),
            detail={name: flood["peak_mb"] for name, flood in floods.items()},
        ),
        Figure(
            name="longest batch of a flood in its graph",
            unit="CPU s",
            ours=[max(flood["longest_cpu_s"] for flood in floods.values())],
            goal=at_most(_GOAL_S),
            detail={name: flood["longest_cpu_s"] for name, flood in floods.items()},
        ),
    ]


def _make_step(index: int, act: str, features: tuple[int, ...], names: tuple[str, ...] = ()) -> Step:
    screen = str(hash(features))
    return Step(
        pos=index,
        micro_key=hash_texts(screen, "click", act),
        screen_key=screen,
        action="click",
        target=act,
        label="Click button",
        features=features,
        t_in_ms=index,
        t_out_ms=index,
        frame_id=None,
        event_id="evt_1",
        runs=1,
        names=names,
    )


def _draw_features(draw: random.Random, features: int) -> tuple[int, ...]:
    return tuple(sorted(draw.getrandbits(62) for _ in range(features)))


def _make_states(draw: random.Random, features: int) -> Sessions:
    """Yield sessions in which every step is a new element, on as many new screens as a portion may have."""
    number = count()
    while True:
        screens = [_draw_features(draw, features) for _ in range(_SCREENS)]
        yield [_make_step(index, f"b{next(number)}", screens[index % _SCREENS]) for index in range(_STEPS)]


def _make_alike_states(draw: random.Random) -> Sessions:
    """Yield sessions in which every step is one element on a screen that shares a part with all others."""
    pool = _draw_features(draw, 430)
    while True:
        yield [
            _make_step(index, "b", tuple(sorted(draw.sample(pool, _ALL_FEATURES)))) for index in range(_STEPS)
        ]


def _make_ways(draw: random.Random, nodes: int, steps: int) -> Sessions:
    """Yield sessions that each go another way over these nodes."""
    acts = [(f"b{number}", _draw_features(draw, _FEATURES)) for number in range(nodes)]
    while True:
        yield [_make_step(index, *draw.choice(acts)) for index in range(steps)]


def _make_names(draw: random.Random) -> Sessions:
    """Yield sessions in which the elements of known nodes have names that no other session has."""
    acts = [(f"b{number}", _draw_features(draw, _FEATURES)) for number in range(_NODES)]
    while True:
        yield [
            _make_step(index, *acts[index % _NODES], (f"{draw.choice('abcdefghi') * 60} {draw.random()}",))
            for index in range(_STEPS)
        ]


_FLOODS: dict[str, Callable[[random.Random], Sessions]] = {
    "new states, 256 features": lambda draw: _make_states(draw, _ALL_FEATURES),
    "new states, 30 features": lambda draw: _make_states(draw, _FEATURES),
    "states alike": _make_alike_states,
    "long ways": lambda draw: _make_ways(draw, _NODES, _STEPS),
    "short ways": lambda draw: _make_ways(draw, _NODES // 10, _SHORT_STEPS),
    "names": _make_names,
}


class _Flood:
    """The graphs of a workspace, flooded through the indexer of a sealing run."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tenant = Tenant(new_id("wsp"), "live")
        self._indexer = GraphIndexer()
        self._sealed = 0

    def add_workflow(self, scope: GraphScope) -> None:
        """Store the row of a workflow."""
        names = {"workspace_id": scope.workspace_id, "mode": scope.mode, "workflow": scope.workflow}
        with self._runtime.database.transaction(write=True) as db:
            db.add(WorkflowRow(**names, created_at=_NOW, updated_at=_NOW))

    def scope(self, name: str) -> GraphScope:
        """Return the graph of a flood."""
        return GraphScope(self._tenant, "".join(letter if letter.isalnum() else "_" for letter in name))

    def restart(self) -> None:
        """Drop all graphs, as a new run would have none."""
        self._indexer = GraphIndexer()

    def index(self, sessions: Sequence[tuple[GraphScope, list[Step]]]) -> float:
        """Take a batch in; return the CPU seconds."""
        rows = [self._make_row(scope) for scope, _ in sessions]
        steps = {row.id: session for row, (_, session) in zip(rows, sessions, strict=True)}
        began = time.process_time()
        with self._runtime.database.transaction(write=False) as db:
            prepared = self._indexer.prepare(db, rows, steps)
        with self._runtime.database.transaction(write=True) as db:
            self._indexer.commit(db, prepared, rows)
        return time.process_time() - began

    def _make_row(self, scope: GraphScope) -> SessionRow:
        self._sealed += 1
        times = dict.fromkeys(("created_at", "started_at", "stopped_at", "sealed_at"), _NOW)
        return SessionRow(
            id=new_id("ses"),
            workspace_id=scope.workspace_id,
            mode=scope.mode,
            workflow=scope.workflow,
            status="sealed",
            duration_ms=10_000_000,
            outcome="success",
            seal_seq=self._sealed,
            **times,
        )


def _run(folder: Path, total: int) -> dict[str, dict[str, float]]:
    """Fill the graphs of a deployment, and return the figures of this process."""
    runtime = Runtime.open(Settings.from_env({}, data_dir=folder))
    seal_all(runtime)
    results = {"before": {"peak_mb": read_peak_mb(), "longest_cpu_s": 0.0}}
    flood, draw = _Flood(runtime), random.Random(1)
    makers = {name: make(draw) for name, make in _FLOODS.items()}
    for name, sessions in makers.items():
        scope = flood.scope(name)
        flood.add_workflow(scope)
        longest, taken = 0.0, 0
        while taken < total:
            batch = [(scope, next(sessions))]
            size = min(_BATCH_STEPS // len(batch[0][1]), _BATCH_SESSIONS)
            batch += [(scope, next(sessions)) for _ in range(size - 1)]
            taken += size * len(batch[0][1])
            longest = max(longest, flood.index(batch))
            batch.clear()
        results[name] = {"peak_mb": read_peak_mb(), "longest_cpu_s": longest}
    every = [(flood.scope(name), next(sessions)[:_SHORT_STEPS]) for name, sessions in makers.items()]
    results["all in a batch"] = {"longest_cpu_s": flood.index(every), "peak_mb": read_peak_mb()}
    flood.restart()
    results["loaded again"] = {"longest_cpu_s": flood.index(every), "peak_mb": read_peak_mb()}
    runtime.close()
    return results


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(_run(Path(sys.argv[1]), int(sys.argv[2]))) + b"\n")
