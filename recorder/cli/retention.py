"""`recorder retention`: preview and run what removes expired data. Contract §9."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import (
    AnyWorkspace,
    AsJson,
    DataDir,
    find_any_workspace_id_option,
    open_deployment_for_command,
    print_aligned_table,
    print_data_folder,
    print_json,
)
from recorder.number_formats import format_bytes, format_count

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from recorder.governance.maintenance_pass import MaintenanceReport
    from recorder.governance.requested_removals import Removals
    from recorder.governance.retention import RetentionReport
    from recorder.runtime import Runtime

app = typer.Typer(no_args_is_help=True, help="Delete data that has expired or whose removal was requested.")

_At = Annotated[
    str | None,
    typer.Option(help="Instant at which things are due, such as 2026-06-01T00:00:00Z. \\[default: now]"),
]


@app.command("preview")
def preview_retention_command(
    workspace: AnyWorkspace = None, at: _At = None, data: DataDir = None, as_json: AsJson = False
) -> None:
    """Count what a run at an instant would remove: number and size by workspace and kind."""
    from recorder.governance import retention

    instant = _parse_instant_option(at)
    with _open_retention_deployment(data, workspace) as (runtime, workspace_id):
        report = retention.preview_retention(runtime, at=instant, workspace_id=workspace_id)
    _print_retention_report(report, None, as_json=as_json)


_Rewrite = Annotated[
    bool,
    typer.Option(
        "--rewrite",
        help="Rewrite tables now if erasures wait for it, instead of in the hour RECORDER_QUIET_HOUR.",
    ),
]


@app.command("run")
def run_retention_command(
    workspace: AnyWorkspace = None,
    at: _At = None,
    rewrite: _Rewrite = False,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove sessions that are due at `--at`, work on open purges and erasures, and maintain the lake.

    Purges and erasures are those of all workspaces.
    """
    from recorder.governance import retention
    from recorder.governance.maintenance_pass import maintain_lake
    from recorder.governance.requested_removals import run_removals
    from recorder.governance.table_rewrites import RewriteReport, rewrite_tables
    from recorder.ids import new_id

    instant, owner = _parse_instant_option(at), new_id("req")
    with _open_retention_deployment(data, workspace) as (runtime, workspace_id):
        print_data_folder(runtime.settings)
        report = retention.run_retention(runtime, owner, at=instant, workspace_id=workspace_id)
        if report is None:
            typer.echo("Another run of retention is at work; nothing was done.", err=True)
            raise typer.Exit(1)
        removals = run_removals(runtime, owner)
        rewrites = rewrite_tables(runtime, owner) if rewrite else RewriteReport()
        lake = maintain_lake(runtime, owner, workspace_id=workspace_id)
    purged = 0 if removals.purges is None else removals.purges.sessions
    _print_retention_report(report, purged, lake, as_json=as_json)
    if removals.purges is None and removals.away is None:
        typer.echo("Another run works on the purges.", err=True)
    if rewrites is None:
        typer.echo("Another run rewrites the tables.", err=True)
    elif rewrites.tables:
        typer.echo(
            f"Rewrote {format_count(rewrites.tables, 'table')}; "
            f"ended {format_count(rewrites.erasures, 'erasure')}.",
            err=True,
        )
    failures = _list_removal_failures(report, removals) + (
        [] if rewrites is None else rewrites.list_failures()
    )
    for failure in failures:
        typer.echo(failure, err=True)
    if failures or lake.failures:
        raise typer.Exit(1)


def _list_removal_failures(report: "RetentionReport", removals: "Removals") -> list[str]:
    """Return a sentence for each piece of work that the next run has to try again."""
    sentences = [str(failure) for failure in report.failures]
    if removals.away is not None:
        sentences.append(f"The purges are left to the next run: {removals.away}")
    if removals.error is not None:
        sentences.append(f"An erasure is left to the next run: {removals.error!r}")
    if removals.purges is not None and removals.purges.failed_steps:
        sentences.append(
            f"{format_count(removals.purges.failed_steps, 'step')} of purges failed; "
            "a later run repeats them. The log names the workspaces and the errors."
        )
    return sentences


@contextmanager
def _open_retention_deployment(
    data: "Path | None", workspace: str | None
) -> "Iterator[tuple[Runtime, str | None]]":
    """Open the deployment; yield it with the id of the named workspace."""
    with open_deployment_for_command(data) as runtime:
        with runtime.database.transaction(write=False) as db:
            workspace_id = find_any_workspace_id_option(db, workspace)
        yield runtime, workspace_id


def _parse_instant_option(text: str | None) -> "datetime | None":
    """Return the instant of `--at`.

    Raises:
        typer.BadParameter: if it is no time.
    """
    from recorder import clock
    from recorder.errors import RecorderError

    if text is None:
        return None
    try:
        return clock.parse_time(text, name="at")
    except RecorderError as error:
        raise typer.BadParameter(
            "takes a time with a zone, such as 2026-01-31T00:00:00Z", param_hint="--at"
        ) from error


def _print_retention_report(
    report: "RetentionReport", purged: int | None, lake: "MaintenanceReport | None" = None, *, as_json: bool
) -> None:
    from recorder import clock

    rows = report.list_rows()
    if as_json:
        shown: dict[str, Any] = {"at": clock.to_iso(report.at), "data": rows}
        if purged is not None:
            shown |= {"purged_sessions": purged, "failures": [asdict(each) for each in report.failures]}
        if lake is not None:
            shown["lake"] = lake.list_rows()
        print_json(shown)
        return
    print_aligned_table(
        ("workspace", "kind", "number", "size"),
        [
            (str(row["workspace_id"]), str(row["kind"]), f"{row['count']:,}", format_bytes(int(row["bytes"])))
            for row in rows
        ],
        right=("number", "size"),
    )
    if not rows:
        typer.echo("Nothing is due.", err=True)
    if purged is not None:
        typer.echo(f"Purged {format_count(purged, 'session')} completely.", err=True)
    if lake is not None:
        typer.echo(f"Deleted {format_bytes(lake.deleted_bytes)} of unused lake files.", err=True)
        for (tenant, kind), error in sorted(lake.failures.items()):
            typer.echo(f"The lake's {kind} of {tenant.workspace_id} ({tenant.mode}): {error}", err=True)
