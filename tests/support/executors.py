"""Executors that record their work or fail, and a Dask cluster on loopback."""

import hashlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from recorder.datasets.formats import FORMATS
from recorder.exports.executor import InProcess, ShardExecutor
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.ids import new_id
from recorder.runtime import Runtime
from recorder.settings import extend_program_environment
from tests.support.export_runs import export, hashes_of
from tests.support.sealed_sessions import Recording, seal

_ROOT = Path(__file__).parents[2]
_QUIET = ["--no-dashboard", "--scheduler-file"]


@dataclass
class Watched:
    """An executor whose tasks are kept, and which does something when the first shard is there."""

    executor: ShardExecutor
    act: Callable[[], object] = lambda: None
    tasks: list[ShardTask] = field(default_factory=list)

    def run(self, tasks: Sequence[ShardTask]) -> Iterator[WrittenShard]:
        self.tasks += tasks
        with closing(self.executor.run(tasks)) as results:
            for count, written in enumerate(results):
                if count == 0:
                    self.act()
                yield written


@dataclass
class Failing:
    """An executor that raises after so many shards."""

    error: BaseException
    after: int = 0

    def run(self, tasks: Sequence[ShardTask]) -> Iterator[WrittenShard]:
        for count, written in enumerate(InProcess().run(tasks)):
            if count == self.after:
                raise self.error
            yield written


def elsewhere(tasks: list[ShardTask], folder: Path) -> list[ShardTask]:
    """Return the tasks, with a folder of their own to write to."""
    return [replace(task, target=replace(task.target, root=str(folder))) for task in tasks]


def written_by(executor: ShardExecutor, runtime: Runtime, **body: Any) -> Path:
    """Run an export that takes over no file of an earlier one; return its folder."""
    destination = {"kind": "local", "path": new_id("exp")}
    return export(runtime, executor=executor, destination=destination, **body)


@dataclass(frozen=True)
class InAllFormats:
    """The tasks of one row set in every format, and the SHA-256 of each file as this process wrote it."""

    tasks: list[ShardTask]
    hashes: dict[str, str]

    def of(self, format: str) -> list[ShardTask]:
        """Return the tasks of one format."""
        return [task for task in self.tasks if task.format == format]


def write_all_formats(runtime: Runtime) -> InAllFormats:
    """Seal some sessions, with nulls wherever there may be some, and export them in every format."""
    outcomes = [None, "success", "error"]
    seal(runtime, [Recording(frames=[0, 600], outcome=outcomes[number % 3]) for number in range(16)])
    watched, hashes = Watched(InProcess()), {}
    for format in FORMATS:
        folder = written_by(watched, runtime, format=format, frame_sampling={"mode": "all"})
        hashes |= hashes_of(folder)
    return InAllFormats(watched.tasks, hashes)


def write(executor: ShardExecutor, tasks: list[ShardTask], folder: Path) -> dict[str, str]:
    """Have tasks written to a folder; return the SHA-256 of each file there."""
    output = {written.path: written.sha256 for written in executor.run(elsewhere(tasks, folder))}
    values = {path: hashlib.sha256((folder / path).read_bytes()).hexdigest() for path in output}
    assert output == values
    return values


class Cluster:
    """A scheduler and its workers, each a process of its own with one thread."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._file = folder / "scheduler.json"
        self._started = ExitStack()
        self.workers = list[subprocess.Popen[bytes]]()
        self._start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0")

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if self._file.exists() and (text := self._file.read_bytes()):
                return str(orjson.loads(text)["address"])
            time.sleep(0.05)
        raise TimeoutError("The Dask scheduler did not come up.")

    def add_workers(self, count: int) -> None:
        """Start workers; they come in a second or two."""
        options = ["--no-nanny", "--nthreads", "1", "--host", "127.0.0.1", "--death-timeout", "60"]
        folder = ["--local-directory", str(self._folder)]
        self.workers += [self._start("distributed.cli.dask_worker", *options, *folder) for _ in range(count)]

    def kill_worker(self) -> None:
        """Kill one worker as the kernel kills it for want of memory."""
        worker = self.workers.pop()
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        """End all that was started."""
        self._started.close()

    def _start(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", program, *options, *self._options, *_QUIET, str(self._file)]
        variables = extend_program_environment({"POLARS_MAX_THREADS": "1", "PYTHONPATH": str(_ROOT)})
        log = self._started.enter_context((self._folder / "log").open("ab"))
        process = subprocess.Popen(command, env=variables, cwd=self._folder, stdout=log, stderr=log)
        self._started.enter_context(process)
        self._started.callback(process.kill)
        return process


@contextmanager
def running_cluster(workers: int, *options: str) -> Iterator[Cluster]:
    """Yield a cluster with so many workers; options are given to them and to the scheduler."""
    with tempfile.TemporaryDirectory(prefix="dask-") as folder:
        cluster = Cluster(Path(folder), *options)
        try:
            cluster.add_workers(workers)
            yield cluster
        finally:
            cluster.stop()
