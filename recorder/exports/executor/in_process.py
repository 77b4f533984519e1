"""What an executor is, and the one that writes shards in this process. Design §4 (shards)."""

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from recorder.exports.manifest import WrittenShard
from recorder.exports.writers.lake_rows import read_rows
from recorder.exports.writers.shards import write_rows
from recorder.exports.writers.tasks import ShardTask


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
