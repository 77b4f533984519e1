"""Nightly rebuild of large memory graphs: time and peak memory of a fresh process, SQL included. Spec §4.2.

The graphs are of planted sessions, which repeat and go back: a million take tens of thousands of ways.
"""

import sys
import tempfile
import time
from pathlib import Path
from subprocess import PIPE, run
from typing import Any

import orjson

from benchmarks.figure_reports import Figure, at_most
from benchmarks.memory_queries import fill
from benchmarks.seal_memory import read_peak_mb
from benchmarks.seeds import new_settings
from recorder.memory.graph.rebuild import RebuildKind
from recorder.memory.storage.rebuilds import list_graph_scopes, read_rebuild_input, rebuild_graph
from recorder.runtime import Runtime
from recorder.settings import Settings

_SIZES, _QUICK_SIZES = (100_000, 1_000_000), (20_000,)
_KINDS: tuple[RebuildKind, ...] = ("anchored", "fresh")
_GOAL_MB, _GOAL_S = 4_000, 600


def measure(*, quick: bool = False) -> list[Figure]:
    """Return seconds and peak memory of both kinds of rebuild, for graphs of growing size."""
    return [figure for size in (_QUICK_SIZES if quick else _SIZES) for figure in _measure(size)]


def _measure(size: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        began = time.perf_counter()
        fill(settings, size)
        filled_s = time.perf_counter() - began
        results = {kind: _rebuild_in_child(Path(folder), kind) for kind in _KINDS}
    figures = []
    for kind, result in results.items():
        if result["sessions"] != size:
            raise RuntimeError(f"The rebuilt graph has {result['sessions']} of {size} sessions.")
        detail = {name: value for name, value in result.items() if name not in ("seconds", "peak_mb")}
        figures += [
            Figure(
                name=f"{kind} rebuild of {size:,} sessions",
                unit="s",
                ours=[result["seconds"]],
                goal=at_most(_GOAL_S),
                detail=detail | {"indexing all of them, s": filled_s},
            ),
            Figure(
                name=f"peak memory, {kind} rebuild of {size:,} sessions",
                unit="MB",
                ours=[result["peak_mb"]],
                goal=at_most(_GOAL_MB),
                detail={"before, MB": result["before_mb"]},
            ),
        ]
    return figures


def _rebuild_in_child(folder: Path, kind: RebuildKind) -> dict[str, Any]:
    """Rebuild the only graph of a deployment in a process of its own; return that process's figures."""
    command = [sys.executable, "-m", "benchmarks.memory_rebuild", str(folder), kind]
    answer = run(command, stdout=PIPE, check=True, cwd=Path(__file__).parents[1])
    figures: dict[str, Any] = orjson.loads(answer.stdout.splitlines()[-1])
    return figures


def _rebuild(folder: Path, kind: RebuildKind) -> dict[str, Any]:
    runtime = Runtime.open(Settings.from_env({}, data_dir=folder))
    with runtime.database.transaction(write=False) as db:
        [scope] = list_graph_scopes(db)
    before = read_peak_mb()
    began, cpu = time.perf_counter(), time.process_time()
    report = rebuild_graph(runtime.database, scope, kind)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    if report is None:
        raise RuntimeError("The graph was not rebuilt.")
    peak = read_peak_mb()
    with runtime.database.transaction(write=False) as db:
        variants = len(read_rebuild_input(db, scope).variants)
    runtime.close()
    return {
        "seconds": seconds,
        "CPU s": cpu_s,
        "peak_mb": peak,
        "before_mb": before,
        "sessions": report.sessions,
        "variants": variants,
        "nodes": report.nodes,
        "nodes kept": report.nodes_kept,
        "paths": report.paths,
        "paths before": report.paths_before,
        "paths kept": report.paths_kept,
        "rows changed": report.changed,
    }


if __name__ == "__main__":
    [_, folder, kind] = sys.argv
    result = _rebuild(Path(folder), "fresh" if kind == "fresh" else "anchored")
    sys.stdout.buffer.write(orjson.dumps(result) + b"\n")
