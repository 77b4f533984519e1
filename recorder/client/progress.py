"""Progress bars on stderr: of exports that a command waits for, and of downloaded or checked bytes.

Contract §9 (`recorder export --watch`).
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from recorder.client.client import Client
from recorder.client.transport import Json
from recorder.number_formats import format_count
from recorder.progress_bars import open_progress_bar
from recorder.shell_commands import wrap_for_terminal

#: A large export waits up to 20 s for a process to start.
_QUEUED_S = 30.0
#: Shows whether Dagster runs.
_STATUS_COMMAND = "recorder status"
_BAR_WIDTH = 20


def watch_export_progress(
    client: Client, export_id: str, *, timeout_s: float = math.inf, status_command: str = _STATUS_COMMAND
) -> Json:
    """Wait until an export is completed, showing a progress bar, and return it.

    Without a terminal on stderr each state is printed on a line. An interrupt does not cancel the export.

    Args:
        client: client of the service.
        export_id: the export.
        timeout_s: most seconds to wait.
        status_command: command that shows whether Dagster runs on the service's data folder.

    Raises:
        ExportFailed: if it failed or was cancelled.
        TookTooLong: if it is not completed within `timeout_s` seconds.
    """
    console = Console(stderr=True)
    kind = _ProgressBar if console.is_terminal else _ProgressLines
    show = kind(console, export_id, status_command)
    began = time.monotonic()
    with show:
        return client.wait_export(
            export_id,
            timeout_s=timeout_s,
            on_progress=lambda export: show.update(export, time.monotonic() - began),
        )


@contextmanager
def byte_progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar over bytes on stderr; yield the function that moves it: `(done, total)`.

    There is no bar without a terminal, nor before the first call: the total is not known until then.
    """
    figures = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with open_progress_bar(what, *figures, is_wide=True, total=None, visible=False) as update:
        yield lambda done, total: update(completed=done, total=total, visible=True)


def describe_export_state(export: Json) -> str:
    """Return the state of an export in a few words."""
    error, progress = export["error"] or {}, export["progress"]
    if error.get("code") == "cancelled":
        return "cancelled"
    if export["status"] == "completed":
        rows, frames = format_count(export["rows"], "row"), format_count(export["frames"], "frame")
        return f"completed: {rows}, {frames} in {format_count(export['shards'], 'file')}"
    if export["status"] == "failed":
        return f"failed: {error.get('code')}"
    if progress.get("message"):
        return f"{export['status']}: {progress['message']}"
    if export["status"] == "running":
        total = progress["shards_total"]
        if total is None:
            return "running, planning"
        return f"running, {progress['shards_done']:,} of {format_count(total, 'file')}"
    return str(export["status"])


def _describe_long_queue(status_command: str) -> str:
    return f"still queued; no process has taken it up. Is Dagster running? `{status_command}` shows it."


class _ProgressBar:
    """Progress line on a terminal that ends with the outcome; it fits every width."""

    def __init__(self, console: Console, export_id: str, status_command: str = _STATUS_COMMAND) -> None:
        self._console, self._id, self._status_command = console, export_id, status_command
        self._status = console.status(export_id)
        self._running_since_s: float | None = None
        self._has_warned = False

    def __enter__(self) -> None:
        self._status.start()

    def __exit__(self, *error: object) -> None:
        self._status.stop()

    def update(self, export: Json, waited_s: float) -> None:
        """Show the current state."""
        status = export["status"]
        if status in ("completed", "failed"):
            self._status.stop()
            self._print_progress_line(
                f"{describe_export_state(export)}, {_format_progress_duration(waited_s)}"
            )
            return
        if status == "queued" and waited_s > _QUEUED_S and not self._has_warned:
            self._has_warned = True
            self._print_progress_line(_describe_long_queue(self._status_command))
        if status == "running" and self._running_since_s is None:
            self._running_since_s = waited_s
        self._status.update(self._format_progress_line(export, waited_s))

    def _format_progress_line(self, export: Json, waited_s: float) -> Text:
        done, total = export["progress"]["shards_done"], export["progress"]["shards_total"]
        times = _format_progress_duration(waited_s)
        if total is None or export["status"] == "queued":
            return Text(f"{self._id} {describe_export_state(export)}, {times}")
        if done:
            left_s = (waited_s - (self._running_since_s or 0.0)) * (total - done) / done
            times += f", {_format_progress_duration(left_s)} left"
        begin = f"{self._id} {done:,} of {format_count(total, 'file')} "
        # The spinner and a space precede the line.
        width = max(0, min(_BAR_WIDTH, self._console.width - len(begin) - len(times) - 4))
        full = width * done // total if total else 0
        return Text.assemble(
            begin, ("━" * full, "green"), ("━" * (width - full), "dim"), " " if width else "", times
        )

    def _print_progress_line(self, words: str) -> None:
        line = wrap_for_terminal(f"{self._id} {words}", indent="  ")
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class _ProgressLines:
    """Progress as one line for each state, for logs and pipes."""

    def __init__(self, console: Console, export_id: str, status_command: str = _STATUS_COMMAND) -> None:
        self._console, self._id, self._status_command = console, export_id, status_command
        self._printed_state = ""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, export: Json, waited_s: float) -> None:
        """Print a state that is new."""
        queued_long = export["status"] == "queued" and waited_s > _QUEUED_S
        words = _describe_long_queue(self._status_command) if queued_long else describe_export_state(export)
        state = words.partition(",")[0]
        if state != self._printed_state:
            self._printed_state = state
            line = wrap_for_terminal(f"{self._id} {words}", indent="  ")
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _format_progress_duration(seconds: float) -> str:
    """Return a duration as m:ss, from an hour on as h:mm:ss."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
