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
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from recorder.client.client import Client
from recorder.client.errors import ExportFailed, TookTooLong

_POLL_S = 0.25
#: A large export waits up to 20 s for a process to start.
_QUEUED_S = 30.0
_IS_ANYBODY_THERE = "still queued; no process has taken it up. Is Dagster running? `recorder status` says."
_BAR_WIDTH = 20

Json = dict[str, Any]


def count_files(number: int) -> str:
    """Return a number of files in words: "1 file", "2 files"."""
    return f"{number:,} file{'' if number == 1 else 's'}"


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
    """Show a bar over bytes on stderr; gives what moves it: `(done, total)`.

    Without a terminal there is no bar, nor before the first move: the total is not known until then.
    """
    # The bar takes the width that the figures leave.
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as bar:
        task = bar.add_task(what, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def told(export: Json) -> str:
    """The state of an export in a few words."""
    error, progress = export["error"] or {}, export["progress"]
    if error.get("code") == "cancelled":
        return "cancelled"
    if export["status"] == "completed":
        files = count_files(export["shards"])
        return f"completed: {export['rows']:,} rows, {export['frames']:,} frames in {files}"
    if export["status"] == "failed":
        return f"failed: {error.get('code')}"
    if export["status"] == "running":
        total = progress["shards_total"]
        if total is None:
            return "running, planning"
        return f"running, {progress['shards_done']:,} of {count_files(total)}"
    return str(export["status"])


class _Bar:
    """A line on a terminal that ends as one with the outcome; no width cuts anything off."""

    def __init__(self, console: Console, export_id: str) -> None:
        self._console, self._id = console, export_id
        self._status = console.status(export_id)
        self._running_since_s: float | None = None
        self._has_warned = False

    def __enter__(self) -> None:
        self._status.start()

    def __exit__(self, *error: object) -> None:
        self._status.stop()

    def update(self, export: Json, waited_s: float) -> None:
        """Show where it stands."""
        status = export["status"]
        if status in ("completed", "failed"):
            self._status.stop()
            self._print(f"{told(export)}, {_clock(waited_s)}")
            return
        if status == "queued" and waited_s > _QUEUED_S and not self._has_warned:
            self._has_warned = True
            self._print(_IS_ANYBODY_THERE)
        if status == "running" and self._running_since_s is None:
            self._running_since_s = waited_s
        self._status.update(self._line(export, waited_s))

    def _line(self, export: Json, waited_s: float) -> Text:
        done, total = export["progress"]["shards_done"], export["progress"]["shards_total"]
        times = _clock(waited_s)
        if total is None or export["status"] == "queued":
            return Text(f"{self._id} {told(export)}, {times}")
        if done:
            left_s = (waited_s - (self._running_since_s or 0.0)) * (total - done) / done
            times += f", {_clock(left_s)} left"
        begin = f"{self._id} {done:,} of {count_files(total)} "
        # The spinner and a space stand before the line.
        width = max(0, min(_BAR_WIDTH, self._console.width - len(begin) - len(times) - 4))
        full = width * done // total if total else 0
        return Text.assemble(
            begin, ("━" * full, "green"), ("━" * (width - full), "dim"), " " if width else "", times
        )

    def _print(self, words: str) -> None:
        self._console.print(f"{self._id} {words}", highlight=False, markup=False, soft_wrap=True)


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


def _clock(seconds: float) -> str:
    """Return a duration as m:ss, from an hour on as h:mm:ss."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
