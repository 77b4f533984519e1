"""Worker processes of the digest pool, as the pool's process sees them. Decision 0030."""

import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from multiprocessing import Pipe

from recorder.sealing.digest_jobs import Item, Task
from recorder.sealing.digest_messages import (
    FromWorker,
    Setup,
    ToWorker,
    Wanted,
    WorkItem,
    decode_from_worker,
    encode,
)

_PROGRAM = "recorder.sealing.digest_worker"
_MESSAGE_BYTES = 16 * 1024 * 1024


class WorkerProcess:
    """A process, the socket to it, and what it works on.

    A program of its own and no child of `multiprocessing`: that one would run the parent's main module again,
    which imports Dagster.
    """

    def __init__(self, setup: Setup) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        self.pid = self._process.pid
        self.item: Item | None = None
        #: Tasks that it still has to compute, the one under way first; None while it fetches the object.
        self.todo: deque[Task] | None = None
        self.is_new = True
        self._heard_at = time.monotonic()
        self._send(setup)

    def begin(self, item: Item) -> None:
        """Send the worker its next item."""
        self.item, self.todo, self.is_new = item, None, False
        self._heard_at = time.monotonic()
        self._send(WorkItem(item.tasks[0].object_key, [task.message for task in item.tasks]))

    def compute(self, places: list[int]) -> None:
        """Let the worker compute these tasks of its item."""
        assert self.item is not None
        self.todo = deque(self.item.tasks[place] for place in places)
        self._send(Wanted(places))

    def receive(self) -> FromWorker:
        """Read a message.

        Raises:
            EOFError, OSError: if the worker has died.
            msgspec.MsgspecError: if it sent something else.
        """
        message: FromWorker = decode_from_worker(self.connection.recv_bytes(_MESSAGE_BYTES))
        self._heard_at = time.monotonic()
        return message

    def seconds_left(self, stall_seconds: float) -> float | None:
        """Return the time until the worker counts as stalled; None while it has nothing to do."""
        return None if self.item is None else self._heard_at + stall_seconds - time.monotonic()

    def end(self) -> bool:
        """End the process, which holds nothing that has to be kept; return whether its CPU time ran out."""
        self.connection.close()
        self._process.kill()
        code = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        return code == -signal.SIGPROF

    def _send(self, message: ToWorker) -> None:
        # One that has died is found when it is read.
        with suppress(OSError):
            self.connection.send_bytes(encode(message))
