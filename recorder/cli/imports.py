"""`recorder import`: recordings made elsewhere. Contract §9."""

from pathlib import Path
from typing import Annotated

import typer

from recorder.cli.options import DEFAULT_URL, AsJson, Key, Url, connected, print_json


def import_(
    path: Annotated[
        Path,
        typer.Argument(exists=True, help="Folder of task folders, one of them, one file, or an event log."),
    ],
    key: Key,
    url: Url = DEFAULT_URL,
    workflow: Annotated[
        str | None, typer.Option(help="One workflow for all; the task goes into metadata.")
    ] = None,
    workflow_prefix: Annotated[
        str, typer.Option(help="Put before the slug of each task, or before the log's name.")
    ] = "",
    activity: Annotated[
        str, typer.Option(help="Attribute of a log that names the activity; several with + between.")
    ] = "concept:name",
    success: Annotated[
        list[str], typer.Option(help="Traces that ended well: attribute=value, of trace or event.")
    ] = [],  # noqa: B006
    error: Annotated[list[str], typer.Option(help="Traces that ended badly: attribute=value.")] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Bring in recordings made elsewhere, each as one session: MiniWoB++ demonstrations, XES event logs."""
    from recorder.importers.miniwob.demonstration import import_folder
    from recorder.importers.xes import import_log, is_log, outcome_rules

    try:
        rules = outcome_rules(success, error)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong), param_hint="--success, --error") from wrong
    # Without a service the client would repeat its first request for half a minute.
    with connected(url, key):
        pass
    if is_log(path):
        report = import_log(
            path,
            url=url,
            key=key,
            workflow=workflow,
            workflow_prefix=workflow_prefix,
            activity=activity.split("+"),
            rules=rules,
        )
    else:
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
    typer.echo(f"{brought} in {report.seconds:.1f} s; {len(report.failed)} skipped.", err=True)
    raise typer.Exit(1 if report.failed else 0)
