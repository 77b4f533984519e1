"""Who writes the shards of an export: this process, for now with threads. Design §4 (shards)."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol

from recorder.exports.manifest import WrittenShard
from recorder.exports.shards import ShardTask, write_shards


class ShardExecutor(Protocol):
    """Runs shard tasks somewhere; every form calls the one function `write_shards`."""

    def run(self, tasks: Sequence[ShardTask]) -> Iterator[WrittenShard]:
        """Write the shards and give each result as it comes, in any order.

        The first failure is raised; tasks that have not begun are then dropped.
        """


class InProcess:
    """Threads of this process; reading, sorting and hashing leave Python's lock.

    One is the default: polars keeps the cores busy by itself, and a second task doubles the memory.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def run(self, tasks: Sequence[ShardTask]) -> Iterator[WrittenShard]:
        """Write the shards and give each result as it comes."""
        if self.threads == 1:
            for task in tasks:
                yield from write_shards(task)
            return
        with ThreadPoolExecutor(self.threads, thread_name_prefix="shard") as pool:
            futures = [pool.submit(list, write_shards(task)) for task in tasks]
            try:
                for future in as_completed(futures):
                    yield from future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
