"""How far an export is, said in its run's log while it is written. Spec §4.3."""

import time
from collections.abc import Callable, Generator, Sequence

from recorder.exports.executor import ShardExecutor
from recorder.exports.manifest import WrittenShard
from recorder.exports.writers.tasks import ShardTask

_EVERY_S = 5.0


class ToldProgress:
    """An executor that says now and then how many shards are written, how large, how fast."""

    def __init__(
        self, executor: ShardExecutor, say: Callable[[str], None], *, every_s: float = _EVERY_S
    ) -> None:
        self._executor = executor
        self._say = say
        self._every_s = every_s

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give each result as it comes."""
        total = sum(len(task.shards) for task in tasks)
        done = rows = size_bytes = 0
        began = told = time.monotonic()
        if total:
            self._say(f"{total} shards to write")
        results = self._executor.run(tasks)
        try:
            for written in results:
                # First what is done with it: a shard counts once it is noted.
                yield written
                done, rows, size_bytes = done + 1, rows + written.rows, size_bytes + written.size_bytes
                now = time.monotonic()
                if done == total or now - told >= self._every_s:
                    told = now
                    pace = rows / max(now - began, 0.001)
                    self._say(
                        f"{done} of {total} shards written: {rows:,} rows, {size_bytes:,} bytes, "
                        f"{pace:,.0f} rows/s"
                    )
        finally:
            results.close()
