"""Pool of scan processes, on the service's side: fair queue, pipes, restarts.

Contract §3 (masking).
"""

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from recorder.errors import Unavailable
from recorder.fair_scheduling import RoundRobinQueue
from recorder.masking.scan_process import ScanJob, ScanReport, encode_scan_message

_Item = TypeVar("_Item")
_ROOT = str(Path(__file__).parents[2])
# The package is imported from where this file is, whatever else is installed.
_PROGRAM = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from recorder.masking.scan_process import main; main()"
)
#: A job may take this much longer by the clock than by CPU time, on a machine that does other work too.
_CLOCK_FACTOR, _CLOCK_SECONDS = 20, 30.0
_PIPE_BYTES = 1024 * 1024
#: Waiting jobs of one workspace, and the longest wait after which a job is refused.
_MOST_WAITING, _LONGEST_WAIT_S = 128, 20.0


class MaskingBusy(Unavailable):
    """Too many bodies of one workspace wait to be masked."""

    def __init__(self) -> None:
        text = "Too many bodies of this workspace wait to be masked; send fewer at once, and try again."
        super(Unavailable, self).__init__(text)


class ScanTimeout(Exception):
    """A job used up its CPU time, or its process died."""

    def __init__(self, slowest: str | None) -> None:
        super().__init__()
        #: Name of the rule that took the most time; None if unknown.
        self.slowest = slowest


class FairQueue(Generic[_Item]):
    """Round-robin queue of many owners' items, with few items of an owner at work at a time."""

    def __init__(self, *, per_owner: int, waiting: int) -> None:
        self._per_owner = per_owner
        self._waiting = waiting
        self._queue = RoundRobinQueue[_Item]()
        self._working: dict[str, int] = {}
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, owner: str, item: _Item) -> bool:
        """Add an item; return False if too many of the owner wait, or the queue is closed."""
        with self._changed:
            if self._is_closed or len(self._queue.list_items(owner)) >= self._waiting:
                return False
            self._queue.add(owner, item)
            self._changed.notify()
            return True

    def take(self) -> tuple[str, _Item] | None:
        """Wait for the next item of the next owner; return None once the queue is closed."""
        with self._changed:
            while not self._is_closed:
                taken = self._queue.take(lambda owner, _: self._working.get(owner, 0) < self._per_owner)
                if taken is not None:
                    self._working[taken[0]] = self._working.get(taken[0], 0) + 1
                    return taken
                self._changed.wait()
        return None

    def finish(self, owner: str) -> None:
        """Release the share of an item that was taken and is done."""
        with self._changed:
            self._working[owner] -= 1
            if not self._working[owner]:
                del self._working[owner]
            self._changed.notify()

    def close(self) -> list[_Item]:
        """Refuse further items; return those that wait."""
        with self._changed:
            self._is_closed = True
            left, self._queue = list(self._queue), RoundRobinQueue()
            self._changed.notify_all()
        return left


@dataclass
class _Waiting:
    job: ScanJob
    future: "Future[ScanReport]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class ScanPool:
    """Scan processes of one API process; each starts when a job needs it."""

    def __init__(
        self,
        processes: int,
        *,
        per_workspace: int = 1,
        most_waiting: int = _MOST_WAITING,
        longest_wait_s: float = _LONGEST_WAIT_S,
    ) -> None:
        """Start no process yet.

        Args:
            processes: number of processes.
            per_workspace: jobs of one workspace that run at once.
            most_waiting: jobs of one workspace that wait.
            longest_wait_s: a job that waited for longer is not run.
        """
        self._queue = FairQueue[_Waiting](per_owner=per_workspace, waiting=most_waiting)
        self._longest_wait_s = longest_wait_s
        self._processes = [_ScanProcess() for _ in range(processes)]
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()

    def submit(self, workspace_id: str, job: ScanJob) -> "Future[ScanReport]":
        """Add a job; its result is the final report, or an `ScanTimeout`.

        Raises:
            MaskingBusy: If too many jobs of the workspace wait.
        """
        waiting = _Waiting(job)
        if not self._queue.put(workspace_id, waiting):
            raise MaskingBusy
        with self._starting:
            if not self._threads:
                self._threads = [
                    threading.Thread(target=self._serve_scans, args=(process,), name="masking", daemon=True)
                    for process in self._processes
                ]
                for thread in self._threads:
                    thread.start()
        return waiting.future

    def close(self) -> None:
        """Stop all processes; jobs that wait or run end with an error."""
        for waiting in self._queue.close():
            if waiting.future.set_running_or_notify_cancel():
                waiting.future.set_exception(Unavailable("Masking"))
        for process in self._processes:
            process.stop()
        for thread in self._threads:
            thread.join()

    def _serve_scans(self, process: "_ScanProcess") -> None:
        """Run queued scans in one process until the pool is stopped; each thread has its own process."""
        while (taken := self._queue.take()) is not None:
            owner, waiting = taken
            try:
                if waiting.future.set_running_or_notify_cancel():
                    _settle_scan(waiting, process.run, self._longest_wait_s)
            finally:
                self._queue.finish(owner)
        process.discard()


def _settle_scan(waiting: _Waiting, run: Callable[[ScanJob], ScanReport], longest_wait_s: float) -> None:
    """Run a scan and set its result or error, unless it waited for too long."""
    try:
        if time.monotonic() - waiting.since > longest_wait_s:
            raise MaskingBusy
        waiting.future.set_result(run(waiting.job))
    except Exception as error:
        waiting.future.set_exception(error)


class _ScanProcess:
    """Handle of one scan process, which is started again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._lock = threading.Lock()

    def run(self, job: ScanJob) -> ScanReport:
        """Run a job in the process, which is started if there is none.

        Raises:
            ScanTimeout: If the process was killed during the job.
        """
        process = self._start_process()
        assert process.stdin is not None and process.stdout is not None
        reports: list[ScanReport] = []
        deadline = time.monotonic() + job.budget_s * _CLOCK_FACTOR + _CLOCK_SECONDS
        try:
            _write_scan_pipe(process.stdin.fileno(), encode_scan_message(job), deadline)
            while (report := _read_scan_report(process.stdout.fileno(), deadline)).rule is not None:
                reports.append(report)
        except (EOFError, BrokenPipeError, TimeoutError) as error:
            self.discard()
            raise ScanTimeout(_find_slowest_rule(reports, job.budget_s)) from error
        if report.is_last:
            self.discard()
        return report

    def stop(self) -> None:
        """Kill the process from any thread, and start no other."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                self._process.kill()

    def discard(self) -> None:
        """Kill and drop the process; for the thread that serves it."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _start_process(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is not None:
            self.discard()  # it was killed between two jobs
        with self._lock:
            if self._is_stopped:
                raise Unavailable("Masking")
            if self._process is None:
                # Unbuffered, so that `poll` sees what has arrived. The process needs no variable of the
                # service's environment, such as its secret.
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={},
                )
                assert self._process.stdin is not None
                os.set_blocking(self._process.stdin.fileno(), False)
            return self._process


_reports = msgspec.msgpack.Decoder(ScanReport)


def _read_scan_report(descriptor: int, deadline: float) -> ScanReport:
    size = int.from_bytes(_read_scan_pipe(descriptor, 8, deadline), "big")
    return _reports.decode(_read_scan_pipe(descriptor, size, deadline))


def _read_scan_pipe(descriptor: int, size: int, deadline: float) -> bytes:
    """Read so many bytes from a pipe.

    Raises:
        EOFError: If the process died.
        TimeoutError: If the deadline passes.
    """
    data = bytearray()
    while len(data) < size:
        _wait_for_scan_pipe(descriptor, select.POLLIN, deadline)
        part = os.read(descriptor, min(size - len(data), _PIPE_BYTES))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _write_scan_pipe(descriptor: int, data: bytes, deadline: float) -> None:
    """Write all bytes to a pipe that does not block.

    Raises:
        BrokenPipeError: If the process died.
        TimeoutError: If the deadline passes.
    """
    rest = memoryview(data)
    while rest:
        _wait_for_scan_pipe(descriptor, select.POLLOUT, deadline)
        with suppress(BlockingIOError):
            rest = rest[os.write(descriptor, rest) :]


def _wait_for_scan_pipe(descriptor: int, event: int, deadline: float) -> None:
    poll = select.poll()  # `select` refuses descriptors above 1023, of which a busy server has many
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
        raise TimeoutError


def _find_slowest_rule(reports: list[ScanReport], budget_s: float) -> str | None:
    """Return the rule that took the most CPU time, including the one at work when the process was killed."""
    if not reports:
        return None
    ends = [report.used_s for report in reports[1:]] + [budget_s]
    times = {
        report.rule: end - report.used_s for report, end in zip(reports, ends, strict=True) if report.rule
    }
    return max(times, key=lambda name: times[name]) if times else None
