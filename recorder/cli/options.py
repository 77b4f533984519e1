"""What commands share: options by name, and how values are printed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from recorder.client import Client
from dataclasses import replace

from sqlmodel import Session as DbSession

from recorder.access.workspaces import find_workspace, list_workspaces
from recorder.runtime import Runtime
from recorder.settings import Settings

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


@contextmanager
def opened(data: Path | None, *, create: bool = False, is_reslotting: bool = False) -> Iterator[Runtime]:
    """Open the parts of the deployment in this data folder, or in the environment's.

    Args:
        data: the data folder.
        create: create the deployment where there is none.
        is_reslotting: whatever RECORDER_SEAL_SLOTS says, since the number of slots is about to change.

    Raises:
        NoDeployment: if there is none and none is to be created; nothing is created then.
    """
    settings = Settings.from_env(data_dir=data, create=create)
    if is_reslotting:
        settings = replace(settings, seal_slots=None)
    runtime = Runtime.open(settings, create=create)
    try:
        yield runtime
    finally:
        runtime.close()


def print_folder(runtime: Runtime) -> None:
    """Print on stderr which data folder a command worked on."""
    typer.echo(f"Data folder: {runtime.settings.data_dir}", err=True)


def workspace_id_of(db: DbSession, workspace: str | None) -> str:
    """The workspace that a command names by name or id, or the only one there is.

    Raises:
        NotFound: if there is none of this name.
        BadParameter: if none is named and there is not exactly one.
    """
    if workspace is not None:
        return find_workspace(db, workspace).id
    found = list_workspaces(db)
    if len(found) != 1:
        raise typer.BadParameter(
            f"there are {len(found)} workspaces; name one (`recorder workspaces list` shows them)",
            param_hint="--workspace",
        )
    return found[0].id
