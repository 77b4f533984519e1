"""Shared parts of the commands: options, the deployment or service they open, form of output. Contract §5."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from sqlmodel import Session as DbSession

    from recorder.client import Client
    from recorder.runtime import Runtime
    from recorder.settings import Settings
    from recorder.storage.database import Database

DataDir = Annotated[
    Path | None, typer.Option("--data", help="Data folder. \\[default: RECORDER_DATA_DIR or ./recorder-data]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Url = Annotated[str, typer.Option(envvar="RECORDER_URL", help="Address of the service.")]
KeyOption = Annotated[str, typer.Option(envvar="RECORDER_KEY", help="API key.", show_envvar=True)]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", help="A filter, such as outcome=success; repeat it for several.", show_default=False
    ),
]
AnyWorkspace = Annotated[str | None, typer.Option(help="Name or id of one workspace. \\[default: all]")]
OneWorkspace = Annotated[
    str | None, typer.Option(help="Name or id of a workspace. \\[default: the only one]", show_default=False)
]
OneMode = Annotated[Literal["live", "test"], typer.Option(help="Which of its data.")]
AnyMode = Annotated[Literal["live", "test"] | None, typer.Option(help="One mode. \\[default: both]")]
DEFAULT_URL = "http://127.0.0.1:8700"
_LAST_PORT = 65_535
# The client repeats requests for half a minute; a person with a wrong address does not wait so long.
_PATIENCE_S = 1.0
_ANSWER_S = 5.0


class WrongOptions(typer.BadParameter):
    """Wrong usage of several options at once; the message is the whole sentence."""

    def format_message(self) -> str:
        """Return the message without the name of an option."""
        return self.message


def port_option(help: str, *, name: str) -> Any:
    """Return the option of a TCP port."""
    return typer.Option(name, parser=_parse_port, metavar="PORT", help=help)


def _parse_port(text: str | int) -> int:
    """Return a port; typer passes defaults too, as numbers."""
    digits = str(text)
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 5 or int(digits) > _LAST_PORT:
        raise typer.BadParameter(f"it takes a port from 0 to {_LAST_PORT}; 0 takes a free one.")
    return int(digits)


def read_filter_options(
    where: list[str] | None, *, set_elsewhere: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the filters of `--where`.

    Args:
        where: the values of `--where`.
        set_elsewhere: names that are no filters here, each with the argument or option that sets it.

    Raises:
        typer.BadParameter: if one has no value, is set elsewhere, or a name comes twice.
    """
    pairs = where or []
    filters = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(filters) != len(pairs):
        raise typer.BadParameter("takes NAME=VALUE, each name once", param_hint="--where")
    for name, option in (set_elsewhere or {}).items():
        if name in filters:
            raise typer.BadParameter(f"{name} is no filter here; give it as {option}", param_hint="--where")
    return filters


def print_json(value: Any) -> None:
    """Print a value on stdout, on one line."""
    typer.echo(json.dumps(value))


def print_aligned_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> None:
    """Print rows in aligned columns on stdout, below a line of heads on stderr; nothing for no rows.

    Args:
        heads: names of the columns; the last column may be long.
        rows: the cells of each row.
        right: names of the columns that are aligned at the right, such as numbers.
    """
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def format_line(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if head in right else cell.ljust(width)
            for head, cell, width in zip(heads, cells, widths, strict=True)
        ]
        return "  ".join(aligned).rstrip()

    typer.echo(format_line(heads), err=True)
    for row in rows:
        typer.echo(format_line(row))


@contextmanager
def open_client_for_command(url: str, key: str) -> Iterator["Client"]:
    """Yield a client of a service that answers now.

    Raises:
        Unreachable: if nothing answers within some seconds.
        typer.BadParameter: if the address or the key is not valid.
    """
    from recorder.client import ApiError, Client
    from recorder.client.service_address import check_key, parse_service_address
    from recorder.client.transport import Transport, TransportCall

    for option, check, value in (("--url", parse_service_address, url), ("--key", check_key, key)):
        try:
            check(value, name="it")
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=option) from error
    transport = Transport(url, key, timeout_s=_ANSWER_S, patience_s=_PATIENCE_S)
    try:
        transport.send(TransportCall("GET", "/healthz", repeatable=True))
    except ApiError:
        pass  # it answers; the command's own request shows what it refuses
    finally:
        transport.close()
    with Client(url, key) as client:
        yield client


@contextmanager
def open_deployment_for_command(
    data: Path | None, *, create: bool = False, is_reslotting: bool = False
) -> Iterator["Runtime"]:
    """Open the parts of the deployment in this data folder, or in the environment's.

    Args:
        data: the data folder.
        create: create the deployment where there is none.
        is_reslotting: ignore RECORDER_SEAL_SLOTS, since the number of slots is about to change.

    Raises:
        NoDeployment: if there is none and `create` is False.
    """
    from recorder.runtime import Runtime
    from recorder.settings import Settings
    from recorder.storage.temporary_files import private_temporary_files

    settings = Settings.from_env(data_dir=data, create=create)
    if is_reslotting:
        settings = replace(settings, seal_slots=None)
    runtime = Runtime.open(settings, create=create)
    try:
        with private_temporary_files(settings.data_dir):
            yield runtime
    finally:
        runtime.close()


@contextmanager
def open_command_database(data: Path | None) -> Iterator[tuple["Settings", "Database"]]:
    """Open only the database of a deployment; the lake's imports would take as long again.

    Raises:
        NoDeployment: if there is none.
    """
    from recorder.settings import Settings
    from recorder.storage.database import open_database
    from recorder.storage.deployment import check_deployment_record, check_deployment_secret
    from recorder.storage.durable_files import keep_files_private

    settings = Settings.from_env(data_dir=data, create=False)
    keep_files_private()
    database = open_database(settings, create=False)
    try:
        check_deployment_record(settings, database)
        check_deployment_secret(settings, database, store=False)
        yield settings, database
    finally:
        database.close()


def print_data_folder(settings: "Settings") -> None:
    """Print on stderr which data folder a command worked on."""
    typer.echo(f"Data folder: {settings.data_dir}", err=True)


def find_workspace_id_option(db: "DbSession", workspace: str | None) -> str:
    """Return the id of the workspace that a command names by name or id, or of the only one.

    Raises:
        NotFound: if there is none of this name.
        BadParameter: if none is named and there is not exactly one.
    """
    from recorder.access.workspaces import find_workspace, list_workspaces

    if workspace is not None:
        return find_workspace(db, workspace).id
    workspaces = list_workspaces(db)
    if len(workspaces) != 1:
        raise typer.BadParameter(
            f"there are {len(workspaces)} workspaces; name one (`recorder workspaces list` shows them)",
            param_hint="--workspace",
        )
    return workspaces[0].id


def find_any_workspace_id_option(db: "DbSession", workspace: str | None) -> str | None:
    """Return the id of the workspace that a command names by name or id; None for all workspaces.

    Raises:
        NotFound: if there is none of this name.
    """
    return None if workspace is None else find_workspace_id_option(db, workspace)


FormatOption = Annotated[str, typer.Option(help="parquet, webdataset, jsonl or arrow.")]
SamplingOption = Annotated[
    str,
    typer.Option(
        help="event_only, every_n_ms:MILLISECONDS, keyframes_only or all; `+actions` keeps action frames."
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Parts of the dataset: session or actor, and the shares of validation and test: actor:0.1:0.1.",
        show_default=False,
    ),
]
To = Annotated[
    str,
    typer.Option(
        help="signed_url (the service hosts it), a folder of its machine, s3://BUCKET/PREFIX, "
        "gs://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX, or the destination as JSON."
    ),
]

_WHOLE_NUMBERS = ("min_duration_ms", "max_duration_ms")
_SHARES = ("min_replayability",)
_LISTS = ("exclude_session_ids",)


def make_export_members(
    workflow: list[str], *, format: str, to: str, where: Where, sampling: str, split: str | None
) -> dict[str, Any]:
    """Return the members of `POST /v1/exports` that these options denote; only their form is checked.

    Raises:
        typer.BadParameter: if one does not have the form that its help shows.
    """
    members: dict[str, Any] = {
        "workflow": workflow,
        "format": format,
        "filter": {
            name: _read_filter_value(name, value) for name, value in read_filter_options(where).items()
        },
        "frame_sampling": _read_sampling_option(sampling),
        "destination": _read_destination_option(to),
    }
    return members if split is None else members | {"split": _read_split_option(split)}


def _read_filter_value(name: str, text: str) -> Any:
    if name in _LISTS:
        return text.split(",")
    if name not in (*_WHOLE_NUMBERS, *_SHARES):
        return text
    try:
        return float(text) if name in _SHARES else int(text)
    except ValueError as error:
        kind = "a number from 0 to 1" if name in _SHARES else "a whole number"
        raise typer.BadParameter(f"{name} takes {kind}", param_hint="--where") from error


def _read_sampling_option(text: str) -> dict[str, Any]:
    chosen, plus, added = text.partition("+")
    mode, colon, interval = chosen.partition(":")
    if (plus and added != "actions") or (colon and not interval.isdecimal()):
        raise typer.BadParameter(
            "takes MODE, every_n_ms:MILLISECONDS or MODE+actions", param_hint="--sampling"
        )
    cadence = {"interval_ms": int(interval)} if colon else {}
    return {"mode": mode, "keep_action_frames": bool(plus), **cadence}


def _read_split_option(text: str) -> dict[str, Any]:
    unit, *shares = text.split(":")
    try:
        validation, test = (float(share) for share in shares)
    except ValueError as error:
        raise typer.BadParameter(
            "takes UNIT:VALIDATION:TEST, such as actor:0.1:0.1", param_hint="--split"
        ) from error
    return {"by": unit, "validation": validation, "test": test}


def _read_destination_option(text: str) -> dict[str, Any]:
    if text == "signed_url":
        return {"kind": "signed_url"}
    if text.startswith("{"):
        try:
            described: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise typer.BadParameter("this JSON cannot be read", param_hint="--to") from error
        return described
    scheme, is_address, location = text.partition("://")
    if not is_address:
        return {"kind": "local", "path": text}
    first, _, rest = location.partition("/")
    if scheme in ("s3", "gs"):
        return _add_key_prefix_to_destination(
            {"kind": "s3" if scheme == "s3" else "gcs", "bucket": first}, rest
        )
    if scheme == "az":
        container, _, prefix = rest.partition("/")
        return _add_key_prefix_to_destination(
            {"kind": "azure_blob", "account": first, "container": container}, prefix
        )
    raise typer.BadParameter("takes s3://, gs:// or az://, a folder, or signed_url", param_hint="--to")


def _add_key_prefix_to_destination(destination: dict[str, Any], prefix: str) -> dict[str, Any]:
    return destination | ({"prefix": prefix} if prefix else {})
