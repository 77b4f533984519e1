"""`recorder backup` and `recorder restore`. Contract §9."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import AsJson, DataDir, open_deployment_for_command, print_json
from recorder.number_formats import format_bytes, format_count
from recorder.shell_commands import wrap_for_terminal

if TYPE_CHECKING:
    from recorder.governance.backup.later_changes import AppliedChanges
    from recorder.settings import Settings

_STEPS = {
    "lake": "Copying the lake",
    "database": "Copying the database",
    "objects": "Copying frames and exports",
    "old parts": "Deleting old parts",
    "check": "Checking the backup",
    "write": "Writing the deployment",
    "changes": "Applying later deletions",
}


def backup(
    to: Annotated[str, typer.Argument(help="Folder, or address of a store such as s3://bucket/prefix.")],
    keep: Annotated[
        int | None,
        typer.Option(min=1, max=3650, help="Delete backups there that are older than these days."),
    ] = None,
    start_over: Annotated[
        bool, typer.Option("--start-over", help="Go on where all earlier backups there were deleted.")
    ] = False,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Back up database, lake, frames and hosted exports while everything runs; not the secret."""
    from recorder.governance.backup.create import create_backup

    with open_deployment_for_command(data) as runtime, _show_backup_progress() as (on_step, on_bytes):
        report = create_backup(
            runtime,
            to,
            keep_days=keep,
            starts_over=start_over,
            on_step=on_step,
            on_progress=lambda handled, _: on_bytes(handled),
        )
    if as_json:
        print_json(_backup_report_to_json(report))
        return
    size = f"{format_count(report.files, 'file')}, {format_bytes(report.bytes)}"
    typer.echo(f"{report.id}  {size}, of {report.moment:%F %T}Z")
    written = f"{format_bytes(report.copied_bytes)} written, with manifest, in {report.seconds:.1f} s."
    deleted = "" if keep is None else f" Deleted {format_count(len(report.deleted_backups), 'old backup')}."
    sentence = f"{written}{deleted} Keep the deployment's secret elsewhere: no backup holds it."
    typer.echo(wrap_for_terminal(sentence), err=True)


def restore(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Folder or store of `recorder backup`.")],
    data: Annotated[Path, typer.Option("--data", help="New data folder; missing or empty.")],
    audit: Annotated[
        Path | None,
        typer.Option(help="Later export by `recorder audit export`: its deletions and erasures are applied."),
    ] = None,
    backup_id: Annotated[
        str | None, typer.Option("--backup", help="Id of the backup. \\[default: the newest]")
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the deployment's secret, copied to the folder. \\[default: RECORDER_SECRET]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into an empty folder, after every hash is checked."""
    from recorder.governance.backup.backup_store import BackupStore
    from recorder.governance.backup.restore import restore_backup, stage_settings

    wanted, secret = _read_restore_options(data, secret_file)
    with _show_backup_progress() as (on_step, on_bytes):
        report = restore_backup(
            BackupStore(source),
            wanted,
            stage_settings(wanted),
            backup_id=backup_id,
            audit=audit,
            secret=secret,
            on_step=on_step,
            on_bytes=on_bytes,
        )
    if as_json:
        print_json(_backup_report_to_json(report))
        return
    files = format_count(report.files, "file")
    typer.echo(f"{report.id} of {report.moment:%F %T}Z is restored to {report.data}: {files}.")
    if audit is None:
        typer.echo(
            "No audit log was given: deletions and erasures after that moment are not applied.", err=True
        )
    else:
        typer.echo(wrap_for_terminal(_describe_restored_changes(report.changes)), err=True)


def _describe_restored_changes(changes: "AppliedChanges") -> str:
    """Return a sentence about the audit entries that came after the backup."""
    if not changes.entries:
        return "The audit log has no entry after the backup."
    entries = format_count(changes.entries, "later audit entry")
    if not (changes.deleted_sessions or changes.erasures or changes.revoked_keys):
        return f"{entries}; none of them deletes, erases or revokes."
    return (
        f"Applied {entries}: {format_count(changes.deleted_sessions, 'deletion')}, "
        f"{format_count(changes.erasures, 'erasure')}, {format_count(changes.revoked_keys, 'revoked key')}."
    )


def _read_restore_options(data: Path, secret_file: Path | None) -> "tuple[Settings, bytes | None]":
    """Return the settings of the new deployment, and the secret to store in its folder, if any.

    Raises:
        NoSecret: if neither the environment nor a file gives the secret.
        BadParameter: if the file cannot be read.
    """
    from recorder.data_folder import NoDeployment
    from recorder.governance.backup.errors import NoSecret
    from recorder.settings import Settings, extend_program_environment

    try:
        secret = None if secret_file is None else secret_file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise typer.BadParameter(f"cannot be read ({error.strerror})", param_hint="--secret-file") from error
    environment = {} if secret is None else {"RECORDER_SECRET": secret.decode("utf-8", "replace")}
    try:
        return Settings.from_env(extend_program_environment(environment), data_dir=data, create=False), secret
    except NoDeployment as error:
        raise NoSecret from error


@contextmanager
def _show_backup_progress() -> Iterator[tuple[Callable[[str], object], Callable[[int], object]]]:
    """Show steps and bytes on stderr, where that is a terminal."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from recorder.progress_bars import open_progress_bar

    figures = (DownloadColumn(), TransferSpeedColumn())
    with open_progress_bar("Starting", *figures, is_transient=True, total=None) as update:
        yield lambda step: update(description=_STEPS[step]), lambda count: update(advance=count)


def _backup_report_to_json(report: Any) -> dict[str, Any]:
    from recorder import clock

    return asdict(report) | {"moment": clock.to_iso(report.moment)}
