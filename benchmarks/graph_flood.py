"""Memory of a sealing process while one workspace floods the graph of a workflow.

A fresh process indexes sessions of 10,000 steps with the real indexer and a real database. Kinds of floods:
every step is a new state (of a new element, or of one element on screens that share a part), every session is
a new way over few nodes, every text that could name a node is new.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from recorder.ids import new_id
from recorder.memory.steps.session_steps import Step
from recorder.memory.steps.targets import key_of_texts
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.session import SessionRow
from recorder.models.workflow import WorkflowRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant

_STEPS = 10_000
_NOW = datetime(2026, 1, 5, 8, tzinfo=UTC)
_TENANT = Tenant("wsp_benchmark", "live")


def _make_step(index: int, act: str, features: Sequence[int], names: tuple[str, ...] = ()) -> Step:
    screen = str(hash(tuple(features)))
    key = key_of_texts(screen, "click", act)
    ordered = tuple(sorted(features))
    return Step(
        index, key, screen, "click", act, "Click button", ordered, index, index, None, "evt_1", 1, names
    )


def _new_states(draw: random.Random, features: int = 256) -> Iterator[list[Step]]:
    """Every step is a new element on a new screen."""
    number = count()
    while True:
        yield [
            _make_step(index, f"b{next(number)}", [draw.getrandbits(62) for _ in range(features)])
            for index in range(_STEPS)
        ]


def _small_states(draw: random.Random) -> Iterator[list[Step]]:
    yield from _new_states(draw, 30)


def _alike_states(draw: random.Random) -> Iterator[list[Step]]:
    """Every step is one element on a screen that shares 40 % with every other."""
    pool = [draw.getrandbits(62) for _ in range(430)]
    while True:
        yield [_make_step(index, "b", draw.sample(pool, 256)) for index in range(_STEPS)]


def _new_ways(draw: random.Random) -> Iterator[list[Step]]:
    """Every session goes another way over 2,000 nodes."""
    acts = [(f"b{number}", [draw.getrandbits(62) for _ in range(30)]) for number in range(2_000)]
    while True:
        yield [_make_step(index, *draw.choice(acts)) for index in range(_STEPS)]


def _short_ways(draw: random.Random) -> Iterator[list[Step]]:
    """Every session is twenty steps long and goes another way over 200 nodes."""
    acts = [(f"b{number}", [draw.getrandbits(62) for _ in range(30)]) for number in range(200)]
    while True:
        yield [_make_step(index, *draw.choice(acts)) for index in range(20)]


def _new_names(draw: random.Random) -> Iterator[list[Step]]:
    """Every step of 2,000 nodes has another name."""
    acts = [(f"b{number}", [draw.getrandbits(62) for _ in range(30)]) for number in range(2_000)]
    while True:
        yield [
            _make_step(
                index,
                *acts[index % 2_000],
                (f"Click {'xyzuvwabc'[draw.randrange(9)]} {draw.randrange(10**6)} " + "n" * 60,),
            )
            for index in range(_STEPS)
        ]


_FLOODS: dict[str, Callable[[random.Random], Iterator[list[Step]]]] = {
    "states": _new_states,
    "small": _small_states,
    "alike": _alike_states,
    "ways": _new_ways,
    "short": _short_ways,
    "names": _new_names,
}


def main(flood: str, sessions: int, kw: dict[str, Any]) -> None:
    batch = 1_000 if flood == "short" else 1
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        database = Database(f"sqlite:///{Path(folder, 'recorder.db')}")
        database.migrate()
        scope = GraphScope(_TENANT, "flood")
        with database.transaction(write=True) as db:
            db.add(
                WorkflowRow(
                    workspace_id=scope.workspace_id,
                    mode=scope.mode,
                    workflow=scope.workflow,
                    created_at=_NOW,
                    updated_at=_NOW,
                )
            )
        from recorder.memory.graph.capacity import GraphCapacity

        indexer = GraphIndexer(GraphCapacity.of_megabytes(**kw)) if kw else GraphIndexer()
        made = _FLOODS[flood](random.Random(1))
        print(f"start {_status('VmRSS'):.0f} MB", flush=True)
        for turn in range(sessions):
            steps = [next(made) for _ in range(batch)]
            rows = [
                SessionRow(
                    id=new_id("ses"),
                    workspace_id=scope.workspace_id,
                    mode=scope.mode,
                    workflow=scope.workflow,
                    status="sealed",
                    created_at=_NOW,
                    started_at=_NOW,
                    stopped_at=_NOW,
                    sealed_at=_NOW,
                    duration_ms=10**7,
                    outcome="success",
                    seal_seq=turn + 1,
                    actor_kind="human",
                )
                for _ in steps
            ]
            began = time.process_time()
            with database.transaction(write=False) as db:
                prepared = indexer.prepare(db, rows, dict(zip((r.id for r in rows), steps)))
            mid = time.process_time()
            with database.transaction(write=True) as db:
                indexer.commit(db, prepared, rows)
            end = time.process_time()
            prepared = rows = steps = None
            graph = next(iter(indexer._held.values())).graph
            print(
                f"{turn + 1}: rss {_status('VmRSS'):.0f} peak {_status('VmHWM'):.0f} prepare {mid - began:.1f} s commit {end - mid:.1f} s states {len(graph.node_index.number_of)} nodes {len(graph.nodes)} variants {len(graph.path_index.variants)} paths {len(graph.paths)} features {len(graph.path_index._features._numbers)} settled {len(graph.node_labels._settled)} est {graph.state_bytes / 1e6:.0f}+{graph.way_bytes / 1e6:.0f} MB db {sum(p.stat().st_size for p in Path(folder).iterdir()) / 2**20:.0f}",
                flush=True,
            )
        began = time.process_time()
        import recorder.memory.storage.graph_store as gs

        indexer = graph = None
        with database.transaction(write=False) as db:
            g = gs.load_graph(db, scope)
        print(
            f"load {time.process_time() - began:.1f} s rss {_status('VmRSS'):.0f} peak {_status('VmHWM'):.0f}"
        )


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), eval(sys.argv[3]) if len(sys.argv) > 3 else {})
