"""Worker process that answers requests within limits of memory and time. Decision 0030.

Content of clients can make its reader take any amount of memory or time, and libraries in C cannot be
interrupted. The kernel ends this process instead; the next request starts another one.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Timer

_PROGRAM = (
    "import sys; sys.path.insert(0, {root!r}); from {module} import {function}; {function}({memory_bytes})"
)


class ProcessEnded(Exception):
    """The process ended before it answered: its time or memory ran out, or the content ended it."""

    def __init__(self, *, is_late: bool) -> None:
        super().__init__("late" if is_late else "ended")
        self.is_late = is_late


class LimitedProcess:
    """Process that answers one request after the other; the first request starts it."""

    def __init__(self, serve: Callable[[int], None], *, memory_bytes: int, seconds: float) -> None:
        """Set what the process runs.

        Args:
            serve: a function of a module, which calls `serve_requests` with its argument, `memory_bytes`.
            memory_bytes: memory beyond what the process has before the first request.
            seconds: time for a request.
        """
        self._program = _PROGRAM.format(
            root=str(Path(__file__).parents[1]),
            module=serve.__module__,
            function=serve.__name__,
            memory_bytes=memory_bytes,
        )
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def request(self, message: bytes) -> bytes:
        """Return the answer to a message. Neither holds a line feed.

        Raises:
            ProcessEnded: if the process ended before it answered.
        """
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        timer = Timer(self._seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(message + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
        if not line.endswith(b"\n"):
            self.end()
            raise ProcessEnded(is_late=is_late)
        return line[:-1]

    def end(self) -> None:
        """End the process; a later request starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-P", "-c", self._program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )


def serve_requests(answer: Callable[[bytes], bytes], memory_bytes: int) -> None:
    """Answer the requests on standard input until it ends.

    Args:
        answer: returns the answer to a message; a `MemoryError` in it ends the process.
        memory_bytes: memory beyond what the process has before the first request.
    """
    limit = read_data_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # A core file would contain pictures.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # If the machine runs out of memory, the kernel ends this process before its parent.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")
    for line in sys.stdin.buffer:
        try:
            message = answer(line[:-1])
        except MemoryError:
            os._exit(1)
        sys.stdout.buffer.write(message + b"\n")
        sys.stdout.buffer.flush()


def read_data_bytes() -> int:
    """Return the size of this process's data as `RLIMIT_DATA` counts it; 0 if it is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return 0
