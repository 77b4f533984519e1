"""The same dataset again and again, whatever the lake's files, threads, workers and executors. Spec §4.3.

One row set is stored in several lakes: in other files, orders and layouts. It is exported from each by each
executor, in processes with 1, 2, 3 and 8 polars threads, in every format; no file is taken over from an
export before. Counted are the different row sets and the different bytes of a shard: one is right.
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from deltalake import DeltaTable
from sqlmodel import select

import recorder.exports.planning.plan
from benchmarks.exports.deployments import scratch
from benchmarks.exports.lake import WORKFLOW, WORKSPACE, Shape, fill
from benchmarks.figure_reports import Figure, at_most
from benchmarks.seeds import new_settings
from recorder import clock
from recorder.exports.executor import InProcess, ShardExecutor
from recorder.exports.executor.cluster import DaskCluster
from recorder.exports.executor.pool import ProcessPool
from recorder.exports.runner.finalize import requeue_export
from recorder.exports.runner.run import run_export
from recorder.ids import new_id
from recorder.models.export_request import ExportCreate
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.settings import extend_program_environment
from recorder.tenant import Tenant
from tests.support.executors import running_cluster

_REPEATS, _QUICK_REPEATS = 200, 32
_SHAPE = Shape(sessions=2_000, events=60, frames=3, picture_bytes=2_000)
_THREADS = (1, 2, 3, 8)
#: Name, appends, seed of the order of sessions, and what is done to the tables then.
_LAKES = (
    ("recorded", 8, None, None),
    ("many", 60, 1, None),
    ("few", 2, 2, None),
    ("compacted", 40, 3, "compact"),
    ("ordered", 20, 4, "z_order"),
)
_FORMATS = ("parquet", "jsonl", "arrow", "webdataset")
#: Small, so that two thousand sessions make a good number of shards.
_SHARD_BYTES = 4_000_000


def measure(*, quick: bool = False, repeats: int | None = None, shape: Shape = _SHAPE) -> list[Figure]:
    """Count different row sets and files, and what one deleted session changes.

    Args:
        repeats: how many exports, where it is not what the figure calls for.
    """
    with scratch() as folder, running_cluster(workers=2) as cluster:
        for name, files, order, how in _LAKES:
            _make_lake(folder / name, shape, files, order, how)
        plans = _draw(repeats or (_QUICK_REPEATS if quick else _REPEATS), cluster.address)
        results = [run for plan in plans for run in _in_process_with(folder, *plan)]
        before, after = _without_one(folder / "recorded")
    # Samples are rows of their own; the other formats hold the same ones.
    samples = {run["row_set"] for run in results if run["format"] == "webdataset"}
    rows = {run["row_set"] for run in results if run["format"] != "webdataset"}
    bytes_of: dict[str, set[str]] = {}
    for run in results:
        for path, sha256 in run["hashes"].items():
            bytes_of.setdefault(path, set()).add(sha256)
    changed = Counter(path.split("/")[-1].split("-")[0] for path in before if before[path] != after.get(path))
    drawn = Counter(run["executor"].partition("://")[0] for run in results)
    return [
        Figure(
            name="exports: different row sets in repeats",
            unit="",
            ours=[max(len(samples), len(rows))],
            goal=at_most(1),
            detail={"repeats": len(results), **drawn},
        ),
        Figure(
            name="exports: different bytes of a shard in repeats",
            unit="",
            ours=[max(len(hashes) for hashes in bytes_of.values())],
            goal=at_most(1),
            detail={"files of all formats": len(bytes_of)},
        ),
        Figure(
            name=f"exports: shards of a kind that 1 of {shape.sessions} sessions changes by its deletion",
            unit="",
            ours=[max(changed.values())],
            goal=at_most(1),
            detail={"shards": len(before), "changed": sum(changed.values())},
        ),
    ]


def _make_lake(folder: Path, shape: Shape, files: int, order: int | None, how: str | None) -> None:
    (folder / "local").mkdir(parents=True)
    runtime = _open(folder)
    try:
        fill(runtime, shape, files=files, shuffled=order)
    finally:
        runtime.close()
    for path in (folder / "lake").glob("wsp_*/*/*"):
        if how == "compact":
            DeltaTable(str(path)).optimize.compact()
        elif how == "z_order":
            DeltaTable(str(path)).optimize.z_order(["bucket"])


def _open(folder: Path) -> Runtime:
    return Runtime.open(replace(new_settings(folder), local_export_root=folder / "local"))


def _draw(repeats: int, address: str) -> Iterator[tuple[int, list[tuple[str, str, str]]]]:
    """Yield the lake, executor and format of each repeat, by the number of polars threads."""
    executors = ("in_process", "processes:1", "processes:2", "processes:3", address)
    all_kinds = list(product([name for name, *_ in _LAKES], executors, _FORMATS))
    random = Random(1)
    random.shuffle(all_kinds)
    drawn = [all_kinds[number % len(all_kinds)] for number in range(repeats)]
    for number, threads in enumerate(_THREADS):
        yield threads, drawn[number :: len(_THREADS)]


def _in_process_with(folder: Path, threads: int, repeats: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Run some exports in a process of their own, whose polars has so many threads."""
    command = [sys.executable, "-m", "benchmarks.export_repeats", str(folder), json.dumps(repeats)]
    environment = extend_program_environment(
        {"POLARS_MAX_THREADS": str(threads), "PYTHONHASHSEED": str(threads)}
    )
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    output: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return output


def _repeat(folder: Path, repeats: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    runtimes = {name: _open(folder / name) for name, *_ in _LAKES}
    return [
        {"format": format, "executor": executor, **_export(runtimes[lake], _executor(executor), format)}
        for lake, executor, format in repeats
    ]


def _executor(name: str) -> ShardExecutor:
    kind, _, number = name.partition(":")
    if kind == "in_process":
        return InProcess()
    return ProcessPool(int(number)) if kind == "processes" else DaskCluster(name)


def _export(runtime: Runtime, executor: ShardExecutor, format: str) -> dict[str, Any]:
    """Export all sessions to a place of its own; gives the row set and the hashes of all shards."""
    recorder.exports.planning.plan.SHARD_BYTES = _SHARD_BYTES
    name = new_id("exp")
    body = {"workflow": WORKFLOW, "format": format, "destination": {"kind": "local", "path": name}}
    wanted = ExportCreate.model_validate(body | {"frame_sampling": {"mode": "all"}})
    export_id = requeue_export(runtime, Tenant(WORKSPACE, "live"), wanted, owner="benchmark")
    row = run_export(runtime, export_id, owner="benchmark", executor=executor)
    if row.status != "completed":
        raise RuntimeError(f"The export failed: {row.error}")
    folder = runtime.settings.data_dir / "local" / name
    manifest = json.loads((folder / export_id / "manifest.json").read_bytes())
    shutil.rmtree(folder)
    if any(shard["reused_from"] for shard in manifest["shards"]):
        raise RuntimeError("Files were taken over; nothing was repeated.")
    hashes = {shard["path"]: shard["sha256"] for shard in manifest["shards"]}
    return {"row_set": manifest["row_set_sha256"], "hashes": hashes}


def _without_one(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the hashes of all shards before and after a session in the middle is deleted."""
    runtime = _open(folder)
    try:
        before = _export(runtime, InProcess(), "parquet")["hashes"]
        with runtime.database.transaction(write=True) as db:
            ids = sorted(db.exec(select(SessionRow.id)))
            row = db.get_one(SessionRow, ids[len(ids) // 2])
            row.deleted_at = clock.now()
            db.add(row)
        return before, _export(runtime, InProcess(), "parquet")["hashes"]
    finally:
        runtime.close()


if __name__ == "__main__":
    print(json.dumps(_repeat(Path(sys.argv[1]), json.loads(sys.argv[2]))))
