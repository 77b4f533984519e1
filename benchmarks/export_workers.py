"""Two workers on two processors beside one on one: event rows a second of the same shards. Spec §4.3.

Measured is the writing of an export's shards, from the plan's tasks to the last file. A pool is measured with
the start of its processes; the workers of a Dask cluster run before, as a cluster's do. Each worker has one
polars thread in both arms; the one is also kept to one processor, as on a machine that has no other: its
threads that hash and write would make use of a second. What the machine itself gives in the same minutes, two
processes that only compute beside one, is shown with each figure: virtual processors may share a real one.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.exports.deployments import deploy, scratch
from benchmarks.exports.lake import WORKFLOW, WORKSPACE, Shape
from benchmarks.figure_reports import Figure, Skipped, at_least
from recorder.exports.executor import InProcess, ShardExecutor
from recorder.exports.executor.cluster import DaskCluster
from recorder.exports.executor.pool import ProcessPool
from recorder.exports.runner.finalize import requeue_export
from recorder.exports.runner.run import run_export
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.models.export_request import ExportCreate
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.tenant import Tenant
from tests.support.executors import Cluster, running_cluster

_EVENTS = 500
#: Starting a pool's processes and reaching a cluster take as long for few rows as for many.
_SESSIONS, _QUICK_SESSIONS = (4_000, 16_000), (1_000,)
_ROUNDS, _QUICK_ROUNDS = 5, 2
_GOAL = at_least(1.6)
_COMPUTING = """
import hashlib, time
data, end, count = bytes(100_000), time.perf_counter() + 1, 0
while time.perf_counter() < end:
    hashlib.sha256(data).digest()
    count += 1
print(count)
"""


class Kept:
    """An executor in this process that keeps the tasks which it was given."""

    def __init__(self) -> None:
        self.tasks: list[ShardTask] = []

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        self.tasks += tasks
        return InProcess().run(tasks)


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the rows a second with two workers and with one, as processes and on a Dask cluster.

    Raises:
        Skipped: if Dask is not installed.
    """
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise Skipped("Dask is not installed: pip install distributed") from error
    rounds = _QUICK_ROUNDS if quick else _ROUNDS
    with ExitStack() as stack:
        two, first = (_cluster(stack, workers) for workers in (2, 1))
        arms: dict[str, tuple[ShardExecutor, ShardExecutor]] = {
            "processes, with their start": (ProcessPool(2), ProcessPool(1)),
            "Dask": (DaskCluster(two.address), DaskCluster(first.address)),
        }
        return [
            figure
            for sessions in (_QUICK_SESSIONS if quick else _SESSIONS)
            for figure in _figures(Shape(sessions=sessions, events=_EVENTS), arms, rounds)
        ]


def _figures(
    shape: Shape, arms: dict[str, tuple[ShardExecutor, ShardExecutor]], rounds: int
) -> Iterator[Figure]:
    with scratch() as folder:
        tasks = planned_tasks(deploy(folder / "data", shape))
        for name, pair in arms.items():
            rows = shape.sessions * shape.events
            title = f"exports: two workers, {name}: {rows:,} rows"
            yield _figure(title, tasks, pair, folder / "out", rounds)


@contextmanager
def _processors(count: int) -> Iterator[None]:
    """Restrict the processes that start in the block to some processors."""
    all_there_are = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_there_are)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_there_are)


def _cluster(stack: ExitStack, workers: int) -> Cluster:
    with _processors(workers):
        return stack.enter_context(running_cluster(workers))


def planned_tasks(settings: Settings) -> list[ShardTask]:
    """Return the tasks of an export of all sessions to Parquet."""
    runtime, kept = Runtime.open(settings), Kept()
    try:
        body = {"workflow": WORKFLOW, "format": "parquet", "destination": {"kind": "local", "path": "plan"}}
        wanted = ExportCreate.model_validate(body)
        export_id = requeue_export(runtime, Tenant(WORKSPACE, "live"), wanted, owner="benchmark")
        row = run_export(runtime, export_id, owner="benchmark", executor=kept)
    finally:
        runtime.close()
    if row.status != "completed":
        raise RuntimeError(f"The export failed: {row.error}")
    return kept.tasks


def _figure(
    name: str,
    tasks: list[ShardTask],
    arms: tuple[ShardExecutor, ShardExecutor],
    folder: Path,
    rounds: int,
) -> Figure:
    hashes = set[tuple[tuple[str, str], ...]]()
    machine: list[float] = []
    rows = sum(shard.rows for task in tasks for shard in task.shards)
    runs = []
    for _ in range(rounds + 1):
        runs.append([rows / seconds for seconds in _alternate(tasks, arms, folder, hashes)])
        machine.append(_compute(2) / _compute(1))
    if len(hashes) != 1:
        raise RuntimeError("One and two workers wrote other bytes.")
    ours, peer = zip(*runs[1:], strict=True)
    detail = {
        "rows": rows,
        "shards": sum(len(task.shards) for task in tasks),
        "two processes that compute, by one": machine[1:],
    }
    return Figure(
        name=name, unit="rows/s", ours=ours, peer=peer, peer_name="one worker", goal=_GOAL, detail=detail
    )


def _compute(processes: int) -> int:
    """Return how often some processes together hash a piece in one second."""
    command = [sys.executable, "-c", _COMPUTING]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    return sum(int(process.communicate()[0]) for process in running)


def _alternate(
    tasks: list[ShardTask],
    arms: tuple[ShardExecutor, ShardExecutor],
    folder: Path,
    hashes: set[tuple[tuple[str, str], ...]],
) -> Iterator[float]:
    for workers, executor in zip((2, 1), arms, strict=True):
        shutil.rmtree(folder, ignore_errors=True)
        moved = [replace(task, target=replace(task.target, root=str(folder))) for task in tasks]
        with _processors(workers):
            began = time.perf_counter()
            written = list(executor.run(moved))
            seconds = time.perf_counter() - began
        yield seconds
        hashes.add(tuple(sorted((shard.path, shard.sha256) for shard in written)))
