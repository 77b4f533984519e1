"""`recorder audit`: chains of the audit log, their verification and heads. Contract §7 (audit), §9."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from recorder.cli.options import (
    AnyWorkspace,
    AsJson,
    DataDir,
    find_any_workspace_id_option,
    open_command_database,
    print_json,
)
from recorder.number_formats import format_count
from recorder.shell_commands import wrap_for_terminal

app = typer.Typer(no_args_is_help=True, help="The audit log and its hash chains.")


@app.command("verify")
def verify_audit_command(
    workspace: AnyWorkspace = None,
    head: Annotated[
        list[str], typer.Option(help="A hash that was a head once: it must still be there. Repeat it.")
    ] = [],  # noqa: B006
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Walk the chain of every workspace; say where an entry was changed, is missing or was reordered."""
    from recorder.audit import verify

    with _open_audit_database(data, workspace) as (database, workspace_id):
        report = verify.verify_audit(database, workspace_id=workspace_id, heads=head)
    if as_json:
        chains = [{**asdict(chain), "is_valid": chain.is_valid} for chain in report.chains]
        print_json({"is_valid": report.is_valid, "chains": chains, "lost_heads": report.lost_heads})
    else:
        for chain in report.chains:
            entries = f"{chain.workspace_id}: {format_count(chain.entries, 'entry')}"
            typer.echo(f"{entries}, {'unbroken' if chain.is_valid else 'BROKEN'}.")
            for broken in chain.breaks:
                typer.echo(f"  at {broken.number}, {broken.kind}: {broken.detail}")
        for lost in report.lost_heads:
            typer.echo(f"The head {lost} is in none of these chains: they were truncated or replaced.")
    raise typer.Exit(0 if report.is_valid else 1)


@app.command("head")
def show_audit_heads_command(
    workspace: AnyWorkspace = None, data: DataDir = None, as_json: AsJson = False
) -> None:
    """Print workspace, number and hash of the last entry of every chain; store it outside the database."""
    from recorder.audit import verify

    with _open_audit_database(data, workspace) as (database, workspace_id):
        heads = verify.read_chain_heads(database, workspace_id)
    if as_json:
        print_json([asdict(head) for head in heads])
    else:
        for head in heads:
            line = f"{head.workspace_id} {head.number} {head.hash}"
            # Programs that read the lines get each one whole.
            typer.echo(wrap_for_terminal(line, indent="  ") if sys.stdout.isatty() else line)


@app.command("export")
def export_audit_command(workspace: AnyWorkspace = None, data: DataDir = None) -> None:
    """Print all entries of every chain as JSON lines, for `recorder restore --audit`."""
    from recorder.audit import log, verify

    with _open_audit_database(data, workspace) as (database, workspace_id):
        for head in verify.read_chain_heads(database, workspace_id):
            for lines in log.export_audit_entries(database, head.workspace_id):
                sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()


@contextmanager
def _open_audit_database(data: Path | None, workspace: str | None) -> Iterator[tuple[Any, str | None]]:
    """Open the deployment's database; yield it with the id of the named workspace."""
    with open_command_database(data) as (_, database):
        with database.transaction(write=False) as db:
            workspace_id = find_any_workspace_id_option(db, workspace)
        yield database, workspace_id
