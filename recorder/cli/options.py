"""What commands share: options by name, and how values are printed."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

DataDir = Annotated[
    Path | None, typer.Option("--data", help="Data folder. [default: RECORDER_DATA_DIR or ./recorder-data]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Url = Annotated[str, typer.Option(envvar="RECORDER_URL", help="Address of the service.")]
Key = Annotated[str, typer.Option(envvar="RECORDER_KEY", help="API key.", show_envvar=True)]
DEFAULT_URL = "http://127.0.0.1:8700"


def print_json(value: Any) -> None:
    """Print a value on stdout, on one line."""
    typer.echo(json.dumps(value))
