"""Run configuration of the `datasets` asset: the members and names of `POST /v1/exports`. Spec §4.3.

The schema is derived from the body's model, so that the launchpad takes what the route takes and no other
spelling. Dagster refuses unknown members before a run starts; the model checks the values in the run.
"""

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import dagster as dg
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from recorder.exports.requests.validation import make_dataset_name
from recorder.models.export import ExportRow
from recorder.models.export_request import AnyDestination, ExportCreate
from recorder.models.wire import Mode

#: Members of the run configuration that the body of `POST /v1/exports` does not have.
OWN_MEMBERS = ("workspace", "mode", "export_id")

EXAMPLE = """workspace: acme
workflow: [checkout, login]
filter:
  outcome: success
  since: 30d
  actor.kind: human
format: parquet
frame_sampling: {mode: keyframes_only}
split: {by: actor, validation: 0.1, test: 0.1}
destination: {kind: signed_url, expires_in: 86400}
"""

_DESCRIPTIONS = {
    "workflow": "One workflow slug, or a list of them.",
    "filter": "Restricts the sessions; a member that is left out restricts nothing.",
    "outcome": "Only sessions with this outcome.",
    "since": "Only sessions that started at or after this time: ISO 8601 with zone, or `30d`, `1h`.",
    "until": "Only sessions that started before and were sealed by this time; same forms as `since`.",
    "actor.kind": "Only sessions of this kind of actor.",
    "min_duration_ms": "Only sessions of at least this duration.",
    "max_duration_ms": "Only sessions of at most this duration.",
    "path": "Only sessions on this path of the memory graph: its id.",
    "subpath": "Only sessions that hold the nodes of this path one directly after another: its id.",
    "min_replayability": "Only sessions of at least this replayability, 0 to 1; waits until it is computed.",
    "exclude_session_ids": "Ids of sessions to leave out.",
    "format": "File format of the shards.",
    "frame_sampling": "Selects frames; left out: `event_only`.",
    "interval_ms": "Milliseconds between frames, for `every_n_ms`.",
    "keep_action_frames": "Adds every frame at which an action happened.",
    "split": "Divides sessions into `train`, `validation` and `test`; left out: all in `train`.",
    "by": "`actor` keeps all sessions of one actor in one part; default `session`.",
    "validation": "Share of `validation`, 0 to 1; default 0.1.",
    "test": "Share of `test`, 0 to 1; default 0.1.",
    "destination": "Storage for the files, chosen by `kind`.",
    "kind": "`signed_url` keeps the files in the service for 30 days; the others write to your storage.",
    "expires_in": "`signed_url`: seconds for which an address is valid.",
    "path of a destination": "`local`: folder, relative to the operator's export root.",
    "bucket": "`s3`, `gcs`: name of the bucket.",
    "prefix": "`s3`, `gcs`, `azure_blob`: folder in the bucket or container.",
    "region": "`s3`: region of the bucket.",
    "role_arn": "`s3`: role to assume; the workspace's id is its external id.",
    "service_account": "`gcs`: account to act as.",
    "account": "`azure_blob`: name of the storage account.",
    "container": "`azure_blob`: name of the container.",
}


class DatasetNameMismatch(dg.Failure):
    """The partition has another name than the dataset that the configuration describes."""

    def __init__(self, partition: str, dataset: str) -> None:
        super().__init__(
            f"This configuration describes the dataset {dataset!r}, and the partition is {partition!r}. "
            "Choose the partition of that name, or leave out `tag` to use the partition's name as tag.",
            allow_retries=False,
        )


def make_export_body(config: Mapping[str, Any], *, partition: str) -> ExportCreate:
    """Return the body of `POST /v1/exports` for a run configuration.

    Without a tag, a partition that is not named after the workflows gives its name as tag.

    Raises:
        DatasetNameMismatch: if the partition belongs to another dataset.
        Failure: if a value is not valid; names each member.
    """
    members = {name: value for name, value in config.items() if name not in OWN_MEMBERS}
    workflow = config["workflow"]
    workflows = [workflow] if isinstance(workflow, str) else workflow
    if members.get("tag") is None and partition != make_dataset_name(None, workflows):
        members["tag"] = partition
    if make_dataset_name(members.get("tag"), workflows) != partition:
        raise DatasetNameMismatch(partition, make_dataset_name(members.get("tag"), workflows))
    try:
        return ExportCreate.model_validate(members)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise dg.Failure(
            "The configuration is not valid. " + "; ".join(problems), allow_retries=False
        ) from None


def make_dataset_config(row: ExportRow) -> dict[str, Any]:
    """Return the run configuration of a queued export, with its times resolved.

    Ids of excluded sessions are left out: the run reads them from the export, and each record of the run
    would repeat thousands of them.
    """
    filters = {name: value for name, value in row.spec["filter"].items() if name != "exclude_session_ids"}
    config = {
        "workspace": row.workspace_id,
        "mode": row.mode,
        "workflow": row.spec["workflow"],
        "filter": filters,
        "format": row.format,
        "frame_sampling": row.spec["frame_sampling"],
        "split": row.spec["split"],
        "destination": row.destination,
        "tag": row.tag,
        "export_id": row.id,
    }
    return {name: value for name, value in config.items() if value is not None}


def _build_config_shape(*models: type[BaseModel]) -> dg.Shape:
    """Build one flat shape of all members of these models; a member of only some of them is optional."""
    fields: dict[str, dg.Field] = {}
    for model in models:
        for name, info in model.model_fields.items():
            is_shared = all(name in other.model_fields for other in models)
            field = _build_config_field(model, name, info, is_optional=not is_shared)
            fields.setdefault(info.alias or name, field)
    return dg.Shape(fields)  # type: ignore[no-untyped-call]


def _build_config_field(model: type[BaseModel], name: str, info: FieldInfo, *, is_optional: bool) -> dg.Field:
    wire_name = info.alias or name
    key = "path of a destination" if name == "path" and "kind" in model.model_fields else wire_name
    kind = _build_config_type(info.annotation)
    if name == "workflow":
        kind = dg.ScalarUnion(scalar_type=str, non_scalar_schema=[str])
    elif name == "kind":
        kinds = [get_args(model.model_fields["kind"].annotation)[0] for model in get_args(AnyDestination)]
        kind = _build_config_enum(kinds)
    is_required = info.is_required() and not is_optional
    return dg.Field(kind, is_required=is_required, description=_DESCRIPTIONS.get(key))


def _build_config_type(annotation: Any) -> Any:
    """Translate a type of the body's model into a type of Dagster's configuration."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _build_config_type(arguments[0])
    if origin is Literal:
        return _build_config_enum(arguments)
    if origin is list:
        return dg.Array(_build_config_type(arguments[0]))
    if origin in (Union, UnionType):
        members = [member for member in arguments if member is not NoneType]
        kind = _build_config_type(members[0]) if len(members) == 1 else _build_config_shape(*members)
        return dg.Noneable(kind) if NoneType in arguments else kind
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _build_config_shape(annotation)
    return annotation


def _build_config_enum(values: Sequence[str]) -> dg.Enum:
    """Build an enumeration whose name lists its values: Dagster's errors name the type alone."""
    return dg.Enum(" | ".join(values), [dg.EnumValue(value) for value in values])


#: Schema of the asset's configuration. `format` and `destination` have defaults, as the launchpad shows them.
CONFIG_SCHEMA = {
    "workspace": dg.Field(
        dg.Noneable(str),
        is_required=False,
        description="Name or id of the workspace; may be left out if the deployment has only one.",
    ),
    "mode": dg.Field(
        _build_config_enum(get_args(Mode)),
        default_value="live",
        description="Mode of the sessions' keys.",
    ),
    **_build_config_shape(ExportCreate).fields,
    "format": dg.Field(
        _build_config_type(ExportCreate.model_fields["format"].annotation),
        default_value="parquet",
        description=_DESCRIPTIONS["format"],
    ),
    "destination": dg.Field(
        _build_config_shape(*get_args(AnyDestination)),
        default_value={"kind": "signed_url"},
        description=_DESCRIPTIONS["destination"],
    ),
    "tag": dg.Field(
        dg.Noneable(str),
        is_required=False,
        description="Label of this version; default: the partition's name.",
    ),
    "export_id": dg.Field(
        dg.Noneable(str), is_required=False, description="Id of a queued export; set by the sensor."
    ),
}
