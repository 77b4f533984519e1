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
Where = Annotated[
    list[str] | None, typer.Option("--where", help="A filter, such as outcome=success.", show_default=False)
]
DEFAULT_URL = "http://127.0.0.1:8700"


def read_filters(where: list[str] | None) -> dict[str, str]:
    """The filters that `--where` names.

    Raises:
        typer.BadParameter: if one has no value, or a name comes twice.
    """
    pairs = where or []
    filters = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(filters) != len(pairs):
        raise typer.BadParameter("takes NAME=VALUE, each name once", param_hint="--where")
    return filters


def print_json(value: Any) -> None:
    """Print a value on stdout, on one line."""
    typer.echo(json.dumps(value))
