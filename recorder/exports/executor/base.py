"""Interface of executors, division of tasks among workers, and the executor of this process. Spec §4.3."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from typing import Protocol

from recorder.datasets.formats import FORMATS
from recorder.errors import RecorderError
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.writers import ShardTask, WrittenShard, read_shard_task_rows, write_rows
from recorder.setting_parsers import InvalidSetting

#: Most starts of a task; if its last worker dies too, the export fails.
MAX_STARTS = 3


class WorkerLost(RecorderError):
    """All workers that tried one task died."""

    code = "worker_lost"
    title = "Worker lost"

    def __init__(self, path: str, deaths: int) -> None:
        super().__init__(
            f"{deaths} workers died while they wrote {path} or shards beside it; they may lack memory. "
            "Use fewer workers on a machine, or larger ones, and export again."
        )


#: Tasks for each worker, if there are enough shards. More tasks would divide the work more evenly, and read
#: the lake's files more often: a lake file has sessions of every shard.
_TASKS_PER_WORKER = 3


def divide_shard_tasks(tasks: Sequence[ShardTask], workers: int) -> list[ShardTask]:
    """Return the same shards in tasks that keep some workers busy, the largest first.

    A task with more than a worker's share of all bytes is cut between shards; a single worker gets the tasks
    unchanged.
    """
    if workers == 1:
        return list(tasks)
    share = sum(_estimate_task_bytes(task, task.shards) for task in tasks) / (workers * _TASKS_PER_WORKER)
    cut = [replace(task, shards=shards) for task in tasks for shards in _cut_shard_task(task, share)]
    return sorted(cut, key=lambda task: _estimate_task_bytes(task, task.shards), reverse=True)


def _cut_shard_task(task: ShardTask, share: float) -> Iterator[list[PlannedShard]]:
    """Yield neighbouring shards of a task, together no larger than the share unless there is only one."""
    portion: list[PlannedShard] = []
    for shard in task.shards:
        if portion and _estimate_task_bytes(task, [*portion, shard]) > share:
            yield portion
            portion = []
        portion.append(shard)
    yield portion


def _estimate_task_bytes(task: ShardTask, shards: Sequence[PlannedShard]) -> int:
    """Estimate the bytes to write: rows, and the pictures that the format carries."""
    rows = sum(shard.bytes_read for shard in shards)
    if task.shards[0].kind == "events" or not FORMATS[task.format].carries_images:
        return rows
    return rows + sum(int(shard.sessions["image_bytes"].sum()) for shard in shards)


class ShardExecutor(Protocol):
    """Runner of shard tasks; every implementation calls the functions of `exports.writers`."""

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and yield each result once, in any order.

        The first failure is raised. After that, and when the iterator is closed before its end, tasks that
        have not started are dropped, and none is running any more.
        """


class InProcess:
    """Executor of this process, which reads the rows of the next task while it writes one."""

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and yield each result."""
        with ThreadPoolExecutor(1, thread_name_prefix="read") as reader:
            pending = deque(reader.submit(read_shard_task_rows, task) for task in tasks[:1])
            for number, task in enumerate(tasks, 1):
                rows = pending.popleft().result()
                pending.extend(
                    reader.submit(read_shard_task_rows, following) for following in tasks[number : number + 1]
                )
                yield from write_rows(task, rows)


def open_executor(setting: str) -> ShardExecutor:
    """Return the executor that a setting names; nothing is started or connected to before `run`.

    Args:
        setting: `Settings.export_executor`: `in_process`, `processes:N`, or the address of a Dask scheduler.

    Raises:
        InvalidSetting: if it names a Dask cluster and Dask is not installed.
    """
    kind, _, rest = setting.partition(":")
    if kind == "in_process":
        return InProcess()
    if kind == "processes":
        from recorder.exports.executor.pool import ProcessPool

        return ProcessPool(int(rest))
    if find_spec("distributed") is None:
        takes = "the address of a Dask cluster only where Dask is: install the extra `dask`"
        raise InvalidSetting("RECORDER_EXPORT_EXECUTOR", takes)
    from recorder.exports.executor.cluster import DaskCluster

    return DaskCluster(setting)
