"""Shards are written by processes of this machine; one that dies is replaced. Spec §4.3, decision 0025.

Each has one polars thread, so that N of them are N cores' work. `concurrent.futures` would give up all
tasks when one worker dies, and tells of a task at its end only.
"""

import subprocess
import sys
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import wait

from recorder.exports.executor.base import MAX_STARTS, WorkerLost, in_portions
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.settings import environment_with

_WORKER = "recorder.exports.executor.worker"
#: A worker that is told to stop first discards what it is writing.
_STOP_SECONDS = 10.0


class ProcessPool:
    """So many processes, for as long as there are tasks for them."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give each result as it comes.

        Raises:
            WorkerLost: if worker after worker died of one task.
        """
        waiting = deque(_Job(task) for task in in_portions(tasks, self.workers))
        workers = [_Worker() for _ in range(min(self.workers, len(waiting)))]
        try:
            for worker in workers:
                worker.begin(waiting.popleft())
            while at_work := {worker.connection: worker for worker in workers if worker.job}:
                for connection in wait(list(at_work)):
                    worker = at_work[connection]  # type: ignore[index]
                    try:
                        message = worker.connection.recv()
                    except (EOFError, OSError):
                        workers.remove(worker)
                        worker.end()
                        workers.append(_Worker())
                        workers[-1].begin(worker.left_behind())
                        continue
                    if isinstance(message, Exception):
                        raise message
                    if isinstance(message, WrittenShard):
                        worker.note(message)
                        yield message
                    else:
                        worker.begin(waiting.popleft() if waiting else None)
        finally:
            for worker in workers:
                worker.tell_to_stop()
            for worker in workers:
                worker.end()


class _Job:
    """A task, and how often it was begun."""

    def __init__(self, task: ShardTask, starts: int = 0) -> None:
        self.task = task
        self.starts = starts
        self.done = set[str]()


class _Worker:
    """A process and the socket to it."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        self.job: _Job | None = None
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                env=environment_with({"POLARS_MAX_THREADS": "1"}),
                pass_fds=[theirs.fileno()],
            )

    def begin(self, job: _Job | None) -> None:
        """Give it its next job; with none left, it ends and gives its memory back."""
        self.job = job
        if job is None:
            self.connection.close()
            return
        job.starts += 1
        # One that has died is found by its silence.
        with suppress(OSError):
            self.connection.send(job.task)

    def note(self, written: WrittenShard) -> None:
        """Remember what needs no second writing."""
        assert self.job is not None
        self.job.done.add(written.path)

    def left_behind(self) -> _Job:
        """What another worker is to do instead of this one, which died.

        Raises:
            WorkerLost: if it was the last attempt.
        """
        assert self.job is not None
        left = [shard for shard in self.job.task.shards if shard.path not in self.job.done]
        if self.job.starts == MAX_STARTS and left:
            raise WorkerLost(left[0].path, self.job.starts)
        return _Job(replace(self.job.task, shards=left), self.job.starts)

    def tell_to_stop(self) -> None:
        """End what it is doing."""
        self._process.terminate()

    def end(self) -> None:
        """Wait for its end, and bring it about if it does not come."""
        self.connection.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
