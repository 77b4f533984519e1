"""The command line: `recorder up`, `workspace`, `import`, `export`, `verify`, `demo`. Contract §9.

stdout carries data (`--json` everywhere), stderr words for people. Exit codes: 0 ok, 1 failed, 2 usage,
4 not authenticated, 5 unreachable. Imports are made where they are used: `recorder --help` stays quick.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from recorder.errors import RecorderError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Record work, learn its paths, export datasets."
)
workspaces = typer.Typer(no_args_is_help=True, help="Workspaces of a deployment.")
app.add_typer(workspaces, name="workspace")

DataDir = Annotated[
    Path | None, typer.Option("--data", help="Data folder. [default: RECORDER_DATA_DIR or ./recorder-data]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Url = Annotated[str, typer.Option(envvar="RECORDER_URL", help="Address of the service.")]
Key = Annotated[str, typer.Option(envvar="RECORDER_KEY", help="API key.", show_envvar=True)]
_DEFAULT_URL = "http://127.0.0.1:8700"


def main() -> None:
    """Run the command line; what the service or the client refuses becomes one sentence and an exit code."""
    with _told_errors():
        app()


@app.command()
def up(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the API.")] = 8700,
    data: DataDir = None,
    dagster: Annotated[
        bool, typer.Option(help="Also run Dagster: without it nothing is sealed or exported.")
    ] = True,
    dagster_port: Annotated[int, typer.Option(help="Port of Dagster's pages.")] = 3000,
) -> None:
    """Serve until Ctrl-C: the API and Dagster, watched and stopped together."""
    from recorder.settings import Settings
    from recorder.supervisor import serve

    settings = Settings.from_env(data_dir=data)
    raise typer.Exit(serve(settings, host=host, port=port, dagster=dagster, dagster_port=dagster_port))


@workspaces.command("create")
def create_workspace(name: str, data: DataDir = None, as_json: AsJson = False) -> None:
    """Make a workspace and its first key; the key is shown this once."""
    from recorder.access import keys
    from recorder.runtime import Runtime
    from recorder.settings import Settings

    runtime = Runtime.open(Settings.from_env(data_dir=data))
    settings = runtime.settings
    with runtime.database.transaction(write=True) as db:
        made = keys.create_workspace(db, name, region=settings.region, secret=settings.secret)
    runtime.close()
    if as_json:
        _print({"workspace_id": made.workspace_id, "key_id": made.key_id, "key": made.key})
        return
    typer.echo(made.key)
    typer.echo(
        f"Workspace {made.workspace_id}, key {made.key_id}. Keep the key: it is not shown again.", err=True
    )


@app.command("import")
def import_(
    path: Annotated[
        Path, typer.Argument(exists=True, help="Folder of task folders, one of them, or one file.")
    ],
    key: Key,
    url: Url = _DEFAULT_URL,
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
        _print(summary)
    brought = f"{report.sessions} sessions, {report.events} events, {report.frames} frames"
    typer.echo(f"{brought} in {report.seconds:.1f} s; {len(report.failed)} files skipped.", err=True)
    raise typer.Exit(1 if report.failed else 0)


@app.command()
def export(
    workflow: Annotated[list[str], typer.Argument(help="One or more workflows.")],
    key: Key,
    url: Url = _DEFAULT_URL,
    format: Annotated[str, typer.Option(help="parquet; the other formats come later.")] = "parquet",
    to: Annotated[
        str, typer.Option(help="`signed_url` (the service hosts it), or a folder on its machine.")
    ] = "signed_url",
    tag: Annotated[str | None, typer.Option(help="Name of this version of the dataset.")] = None,
    where: Annotated[list[str], typer.Option(help="A filter, such as outcome=success.")] = [],  # noqa: B006
    watch: Annotated[bool, typer.Option(help="Wait until it is done, with a progress bar.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask for a dataset; with --watch, wait for it."""
    from recorder.client import Client
    from recorder.client.progress import watch_export

    filters = dict(pair.split("=", 1) for pair in where if "=" in pair)
    if len(filters) != len(where):
        raise typer.BadParameter("takes NAME=VALUE, each name once", param_hint="--where")
    destination = {"kind": "signed_url"} if to == "signed_url" else {"kind": "local", "path": to}
    with Client(url, key) as client:
        made = client.create_export(
            workflow, format=format, filter=filters or None, destination=destination, tag=tag
        )
        answer = watch_export(client, made["id"]) if watch else made
    if as_json:
        _print(answer)
        return
    typer.echo(answer["manifest_url"] or answer["id"])


@app.command()
def verify(
    manifest: Annotated[str, typer.Argument(help="Path of a manifest.json, or its folder.")],
    as_json: AsJson = False,
) -> None:
    """Check a dataset against its manifest, offline: sizes, rows, hashes, row set."""
    from recorder.exports.verify import verify_manifest

    report = verify_manifest(manifest)
    if as_json:
        _print({**asdict(report), "is_valid": report.is_valid})
    else:
        counts = (
            f"{report.shards} shards, {report.rows} rows, {report.frames} frames, {report.size_bytes} bytes"
        )
        typer.echo("\n".join(report.problems) or f"{report.export_id}: {counts}, all as the manifest says.")
    raise typer.Exit(0 if report.is_valid else 1)


@app.command()
def demo(
    data: Annotated[
        Path | None, typer.Option(exists=True, help="Folder of real recordings, instead of the bundled set.")
    ] = None,
    stay: Annotated[bool, typer.Option(help="Keep serving afterwards.")] = False,
) -> None:
    """Do the whole job on this machine: record, seal, learn, export, load. Leaves nothing running."""
    from recorder.supervisor.commands import find_checkout

    # The demonstration lives beside the service, not in the library.
    sys.path.insert(0, str(find_checkout("examples")))
    from importlib import import_module

    raise typer.Exit(import_module("examples.demo").run(recordings=data, stay=stay))


@contextmanager
def _told_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        typer.echo(str(error), err=True)
        sys.exit(code)


def _exit_code(error: Exception) -> int | None:
    """What the shell is told; None for what nobody foresaw, which keeps its trace."""
    from recorder.client.errors import ApiError, ClientError, Unreachable

    if isinstance(error, Unreachable):
        return 5
    if isinstance(error, ApiError) and error.status in (401, 403):
        return 4
    return 1 if isinstance(error, RecorderError | ClientError) else None


def _print(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value))


if __name__ == "__main__":
    main()
