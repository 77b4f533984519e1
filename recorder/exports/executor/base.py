"""What is said of a task whose workers die. Spec §4.3."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from typing import Protocol

from recorder.datasets.formats import FORMATS
from recorder.errors import RecorderError
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.writers import ShardTask, WrittenShard, read_rows, write_rows
from recorder.settings import InvalidSetting

#: A task is begun so often; with the last worker that dies of it, the export fails.
MAX_STARTS = 3


class WorkerLost(RecorderError):
    """Worker after worker died of one task."""

    code = "worker_lost"
    title = "Worker lost"

    def __init__(self, path: str, deaths: int) -> None:
        super().__init__(
            f"{deaths} workers died while they wrote {path} or shards beside it; they may lack memory. "
            "Use fewer workers on a machine, or larger ones, and export again."
        )


#: A worker gets at least so many tasks where there are shards for it. More would share the work out more
#: evenly, and read the lake's files more often: a lake file holds sessions of every shard.
_TASKS_OF_A_WORKER = 3


def in_portions(tasks: Sequence[ShardTask], workers: int) -> list[ShardTask]:
    """The same shards in tasks that keep so many workers busy, the largest first.

    A task is cut between shards where it holds more than a worker's share of all bytes; one worker gets the
    tasks as they are.
    """
    if workers == 1:
        return list(tasks)
    share = sum(_bytes(task, task.shards) for task in tasks) / (workers * _TASKS_OF_A_WORKER)
    cut = [replace(task, shards=shards) for task in tasks for shards in _cut(task, share)]
    return sorted(cut, key=lambda task: _bytes(task, task.shards), reverse=True)


def _cut(task: ShardTask, share: float) -> Iterator[list[PlannedShard]]:
    """Neighbouring shards of a task, together no larger than the share unless there is only one."""
    portion: list[PlannedShard] = []
    for shard in task.shards:
        if portion and _bytes(task, [*portion, shard]) > share:
            yield portion
            portion = []
        portion.append(shard)
    yield portion


def _bytes(task: ShardTask, shards: Sequence[PlannedShard]) -> int:
    """About how much there is to write: rows, and the pictures that the format carries."""
    rows = sum(shard.bytes_read for shard in shards)
    if task.shards[0].kind == "events" or not FORMATS[task.format].carries_images:
        return rows
    return rows + sum(int(shard.sessions["image_bytes"].sum()) for shard in shards)


class ShardExecutor(Protocol):
    """Runs shard tasks somewhere; every form calls the functions of `writers.shards`."""

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give each result once, as it comes, in any order.

        The first failure is raised. After that, and when the iterator is closed before its end, tasks that
        have not begun are dropped, and none is at work any more.
        """


class InProcess:
    """This process: the rows of the next task are read while one is written, which keeps the cores busy."""

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give each result as it comes."""
        with ThreadPoolExecutor(1, thread_name_prefix="read") as reader:
            coming = deque(reader.submit(read_rows, task) for task in tasks[:1])
            for number, task in enumerate(tasks, 1):
                rows = coming.popleft().result()
                coming.extend(reader.submit(read_rows, following) for following in tasks[number : number + 1])
                yield from write_rows(task, rows)


def open_executor(chosen: str) -> ShardExecutor:
    """The executor that a setting names; nothing is started or connected to before tasks are run.

    Args:
        chosen: `Settings.export_executor`: `in_process`, `processes:N`, or the address of a Dask scheduler.

    Raises:
        InvalidSetting: if it names a Dask cluster and Dask is not installed.
    """
    kind, _, rest = chosen.partition(":")
    if kind == "in_process":
        return InProcess()
    if kind == "processes":
        from recorder.exports.executor.pool import ProcessPool

        return ProcessPool(int(rest))
    if find_spec("distributed") is None:
        takes = "the address of a Dask cluster only where Dask is: pip install 'workflow-recorder[dask]'"
        raise InvalidSetting("RECORDER_EXPORT_EXECUTOR", takes)
    from recorder.exports.executor.cluster import DaskCluster

    return DaskCluster(chosen)
