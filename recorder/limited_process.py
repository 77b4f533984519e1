"""Worker process that answers requests within limits of memory and time. Decision 0030.

Content of clients can make its reader take any amount of memory or time, and libraries in C cannot be
interrupted. The kernel ends this process instead; the next request starts another one.
"""

import math
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

_PROGRAM = (
    "import sys; sys.path.insert(0, {root!r}); from {module} import {function}; "
    "from recorder.limited_process import limit_processor_time; "
    "limit_processor_time({processor_seconds}); {function}({memory_bytes})"
)
_READ_BYTES = 64 * 1024
#: A long request in a process that gives way to others may take so many times its processor time: it waits
#: for a processor or a store. On a machine with ten times the work that it can do, four were too few.
WAITING_FACTOR = 10.0


class ProcessEnded(Exception):
    """The process ended before it answered: its time or memory ran out, or the content ended it."""

    def __init__(self, *, is_late: bool) -> None:
        super().__init__("late" if is_late else "ended")
        self.is_late = is_late


#: Answer to a message; `ProcessEnded` in place of one; None while an answer takes longer than a caller waits.
Answer = bytes | ProcessEnded | None


class LimitedProcess:
    """Process that answers one request after the other; the first request starts it."""

    def __init__(
        self,
        serve: Callable[[int], None],
        *,
        memory_bytes: int,
        seconds: float,
        processor_seconds: float | None = None,
    ) -> None:
        """Set what the process runs.

        Args:
            serve: function of a module that calls `serve_limited_process` with its argument, `memory_bytes`.
            memory_bytes: memory beyond what the process has before the first request.
            seconds: time for a request.
            processor_seconds: processor time for all requests, if that is limited too: to wait for a
                processor does not count.
        """
        self._program = _PROGRAM.format(
            root=str(Path(__file__).parents[1]),
            module=serve.__module__,
            function=serve.__name__,
            memory_bytes=memory_bytes,
            processor_seconds=processor_seconds,
        )
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: threading.Thread | None = None
        #: Whether the process has started, so that it works on the messages that it has.
        self.is_ready = False
        #: Bytes after the last answer that was returned.
        self._received = bytearray()

    def request(self, message: bytes) -> bytes:
        """Return the answer to a message. Neither holds a line feed.

        Raises:
            ProcessEnded: if the process ended before it answered.
        """
        (answer,) = self.request_each([message])
        if isinstance(answer, ProcessEnded):
            raise answer
        assert answer is not None
        return answer

    def request_each(
        self, messages: Sequence[bytes], *, patience_s: float | None = None
    ) -> Generator[Answer, None, None]:
        """Yield the answers to messages, in their order; `ProcessEnded` for a message that ended the process.

        The process has the next message as soon as it has answered one, so it never waits for the caller. A
        message that ends it leaves the others to a new process. An iterator that is closed before the last
        answer ends the process.

        Args:
            messages: the messages; none holds a line feed.
            patience_s: after so many seconds without an answer None is yielded, each time.
        """
        count = 0
        try:
            while count < len(messages):
                if count == 0 or self._process is None:
                    self.start()
                    self._send(messages[count:])
                until_s = time.monotonic() + self._seconds
                try:
                    while (line := self._read_line(until_s, patience_s)) is None:
                        yield None
                except ProcessEnded as ended:
                    self.end()
                    count += 1
                    yield ended
                else:
                    count += 1
                    yield line
        finally:
            if count < len(messages):
                self.end()

    def start(self) -> None:
        """Start the process, unless there is one; it need not wait for the first request."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )

    def end(self) -> None:
        """End the process; a later request starts another one."""
        process, self._process, self.is_ready = self._process, None, False
        self._received.clear()
        if process is not None:
            process.kill()
            if self._writer is not None:
                self._writer.join()
            process.communicate()

    def _send(self, messages: Sequence[bytes]) -> None:
        """Write messages in a thread, so that no answer waits for a message that does not fit the pipe."""
        assert self._process is not None and self._process.stdin is not None
        self._writer = threading.Thread(
            target=_write_limited_process_lines,
            args=(self._process.stdin, messages),
            name="messages",
            daemon=True,
        )
        self._writer.start()

    def _read_line(self, until_s: float, patience_s: float | None) -> bytes | None:
        """Return the next answer; None if it does not come within the patience.

        The first line, which is empty, says that the process is ready.

        Raises:
            ProcessEnded: if the process ended, or the time did.
        """
        assert self._process is not None and self._process.stdout is not None
        output = self._process.stdout.fileno()
        readable = select.poll()
        readable.register(output, select.POLLIN)
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            left_s = until_s - time.monotonic()
            wait_s = left_s if patience_s is None else min(patience_s, left_s)
            if not readable.poll(max(0.0, 1000 * wait_s)):
                if time.monotonic() >= until_s:
                    raise ProcessEnded(is_late=True)
                return None
            chunk = os.read(output, _READ_BYTES)
            if not chunk:
                raise ProcessEnded(is_late=False)
            self._received += chunk
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        if line or self.is_ready:
            return line
        self.is_ready = True
        return self._read_line(until_s, patience_s)


def _write_limited_process_lines(pipe: IO[bytes], messages: Sequence[bytes]) -> None:
    # The reader of the answers notices a process that ended.
    with suppress(BrokenPipeError):
        for message in messages:
            pipe.write(message + b"\n")
            pipe.flush()


def serve_limited_process(answer: Callable[[bytes], bytes], memory_bytes: int) -> None:
    """Answer the requests on standard input until it ends.

    A signal to the whole process group, which stops the parent, does not end an answer: the parent would
    count it as a failure of the content.

    Args:
        answer: returns the answer to a message; a `MemoryError` in it ends the process.
        memory_bytes: memory beyond what the process has before the first request.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    limit_process_memory(measure_process_data_segment() + memory_bytes)
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        try:
            message = answer(line[:-1])
        except MemoryError:
            os._exit(1)
        sys.stdout.buffer.write(message + b"\n")
        sys.stdout.buffer.flush()


def limit_process_memory(limit_bytes: int) -> None:
    """Set the limit of this process's memory; if the machine has none left, it is ended first."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    # A core file would contain pictures.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")


def end_with_parent() -> None:
    """End this process when its parent ends, which holds the other end of standard input."""
    while os.read(0, 1):
        pass
    os._exit(1)


def read_peak_memory() -> int:
    """Return the most bytes that this process held so far.

    On Linux `ru_maxrss` begins with the peak of the parent.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def limit_processor_time(seconds: float | None) -> None:
    """Let the kernel end this process once it has used so many seconds more of a processor; None: never."""
    if seconds is not None:
        most_s = math.ceil(time.process_time() + seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))


def measure_process_data_segment() -> int:
    """Return the size of this process's data as `RLIMIT_DATA` counts it; 0 if it is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return 0
