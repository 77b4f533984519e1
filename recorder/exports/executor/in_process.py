"""What an executor is, and the one that writes shards in this process. Design §4 (shards)."""

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol

from recorder.exports.executor.portions import in_portions
from recorder.exports.manifest import WrittenShard
from recorder.exports.writers.shards import ShardTask, write_shards


class ShardExecutor(Protocol):
    """Runs shard tasks somewhere; every form calls the one function `write_shards`."""

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give each result once, as it comes, in any order.

        The first failure is raised. After that, and when the iterator is closed before its end, tasks that
        have not begun are dropped, and none is at work any more.
        """


class InProcess:
    """Threads of this process; reading, sorting and hashing leave Python's lock.

    One is the default: polars keeps the cores busy by itself, and a second task doubles the memory.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give each result as it comes."""
        if self.threads == 1:
            for task in tasks:
                yield from write_shards(task)
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
