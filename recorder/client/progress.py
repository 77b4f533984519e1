"""Waiting for an export with a progress bar on stderr. Contract §9 (`recorder export --watch`)."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from recorder.client.client import Client
from recorder.client.errors import ExportFailed, TookTooLong

_POLL_S = 0.25


def watch_export(client: Client, export_id: str, *, timeout_s: float = 3600.0) -> dict[str, Any]:
    """The export once it is completed, shard by shard on a bar meanwhile.

    Raises:
        ExportFailed: if it failed.
        TookTooLong: if it is not done in time.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    until = time.monotonic() + timeout_s
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(f"{export_id} queued", total=None)
        while time.monotonic() < until:
            export = client.get_export(export_id)
            shown = export["progress"]
            progress.update(
                bar,
                description=f"{export_id} {export['status']}",
                completed=shown["shards_done"],
                total=shown["shards_total"],
            )
            if export["status"] == "completed":
                return export
            if export["status"] == "failed":
                raise ExportFailed(export)
            time.sleep(_POLL_S)
    raise TookTooLong(f"{export_id} is not done", timeout_s)
