"""What is asked of an export at the command line, as members of `POST /v1/exports`. Contract §5."""

import json
from typing import Annotated, Any

import typer

from recorder.cli.options import Where, read_filters

Format = Annotated[str, typer.Option(help="parquet, webdataset, jsonl or arrow.")]
Sampling = Annotated[
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
_LISTS = ("exclude_session_ids",)


def members_of(
    workflow: list[str], *, format: str, to: str, where: Where, sampling: str, split: str | None
) -> dict[str, Any]:
    """The members of the body that these options stand for, unchecked but for their form.

    Raises:
        typer.BadParameter: if one has not the form that its help says.
    """
    members: dict[str, Any] = {
        "workflow": workflow,
        "format": format,
        "filter": {name: _filter_value(name, value) for name, value in read_filters(where).items()},
        "frame_sampling": _sampling(sampling),
        "destination": _destination(to),
    }
    return members if split is None else members | {"split": _split(split)}


def _filter_value(name: str, text: str) -> Any:
    if name in _LISTS:
        return text.split(",")
    if name not in _WHOLE_NUMBERS:
        return text
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{name} takes a whole number", param_hint="--where") from error


def _sampling(text: str) -> dict[str, Any]:
    chosen, plus, added = text.partition("+")
    mode, colon, interval = chosen.partition(":")
    if (plus and added != "actions") or (colon and not interval.isdecimal()):
        raise typer.BadParameter(
            "takes MODE, every_n_ms:MILLISECONDS or MODE+actions", param_hint="--sampling"
        )
    cadence = {"interval_ms": int(interval)} if colon else {}
    return {"mode": mode, "keep_action_frames": bool(plus), **cadence}


def _split(text: str) -> dict[str, Any]:
    unit, *shares = text.split(":")
    try:
        validation, test = (float(share) for share in shares)
    except ValueError as error:
        raise typer.BadParameter(
            "takes UNIT:VALIDATION:TEST, such as actor:0.1:0.1", param_hint="--split"
        ) from error
    return {"by": unit, "validation": validation, "test": test}


def _destination(text: str) -> dict[str, Any]:
    if text == "signed_url":
        return {"kind": "signed_url"}
    if text.startswith("{"):
        try:
            described: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise typer.BadParameter("this JSON cannot be read", param_hint="--to") from error
        return described
    scheme, is_address, place = text.partition("://")
    if not is_address:
        return {"kind": "local", "path": text}
    first, _, rest = place.partition("/")
    if scheme in ("s3", "gs"):
        return _with_prefix({"kind": "s3" if scheme == "s3" else "gcs", "bucket": first}, rest)
    if scheme == "az":
        container, _, prefix = rest.partition("/")
        return _with_prefix({"kind": "azure_blob", "account": first, "container": container}, prefix)
    raise typer.BadParameter("takes s3://, gs:// or az://, a folder, or signed_url", param_hint="--to")


def _with_prefix(destination: dict[str, Any], prefix: str) -> dict[str, Any]:
    return destination | ({"prefix": prefix} if prefix else {})
