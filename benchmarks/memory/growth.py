"""Speed of adding sessions to a graph, without storage: a batch to a large graph, and all variants at once.

Sessions are planted: they repeat and go back, so the large graph has tens of thousands of variants, and every
batch brings new ones.
"""

import time
from collections.abc import Sequence

from benchmarks.figure_reports import Figure, at_most
from benchmarks.memory.planted import plant
from recorder.memory.graph.graph import Graph
from recorder.memory.graph.paths import PathIndex
from recorder.memory.steps.session_steps import Step
from recorder.tenant import GraphScope, Tenant

_LARGE, _QUICK_LARGE = 200_000, 20_000
_BATCH, _ROUNDS = 1_000, 5
_VARIANTS, _QUICK_VARIANTS = 5_000, 1_000
_SCOPE = GraphScope(Tenant("wsp_benchmark", "live"), "benchmark")

Sessions = dict[str, Sequence[Step]]


def measure(*, quick: bool = False) -> list[Figure]:
    """Return milliseconds for 1,000 sessions into 200,000, and for grouping 5,000 variants."""
    large = _QUICK_LARGE if quick else _LARGE
    planted = plant(large + _ROUNDS * _BATCH)
    sessions: Sessions = {session.session_id: session.steps for session in planted.sessions}
    ids = list(sessions)
    graph = Graph(_SCOPE)
    graph.add_sessions({session_id: sessions[session_id] for session_id in ids[:large]})
    return [
        _batches(
            graph,
            [
                {session_id: sessions[session_id] for session_id in ids[at : at + _BATCH]}
                for at in _starts(large)
            ],
        ),
        _grouping(graph, _QUICK_VARIANTS if quick else _VARIANTS),
    ]


def _starts(large: int) -> list[int]:
    return [large + turn * _BATCH for turn in range(_ROUNDS)]


def _batches(graph: Graph, batches: Sequence[Sessions]) -> Figure:
    """Add batches one after the other to a large graph."""
    times, cpu, unseen = [], [], []
    before = len(graph.variant_of)
    variants = len(graph.path_index.variants)
    for batch in batches:
        began, cpu_began = time.perf_counter(), time.process_time()
        change = graph.add_sessions(batch)
        times.append((time.perf_counter() - began) * 1e3)
        cpu.append((time.process_time() - cpu_began) * 1e3)
        unseen.append(len(change.variants))
    return Figure(
        name=f"memory: {_BATCH:,} sessions into a large graph, without storage",
        unit="ms",
        ours=times,
        goal=at_most(150),
        detail={
            "CPU ms": cpu,
            "traces": before,
            "variants": variants,
            "paths": len(graph.paths),
            "new variants": unseen,
            "steps": sum(len(steps) for batch in batches for steps in batch.values()) / len(batches),
        },
    )


def _grouping(graph: Graph, count: int) -> Figure:
    """Group the most frequent variants of a graph into paths from nothing."""
    variants = sorted(graph.path_index.variants.values(), key=lambda variant: -variant.sessions)[:count]
    counted = {variant.variant_key: (variant.nodes, variant.sessions) for variant in variants}
    times, cpu, paths = [], [], 0
    for _ in range(_ROUNDS):
        index = PathIndex(_SCOPE)
        began, cpu_began = time.perf_counter(), time.process_time()
        index.add(counted, graph.nodes)
        times.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_began)
        paths = len(index.paths)
    return Figure(
        name="memory: grouping variants into paths",
        unit="s",
        ours=times,
        goal=at_most(1),
        detail={"CPU s": cpu, "variants": len(counted), "paths": paths},
    )
