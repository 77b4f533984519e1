"""What an executor is, and the one that writes shards in this process. Design §4 (shards)."""

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol

from recorder.exports.executor.portions import in_portions
from recorder.exports.manifest import WrittenShard
from recorder.exports.writers.lake_rows import read_rows
from recorder.exports.writers.shards import write_rows, write_shards
from recorder.exports.writers.tasks import ShardTask


class ShardExecutor(Protocol):
    """Runs shard tasks somewhere; every form calls the functions of `writers.shards`."""

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give each result once, as it comes, in any order.

        The first failure is raised. After that, and when the iterator is closed before its end, tasks that
        have not begun are dropped, and none is at work any more.
        """


class InProcess:
    """Threads of this process; reading, sorting and hashing leave Python's lock.

    One is the default: it reads the next task while it writes this one, which keeps the cores busy; each
    further thread holds the rows of a further task.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give each result as it comes."""
        if self.threads == 1:
            yield from _reading_ahead(tasks)
            return
        with ThreadPoolExecutor(self.threads, thread_name_prefix="shard") as pool:
            futures = [
                pool.submit(list, write_shards(portion)) for portion in in_portions(tasks, self.threads)
            ]
            try:
                for future in as_completed(futures):
                    yield from future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def _reading_ahead(tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
    """Write task after task, while the rows of the next one are read."""
    with ThreadPoolExecutor(1, thread_name_prefix="read") as reader:
        coming = deque(reader.submit(read_rows, task) for task in tasks[:1])
        for number, task in enumerate(tasks, 1):
            rows = coming.popleft().result()
            coming.extend(reader.submit(read_rows, following) for following in tasks[number : number + 1])
            yield from write_rows(task, rows)
