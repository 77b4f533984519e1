"""Samples of a deployment: memory and open files of its processes, sizes of files, times of commits."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from recorder.supervisor import Service

_EVERY_S = 1.0
_COMMITS = re.compile(rb"^recorder_ingest_commit_seconds_(sum|count) (\S+)$", re.MULTILINE)


@dataclass
class Sample:
    """State of a deployment at one moment."""

    #: Seconds since the first sample.
    at: float
    #: Sessions that were stopped since the load began.
    sessions: int
    #: Commits of ingest since the start, and their seconds in total.
    commits: int
    commit_seconds: float
    #: MB of resident memory by name of the process.
    memory_mb: dict[str, float] = field(default_factory=dict)
    open_files: dict[str, int] = field(default_factory=dict)
    #: MB of each group of files.
    files_mb: dict[str, float] = field(default_factory=dict)
    #: MB of the largest file below `logs`.
    largest_log_mb: float = 0.0


class Sampler:
    """Samples of a service, taken every second."""

    def __init__(self, service: Service, data: Path, count_sessions: Callable[[], int]) -> None:
        self._service = service
        self._data = data
        self._count_sessions = count_sessions
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    def take(self) -> None:
        """Take one sample."""
        commits, seconds = _read_commits(self._service.base_url)
        at = time.monotonic() - self._began
        sample = Sample(at, self._count_sessions(), commits, seconds)
        for child in self._service.children:
            _add_process(sample, child.command.name, child.pid)
        sample.files_mb = {
            "WAL": _measure_mb([self._data / "recorder.db-wal"]),
            "database": _measure_mb([self._data / "recorder.db"]),
            "lake log": _measure_mb(self._data.glob("lake/*/*/*/_delta_log/*")),
            "Dagster's files": _measure_mb((self._data / "dagster").rglob("*")),
            "logs": _measure_mb((self._data / "logs").rglob("*")),
        }
        sample.largest_log_mb = max(
            (_measure_mb([log]) for log in (self._data / "logs").rglob("*")), default=0.0
        )
        self.samples.append(sample)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Take a sample every second while the block runs."""

        def take_if_possible() -> None:
            # A busy service answers late, and files end while they are listed.
            with suppress(httpx.HTTPError, OSError):
                self.take()

        with repeated_calls(take_if_possible, _EVERY_S):
            yield


def _add_process(sample: Sample, name: str, pid: int) -> None:
    """Add a process of the service, each of those that it started, and their sum."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        sample.memory_mb[name] = process.memory_info().rss / 1e6
        sample.open_files[name] = process.num_fds()
        below = {child.pid: _read_process(child) for child in process.children(recursive=True)}
        for child, (memory_mb, _) in below.items():
            sample.memory_mb[f"{name}, child {child}"] = memory_mb
        if below:
            sample.memory_mb[f"{name}, children"] = sum(memory_mb for memory_mb, _ in below.values())
            sample.open_files[f"{name}, children"] = sum(files for _, files in below.values())


def _read_process(process: psutil.Process) -> tuple[float, int]:
    """Return the MB of resident memory and the open files of a process; zeros if it has ended."""
    try:
        return process.memory_info().rss / 1e6, process.num_fds()
    except psutil.Error:
        return 0.0, 0


def _read_commits(base_url: str) -> tuple[int, float]:
    """Return the number and the seconds of the commits of ingest."""
    answer = httpx.get(f"{base_url}/metrics", timeout=10, trust_env=False)
    answer.raise_for_status()
    values = {name: float(value) for name, value in _COMMITS.findall(answer.content)}
    return int(values[b"count"]), values[b"sum"]


def _measure_mb(paths: Iterator[Path] | list[Path]) -> float:
    size = 0
    for path in paths:
        with suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size / 1e6


@contextmanager
def repeated_calls(work: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call a function at an interval while the block runs."""
    is_over = threading.Event()

    def call_again() -> None:
        while not is_over.wait(every_s):
            work()

    thread = threading.Thread(target=call_again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
