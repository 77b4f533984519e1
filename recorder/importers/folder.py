"""Importing a folder of demonstrations: which files, in which order, what to see meanwhile. Contract §9."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recorder.client.client import Client
from recorder.errors import ValidationFailed
from recorder.importers.miniwob.demonstration import FIRST_STARTED_AT, read_demonstration
from recorder.importers.miniwob.format import SUFFIXES
from recorder.importers.upload import ImportReport, NothingToImport, Source, Upload, upload_recordings
from recorder.limits import WORKFLOW_PATTERN

#: Two keep both sides of a small machine busy; more wait for the service's rate limit together.
PARALLEL = 4


def import_folder(
    path: Path,
    *,
    url: str,
    key: str,
    workflow: str | None = None,
    workflow_prefix: str = "",
    parallel: int = PARALLEL,
    progress: bool = True,
) -> ImportReport:
    """Upload every demonstration under `path`, each as one session.

    A file that cannot be read, or that the service refuses, is named on stderr and skipped. Importing twice
    brings every session in twice.

    Args:
        path: a folder of task folders, one task folder, or one file (`.json.gz`, `.json`).
        workflow: one workflow for all, instead of one for each task.
        workflow_prefix: put before the slug of each task's workflow.
        progress: whether to show a progress bar on stderr.

    Raises:
        NothingToImport: if there is no such file.
        ValidationFailed: if `workflow` is no slug.
        ApiError, Unreachable: if the service cannot be worked with at all.
    """
    if workflow is not None and not re.fullmatch(WORKFLOW_PATTERN.strip("^$"), workflow):
        text = "A workflow is 2 to 64 of a–z, 0–9 and _."
        raise ValidationFailed.of("workflow", "invalid_value", message=text, where="query")
    files = demonstration_files(path)
    began = time.monotonic()
    with Client(url, key) as client, shown_progress(len(files), progress) as on_done:
        sources = demonstration_sources(files, workflow=workflow, workflow_prefix=workflow_prefix)
        report = upload_recordings(client, sources, parallel=parallel, on_done=on_done)
    return replace(report, seconds=round(time.monotonic() - began, 3))


def demonstration_files(path: Path) -> list[Path]:
    """The files under a path, sorted, so that every import gives them the same instants.

    Raises:
        NothingToImport: if there is none.
    """
    found = [path] if path.is_file() else [file for file in path.rglob("*") if file.name.endswith(SUFFIXES)]
    files = sorted(file for file in found if file.is_file())
    if not files:
        raise NothingToImport("*.json.gz or *.json files")
    return files


def demonstration_sources(
    files: list[Path], *, workflow: str | None = None, workflow_prefix: str = ""
) -> Iterator[Source]:
    """Each file as a source; one minute lies between the beginnings of two neighbours."""
    for n, file in enumerate(files):
        read = partial(
            read_demonstration,
            file,
            started_at=_started_at(n),
            workflow=workflow,
            workflow_prefix=workflow_prefix,
        )
        yield Source(f"{file.resolve().parent.name}/{file.name}", read)


def _started_at(n: int) -> datetime:
    return FIRST_STARTED_AT + timedelta(minutes=n)


@contextmanager
def shown_progress(total: int, wanted: bool) -> Iterator[Callable[[Upload], None]]:
    """A bar on stderr; failures are named there with or without it."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}"),
    )
    with Progress(*columns, console=console, disable=not wanted, expand=True) as bar:
        task = bar.add_task("Importing", total=total, failed="")
        failed = 0

        def on_done(upload: Upload) -> None:
            nonlocal failed
            if upload.session_id is None:
                failed += 1
                # File names are printed as they are: brackets in them are no markup.
                console.print(
                    f"skipped {upload.name}: {upload.reason}", markup=False, highlight=False, soft_wrap=True
                )
            bar.update(task, advance=1, failed=f"{failed} skipped" if failed else "")

        yield on_done
