"""Guard process, as the service holds it: it receives the process groups of all children (`orphan_guard`)."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path


class GuardProcess:
    """Guard process that ends the children if this process is killed."""

    def __init__(
        self, *, keep_open: Sequence[int] = (), on_change: Callable[[list[int]], object] = lambda _: None
    ) -> None:
        """Start the guard.

        Args:
            keep_open: file descriptors that stay open until the guard has ended, such as a lock's.
            on_change: takes the watched groups whenever they change, before a child begins its work.
        """
        self._keep_open = keep_open
        self._on_change = on_change
        self._groups: set[int] = set()
        self._process = self._start_process()

    def watch_group(self, group: int) -> None:
        """Let the guard watch the process group of a child."""
        self._groups.add(group)
        self._on_change(sorted(self._groups))
        self._write_line(f"+{group}")

    def release_group(self, group: int) -> None:
        """Stop watching a group that has ended: the system may give its number to another process."""
        if group in self._groups:
            self._groups.remove(group)
            self._write_line(f"-{group}")
            self._on_change(sorted(self._groups))

    def restart_if_ended(self) -> bool:
        """Start another guard where this one was killed; return whether it did."""
        if self._process.poll() is None:
            return False
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = self._start_process()
        for group in sorted(self._groups):
            self._write_line(f"+{group}")
        return True

    def close(self) -> None:
        """End the guard; it first ends the groups that it still watches."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _start_process(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("orphan_guard.py"))],
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=self._keep_open,
            bufsize=0,
        )

    def _write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed: its successor gets all groups
            self._process.stdin.write(f"{line}\n".encode())
