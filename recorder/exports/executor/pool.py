"""Executor with worker processes on this machine; one that dies is replaced. Spec §4.3, decision 0025.

Each worker has one polars thread, so that N workers use N cores. `concurrent.futures` would end all tasks
when one worker dies, and reports a task at its end only.
"""

import subprocess
import sys
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import wait

from recorder.exports.executor.base import MAX_STARTS, WorkerLost, divide_shard_tasks
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.settings import extend_program_environment

#: Module that each worker process runs.
WORKER_MODULE = "recorder.exports.executor.pool_worker"
#: A worker that is stopped first discards the file that it is writing.
_STOP_SECONDS = 10.0


class ProcessPool:
    """Executor with a number of processes, which run as long as there are tasks."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and yield each result.

        Raises:
            WorkerLost: if all workers that tried one task died.
        """
        waiting = deque(_Job(task) for task in divide_shard_tasks(tasks, self.workers))
        workers = [_PoolWorker() for _ in range(min(self.workers, len(waiting)))]
        try:
            for worker in workers:
                worker.begin(waiting.popleft())
            while busy := {worker.connection: worker for worker in workers if worker.job}:
                for connection in wait(list(busy)):
                    worker = busy[connection]  # type: ignore[index]
                    try:
                        message = worker.connection.recv()
                    except (EOFError, OSError):
                        workers.remove(worker)
                        worker.end()
                        job = worker.unfinished_job() or (waiting.popleft() if waiting else None)
                        if job is not None:
                            workers.append(_PoolWorker())
                            workers[-1].begin(job)
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
                worker.stop()
            for worker in workers:
                worker.end()


class _Job:
    """A task and the number of its starts."""

    def __init__(self, task: ShardTask, starts: int = 0) -> None:
        self.task = task
        self.starts = starts
        self.done = set[str]()


class _PoolWorker:
    """A worker process and the socket to it."""

    def __init__(self) -> None:
        self.connection, child_end = Pipe()
        self.job: _Job | None = None
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", WORKER_MODULE, str(child_end.fileno())],
                stdin=subprocess.PIPE,
                env=extend_program_environment({"POLARS_MAX_THREADS": "1"}),
                pass_fds=[child_end.fileno()],
            )

    def begin(self, job: _Job | None) -> None:
        """Send the next job; without one the worker ends and frees its memory."""
        self.job = job
        if job is None:
            self.connection.close()
            return
        job.starts += 1
        # A worker that has died is found when its socket closes.
        with suppress(OSError):
            self.connection.send(job.task)

    def note(self, written: WrittenShard) -> None:
        """Note a shard that needs no second writing."""
        assert self.job is not None
        self.job.done.add(written.path)

    def unfinished_job(self) -> _Job | None:
        """Return the rest of the job for another worker, after this one died; None if all files are written.

        Raises:
            WorkerLost: if it was the last attempt.
        """
        assert self.job is not None
        left = [shard for shard in self.job.task.shards if shard.path not in self.job.done]
        if not left:
            return None
        if self.job.starts == MAX_STARTS:
            raise WorkerLost(left[0].path, self.job.starts)
        return _Job(replace(self.job.task, shards=left), self.job.starts)

    def stop(self) -> None:
        """Ask the process to end."""
        self._process.terminate()

    def end(self) -> None:
        """Wait until the process has ended; kill it after some seconds."""
        self.connection.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
