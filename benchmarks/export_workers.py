"""Two workers beside one, each with one polars thread: event rows a second of the same shards. Spec §4.3.

Measured is the writing of an export's shards, from the plan's tasks to the last file. A pool is measured with
the start of its processes; the workers of a Dask cluster run before, as a cluster's do.
"""

import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.exports.deployments import deploy, scratch
from benchmarks.exports.lake import WORKFLOW, WORKSPACE, Shape
from benchmarks.figures import Figure, Skipped, at_least
from recorder.exports.executor import InProcess, ShardExecutor
from recorder.exports.executor.cluster import DaskCluster
from recorder.exports.executor.pool import ProcessPool
from recorder.exports.manifest import WrittenShard
from recorder.exports.running.operator import queue_export
from recorder.exports.running.run import run_export
from recorder.exports.writers.shards import ShardTask
from recorder.models.export import ExportCreate
from recorder.runtime import Runtime
from recorder.settings import Settings
from tests.executing import running_cluster

_EVENTS = 500
_SESSIONS, _QUICK_SESSIONS = 4_000, 1_000
_ROUNDS, _QUICK_ROUNDS = 5, 2
_GOAL = at_least(1.6)


class Kept:
    """An executor in this process that keeps the tasks which it was given."""

    def __init__(self) -> None:
        self.tasks: list[ShardTask] = []

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        self.tasks += tasks
        return InProcess().run(tasks)


def measure(*, quick: bool = False, sessions: int | None = None) -> list[Figure]:
    """Rows a second with two workers and with one, as processes and on a Dask cluster.

    Args:
        sessions: how many, of 500 events each, where it is not what the figure calls for.

    Raises:
        Skipped: if Dask is not installed.
    """
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise Skipped("Dask is not installed: pip install distributed") from error
    rounds = _QUICK_ROUNDS if quick else _ROUNDS
    shape = Shape(sessions=sessions or (_QUICK_SESSIONS if quick else _SESSIONS), events=_EVENTS)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        tasks = planned_tasks(deploy(folder / "data", shape))
        two, one = (stack.enter_context(running_cluster(workers)) for workers in (2, 1))
        arms: dict[str, tuple[ShardExecutor, ShardExecutor]] = {
            "processes, with their start": (ProcessPool(2), ProcessPool(1)),
            "Dask": (DaskCluster(two.address), DaskCluster(one.address)),
        }
        return [
            _figure(f"exports: two workers, {name}", tasks, pair, folder / "out", rounds)
            for name, pair in arms.items()
        ]


def planned_tasks(settings: Settings) -> list[ShardTask]:
    """The tasks of an export of all sessions to Parquet."""
    runtime, kept = Runtime.open(settings), Kept()
    try:
        body = {"workflow": WORKFLOW, "format": "parquet", "destination": {"kind": "local", "path": "plan"}}
        wanted = ExportCreate.model_validate(body)
        export_id = queue_export(runtime, WORKSPACE, "live", wanted, owner="benchmark")
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
    rows = sum(shard.rows for task in tasks for shard in task.shards)
    runs = [
        [rows / seconds for seconds in _alternate(tasks, arms, folder, hashes)] for _ in range(rounds + 1)
    ]
    if len(hashes) != 1:
        raise RuntimeError("One and two workers wrote other bytes.")
    ours, peer = zip(*runs[1:], strict=True)
    detail = {"rows": rows, "shards": sum(len(task.shards) for task in tasks)}
    return Figure(
        name=name, unit="rows/s", ours=ours, peer=peer, peer_name="one worker", goal=_GOAL, detail=detail
    )


def _alternate(
    tasks: list[ShardTask],
    arms: tuple[ShardExecutor, ShardExecutor],
    folder: Path,
    hashes: set[tuple[tuple[str, str], ...]],
) -> Iterator[float]:
    for executor in arms:
        shutil.rmtree(folder, ignore_errors=True)
        moved = [replace(task, target=replace(task.target, root=str(folder))) for task in tasks]
        began = time.perf_counter()
        written = list(executor.run(moved))
        yield time.perf_counter() - began
        hashes.add(tuple(sorted((shard.path, shard.sha256) for shard in written)))
