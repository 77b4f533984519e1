"""Child processes in process groups: what to start, start with a log, restart, and stop with descendants."""

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import kill, killpg
from pathlib import Path
from types import FrameType

from recorder.errors import Unavailable
from recorder.logs import START_REFUSED
from recorder.process_states import is_process_stopped
from recorder.supervisor.guard_handle import GuardProcess
from recorder.supervisor.liveness import Liveness, RestartPauses

# A silent process is asked to end and killed after so long; a stopped one (SIGSTOP) is killed at once.
_TERM_GRACE_S = 5.0
# A process that was just killed leaves its port and files within moments.
_SHORTEST_PAUSE_S = 1.0
_MOST_CHARACTERS = 400
_LEFTOVER_POLL_S = 0.1
#: Shell script of a child: it becomes the command after a line on stdin, or ends with its parent.
_AFTER_A_LINE = 'read -r go && exec "$@" < /dev/null'
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True)
class Command:
    """Process to start, with its readiness and liveness probes."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    is_ready: Callable[[], bool]
    #: Return whether the process answers its probe; takes half of the allowed silence at most.
    answers: Callable[[], bool]


class ChildFailed(Unavailable):
    """A child ended or did not become ready; the message is one sentence without a traceback."""

    def __init__(self, command: Command, *, exit_code: int | None = None) -> None:
        last = _read_last_line_of_child_log(command.log)
        if exit_code == START_REFUSED and last:
            super(Unavailable, self).__init__(last)
            return
        ending = f" The last line: {last}" if last else ""
        super(Unavailable, self).__init__(
            f"The {command.name} did not start; its log is {command.log}.{ending}"
        )


class ChildProcess:
    """Process of a service, with its liveness and restarts."""

    def __init__(
        self, command: Command, *, silence_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a child; it is not started.

        Args:
            command: the process.
            silence_s: seconds without an answer after which it counts as silent.
            now: a clock that only rises.
        """
        self.command = command
        self.liveness = Liveness(silence_s=silence_s, now=now)
        self._now = now
        self._pauses = RestartPauses()
        self._process: subprocess.Popen[bytes] | None = None
        self._restart_at: float | None = None
        self._kill_at: float | None = None
        #: Seconds without an answer after which the process was last asked to end.
        self.silent_s = 0.0

    @property
    def pid(self) -> int:
        """Id of the process, and of the group that holds it and everything it starts."""
        assert self._process is not None
        return self._process.pid

    def start(self, guard: GuardProcess) -> None:
        """Start the process as the leader of a new session, with signals as they are by default.

        It waits in its shell until the guard watches it, so that a kill of this process leaves no orphan.

        Raises:
            OSError: if the system has no room for another process or open file.
        """
        self.command.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.command.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _AFTER_A_LINE, self.command.name, *self.command.arguments],
                env=dict(self.command.environment),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        guard.watch_group(self.pid)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(b"go\n")
        self._restart_at = self._kill_at = None
        self.liveness.begin()

    @property
    def was_started(self) -> bool:
        """Return whether the process was ever started."""
        return self._process is not None

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process is None or self._process.poll() is not None

    @property
    def failure(self) -> ChildFailed:
        """The error for a start that did not succeed."""
        return ChildFailed(self.command, exit_code=self._process.poll() if self._process else None)

    def end_group(self) -> None:
        """Kill processes that the process left in its group."""
        signal_process_group(self.pid, signal.SIGKILL)

    def ask_to_end(self) -> None:
        """Ask the process and its group to end; `is_overdue` says when they must be killed."""
        # Read here: an answer, or an excuse, while the process ends would begin the silence again.
        self.silent_s = self.liveness.silent_s
        self._kill_at = self._now() + (0.0 if is_process_stopped(self.pid) else _TERM_GRACE_S)
        signal_process_group(self.pid, signal.SIGTERM)

    @property
    def is_ending(self) -> bool:
        """Return whether the process was asked to end."""
        return self._kill_at is not None

    @property
    def is_overdue(self) -> bool:
        """Return whether the process was asked to end and its grace is over."""
        return self._kill_at is not None and self._now() >= self._kill_at

    def plan_restart(self, *, since_s: float = 0.0) -> float | None:
        """Plan the next start; return the seconds until then, None while it is planned already.

        Args:
            since_s: seconds of the pause that have passed: a silent process has paused long enough.
        """
        if self._restart_at is not None:
            return None
        pause = self._pauses.next(healthy_s=self.liveness.healthy_s)
        left = max(_SHORTEST_PAUSE_S, pause - since_s)
        self._restart_at = self._now() + left
        return left

    def postpone_start(self) -> float:
        """Plan the next start after one that the system refused; return the seconds until then."""
        self._restart_at = None
        pause = self.plan_restart()
        assert pause is not None
        return pause

    def is_due(self) -> bool:
        """Return whether the planned restart is due."""
        return self._restart_at is not None and self._now() >= self._restart_at

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended or the time is up."""
        if self._process is not None:
            try:
                self._process.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                return


def stop_child_processes(children: Sequence[ChildProcess], *, grace_s: float) -> None:
    """Ask these processes and their descendants to end, and kill them when the grace is over."""
    started = [child for child in children if child.was_started]
    for child in started:
        signal_process_group(child.pid, signal.SIGTERM)
    until = time.monotonic() + grace_s
    for child in started:
        child.wait(until - time.monotonic())
    for child in started:
        child.end_group()
        child.wait(1.0)


def signal_process_group(group: int, number: signal.Signals) -> None:
    """Send a signal to every process of a group, if any is left."""
    try:
        killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def reset_child_process_signals() -> None:
    """Let children receive SIGINT and SIGTERM even if this process was started with them ignored.

    A shell without job control starts `recorder up &` with SIGINT ignored; children inherit that, and
    Dagster then ignores SIGTERM too. A handler, unlike an ignored signal, is not inherited.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, _ignore_signal)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing; unlike SIG_IGN, children do not inherit this."""


def end_leftover_processes(groups: Sequence[int], marker: str, *, grace_s: float) -> int:
    """End the processes of a service that was killed together with its guard; return their number.

    The system reuses numbers of groups, so a process must also carry the deployment's marker.

    Args:
        groups: process groups that the service had started.
        marker: variable and value in the environment of each child.
        grace_s: seconds between the request to end and the kill.
    """
    pids = _find_leftover_processes(groups, marker)
    for pid in pids:
        _signal_process(pid, signal.SIGTERM)
    until = time.monotonic() + grace_s
    remaining = pids
    while remaining and time.monotonic() < until:
        time.sleep(_LEFTOVER_POLL_S)
        remaining = _find_leftover_processes(groups, marker)
    while remaining := _find_leftover_processes(groups, marker):
        for pid in remaining:
            _signal_process(pid, signal.SIGKILL)
        time.sleep(_LEFTOVER_POLL_S)
    return len(pids)


def _find_leftover_processes(groups: Sequence[int], marker: str) -> list[int]:
    """Return the processes of these groups that carry the marker; none on systems without /proc."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*") if groups else ():
        with suppress(OSError):
            state, _, group = (folder / "stat").read_text().rpartition(") ")[2].split()[:3]
            is_marked = marker.encode() in (folder / "environ").read_bytes().split(b"\0")
            if int(group) in groups and state not in "ZX" and is_marked:
                pids.append(int(folder.name))
    return pids


def _signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    with suppress(ProcessLookupError, PermissionError):
        kill(pid, number)


def _read_last_line_of_child_log(log: Path) -> str:
    """Return the last line of a log, or the sentence of a JSON line."""
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = _COLOUR.sub("", text).splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    with suppress(ValueError):
        entry = json.loads(last)
        if isinstance(entry, dict) and isinstance(entry.get("event"), str):
            return str(entry["event"])
    return last[:_MOST_CHARACTERS]
