"""Command line `recorder`, with one module for each subject. Contract §9.

stdout carries data (`--json` everywhere), stderr text for people. Exit codes: 0 ok, 1 failed, 2 usage,
3 diverged, 4 not authenticated, 5 unreachable. Commands import what they use, so that `recorder --help` takes
0.2 s.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from recorder.cli import (
    audit,
    backups,
    datasets,
    drift,
    event_logs,
    graphs,
    holds,
    recipes,
    replay_worker,
    replays,
    retention,
    service,
    sessions,
    webhooks,
    workspaces,
)
from recorder.cli.help_pages import CommandTree
from recorder.errors import RecorderError, ValidationFailed
from recorder.shell_commands import wrap_for_terminal
from recorder.version import __version__

app = typer.Typer(
    cls=CommandTree,
    no_args_is_help=True,
    # A defect shows its plain trace: boxes and colours are no use in a log file.
    pretty_exceptions_enable=False,
)


def _print_version(is_wanted: bool) -> None:
    """Print the release and end the command, where `--version` was given."""
    if is_wanted:
        typer.echo(f"recorder {__version__}")
        raise typer.Exit


@app.callback()
def read_global_options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the release and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Record work, learn its paths, export datasets."""


app.command()(service.up)
app.command()(service.status)
app.command()(service.doctor)
app.command("dagster-webserver")(service.dagster_webserver)
app.add_typer(workspaces.app, name="workspaces")
app.add_typer(workspaces.app, name="workspace", hidden=True)
app.add_typer(workspaces.keys_app, name="keys")
app.add_typer(audit.app, name="audit")
app.add_typer(drift.app, name="drift")
app.add_typer(sessions.app, name="sessions")
app.add_typer(holds.app, name="hold")
app.add_typer(retention.app, name="retention")
app.command()(backups.backup)
app.command()(backups.restore)
app.add_typer(service.database_app, name="db")
app.add_typer(recipes.app, name="recipes")
app.add_typer(webhooks.app, name="webhooks")
app.command("deliver")(webhooks.deliver_command)
app.command("replay-worker")(replay_worker.replay_worker)
app.command("import")(sessions.import_)
app.add_typer(event_logs.app, name="log")
app.command()(graphs.graph)
app.command()(replays.replay)
app.command()(replays.recover)
app.command()(datasets.export)
app.command()(datasets.verify)
app.command()(service.demo)


def main() -> None:
    """Run the command line; print refusals of the service or client as one sentence, with an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without `→` gets `?`. JSON is ASCII, and stderr escapes such characters by itself.
        sys.stdout.reconfigure(errors="replace")
    with _print_errors():
        app()


@contextmanager
def _print_errors() -> Iterator[None]:
    """Print the errors that service and client raise, and end the process with their exit code."""
    try:
        yield
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        for text in (_describe_error(error), *getattr(error, "__notes__", ())):
            typer.echo(wrap_for_terminal(text), err=True)
        sys.exit(code)


def _describe_error(error: Exception) -> str:
    """Return the sentence for a known error, or for a full device, whose unwritten output is dropped."""
    if isinstance(error, ValidationFailed):  # its own text only counts the fields
        return " ".join(
            f"{problem.pointer or problem.where}: {problem.message}" for problem in error.problems
        )
    if not isinstance(error, OSError):
        return str(error)
    with suppress(OSError):
        # Else the interpreter tries to write it once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    what = error.filename or "The output"
    return f"{what} cannot be written: no space is left. Free some, or choose another folder."


def _exit_code(error: Exception) -> int | None:
    """Return the exit code of a known error or a full device; None for a defect, which keeps its trace."""
    from recorder.client.errors import ApiError, ClientError, Unreachable

    if isinstance(error, Unreachable):
        return 5
    if isinstance(error, ApiError) and error.status in (401, 403):
        return 4
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return 1 if is_full or isinstance(error, RecorderError | ClientError) else None
