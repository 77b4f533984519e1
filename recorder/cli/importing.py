"""`recorder import`: recordings made elsewhere. Contract §9."""

from pathlib import Path
from typing import Annotated

import typer

from recorder.cli.options import DEFAULT_URL, AsJson, Key, Url, print_json


def import_(
    path: Annotated[
        Path, typer.Argument(exists=True, help="Folder of task folders, one of them, or one file.")
    ],
    key: Key,
    url: Url = DEFAULT_URL,
    workflow: Annotated[
        str | None, typer.Option(help="One workflow for all; the task goes into metadata.")
    ] = None,
    workflow_prefix: Annotated[str, typer.Option(help="Put before the slug of each task.")] = "",
    as_json: AsJson = False,
) -> None:
    """Bring in demonstrations recorded elsewhere (MiniWoB++ files), each as one session."""
    from recorder.importers.folder import import_folder

    report = import_folder(path, url=url, key=key, workflow=workflow, workflow_prefix=workflow_prefix)
    summary = {
        "sessions": report.sessions,
        "events": report.events,
        "frames": report.frames,
        "failed": [{"file": name, "reason": reason} for name, reason in report.failed],
        "seconds": report.seconds,
    }
    if as_json:
        print_json(summary)
    brought = f"{report.sessions} sessions, {report.events} events, {report.frames} frames"
    typer.echo(f"{brought} in {report.seconds:.1f} s; {len(report.failed)} files skipped.", err=True)
    raise typer.Exit(1 if report.failed else 0)
