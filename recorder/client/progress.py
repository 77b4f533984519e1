"""Waiting for an export, with a bar on stderr. Contract §9 (`recorder export --watch`)."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column

from recorder.client.client import Client
from recorder.client.errors import ExportFailed, TookTooLong

_POLL_S = 0.25
#: A large export waits up to 20 s for a process to start; one that waits longer may wait for nobody.
_QUEUED_S = 30.0
_IS_ANYBODY_THERE = "still queued; no process has taken it up. Is Dagster running? `recorder status` says."

Json = dict[str, Any]


def watch_export(client: Client, export_id: str, *, timeout_s: float | None = None) -> Json:
    """The export once it is completed, file by file on a bar meanwhile.

    Where stderr is no terminal there is a line for each state instead. An interrupt leaves the export alone.

    Args:
        timeout_s: seconds after which to give up; None waits as long as it takes.

    Raises:
        ExportFailed: if it failed or was cancelled.
        TookTooLong: if it is not done in time.
    """
    console = Console(stderr=True)
    show = _Bar(console, export_id) if console.is_terminal else _Lines(console, export_id)
    began = time.monotonic()
    with show:
        while True:
            export = client.get_export(export_id)
            waited_s = time.monotonic() - began
            show.update(export, waited_s)
            if export["status"] == "completed":
                return export
            if export["status"] == "failed":
                raise ExportFailed(export)
            if timeout_s is not None and waited_s > timeout_s:
                raise TookTooLong(f"{export_id} is not done", timeout_s)
            time.sleep(_POLL_S)


@contextmanager
def byte_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over bytes on stderr, gone without a terminal; gives what moves it: `(done, total)`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def told(export: Json) -> str:
    """The state of an export in a few words."""
    error, progress = export["error"] or {}, export["progress"]
    if error.get("code") == "cancelled":
        return "cancelled"
    if export["status"] == "completed":
        return (
            f"completed: {export['rows']:,} rows, {export['frames']:,} frames in {export['shards']:,} files"
        )
    if export["status"] == "failed":
        return f"failed: {error.get('code')}"
    if export["status"] == "running":
        total = progress["shards_total"]
        return (
            "running, planning" if total is None else f"running, {progress['shards_done']} of {total} files"
        )
    return str(export["status"])


class _Bar:
    """A line of at most 80 columns that moves, and a last one with the outcome."""

    def __init__(self, console: Console, export_id: str) -> None:
        self._console, self._id = console, export_id
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[times]}", table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task(export_id, total=None, times="")
        self._last = ""
        self._is_warned = False

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
        if self._last:
            # Longer than the terminal it goes on in the next line, whole.
            self._console.print(self._last, highlight=False, soft_wrap=True)

    def update(self, export: Json, waited_s: float) -> None:
        """Show the state, the time it took so far and the time that is left."""
        done, total = export["progress"]["shards_done"], export["progress"]["shards_total"]
        state, times = moving_line(export, waited_s)
        self._progress.update(
            self._task, description=f"{self._id} {state}", completed=done, total=total, times=times
        )
        if export["status"] == "queued" and waited_s > _QUEUED_S and not self._is_warned:
            self._is_warned = True
            self._progress.console.print(_IS_ANYBODY_THERE, highlight=False, soft_wrap=True)
        if export["status"] in ("completed", "failed"):
            self._last = f"{self._id} {told(export)} ({_clock(waited_s)})"


def moving_line(export: Json, waited_s: float) -> tuple[str, str]:
    """Return the state of an export in a few words, and its times; both are short."""
    done, total = export["progress"]["shards_done"], export["progress"]["shards_total"]
    if export["status"] != "running" or total is None:
        return ("planning" if export["status"] == "running" else str(export["status"])), _clock(waited_s)
    left = f", {_clock(waited_s * (total - done) / done)} left" if 0 < done < total else ""
    return f"{done:,} of {total:,} files", f"{_clock(waited_s)}{left}"


def _clock(seconds: float) -> str:
    """Return a time as minutes and seconds, from an hour on as hours and minutes."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} m" if minutes >= 60 else f"{minutes}:{rest:02}"


class _Lines:
    """A line for each state: for logs and pipes."""

    def __init__(self, console: Console, export_id: str) -> None:
        self._console, self._id = console, export_id
        self._said = ""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, export: Json, waited_s: float) -> None:
        """Say what is new."""
        queued_long = export["status"] == "queued" and waited_s > _QUEUED_S
        words = _IS_ANYBODY_THERE if queued_long else told(export)
        state = words.partition(",")[0]
        if state != self._said:
            self._said = state
            self._console.print(f"{self._id} {words}", highlight=False, soft_wrap=True)
