"""Handle of a worker process of the digest pool, in its parent: socket and current item. Decision 0030."""

import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from multiprocessing import Pipe

from recorder.sealing.digest_messages import (
    DigestItemMessage,
    DigestSetupMessage,
    DigestWantedMessage,
    FromWorker,
    ToWorker,
    decode_from_worker,
    encode,
)
from recorder.sealing.digest_submissions import DigestSubmissionItem, DigestSubmissionTask

_PROGRAM = "recorder.sealing.digest_worker"
_MESSAGE_BYTES = 16 * 1024 * 1024


class DigestWorkerHandle:
    """Handle of a process, with the socket to it and its current item.

    The process runs a program of its own. `multiprocessing` would run the parent's main module again, which
    imports Dagster.
    """

    def __init__(self, setup: DigestSetupMessage) -> None:
        self.connection, child_end = Pipe()
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(child_end.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[child_end.fileno()],
            )
        self.pid = self._process.pid
        self.item: DigestSubmissionItem | None = None
        #: Tasks to compute, the current one first; None while the process fetches the object.
        self.todo: deque[DigestSubmissionTask] | None = None
        self.is_new = True
        self._last_message_s = time.monotonic()
        self._send_message(setup)

    def begin(self, item: DigestSubmissionItem) -> None:
        """Send the worker its next item."""
        self.item, self.todo, self.is_new = item, None, False
        self._last_message_s = time.monotonic()
        self._send_message(
            DigestItemMessage(item.object_key, [task.message for task in item.tasks], item.least_bytes)
        )

    def compute(self, indexes: list[int]) -> None:
        """Let the worker compute the tasks of its item at these indexes."""
        assert self.item is not None
        self.todo = deque(self.item.tasks[index] for index in indexes)
        self._send_message(DigestWantedMessage(indexes))

    def receive(self) -> FromWorker:
        """Return the next message that the worker sent.

        Raises:
            EOFError: if the worker has died.
            OSError: if the worker has died.
            msgspec.MsgspecError: if it sent anything but a message.
        """
        message: FromWorker = decode_from_worker(self.connection.recv_bytes(_MESSAGE_BYTES))
        self._last_message_s = time.monotonic()
        return message

    def seconds_left(self, stall_seconds: float) -> float | None:
        """Return the time until the worker counts as stalled; None while it has no item."""
        return None if self.item is None else self._last_message_s + stall_seconds - time.monotonic()

    def end(self) -> bool:
        """Kill the process, which holds no state to keep; return whether its CPU time ran out."""
        self.connection.close()
        self._process.kill()
        code = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        return code == -signal.SIGPROF

    def _send_message(self, message: ToWorker) -> None:
        # The next read detects a process that has died.
        with suppress(OSError):
            self.connection.send_bytes(encode(message))
