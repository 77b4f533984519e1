"""`recorder up` and `recorder demo`: serving on this machine. Contract §9."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from recorder.cli.options import DataDir


def up(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the API.")] = 8700,
    data: DataDir = None,
    dagster: Annotated[
        bool, typer.Option(help="Also run Dagster: without it nothing is sealed or exported.")
    ] = True,
    dagster_port: Annotated[int, typer.Option(help="Port of Dagster's pages.")] = 3000,
) -> None:
    """Serve until Ctrl-C: the API, the delivery loop and Dagster, watched and stopped together."""
    from recorder.supervisor import serve

    raise typer.Exit(serve(data, host=host, port=port, dagster=dagster, dagster_port=dagster_port))


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
