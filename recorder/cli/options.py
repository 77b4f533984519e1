"""What commands share: options by name, and how values are printed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from recorder.client import Client

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
# The client repeats requests for half a minute; a person with a wrong address does not wait so long.
_PATIENCE_S = 1.0
_ANSWER_S = 5.0


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


@contextmanager
def connected(url: str, key: str) -> Iterator["Client"]:
    """Give a client of a service that answers now.

    Raises:
        Unreachable: if nothing answers within some seconds.
        typer.BadParameter: if the address is none.
    """
    from recorder.client import ApiError, Client
    from recorder.client.transport import Call, Transport

    try:
        transport = Transport(url, key, timeout_s=_ANSWER_S, patience_s=_PATIENCE_S)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error
    try:
        transport.send(Call("GET", "/healthz", repeatable=True))
    except ApiError:
        pass  # it answers; the command's own request shows what it refuses
    finally:
        transport.close()
    with Client(url, key) as client:
        yield client
