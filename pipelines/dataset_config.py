"""The launchpad's form of `POST /v1/exports`, and the one mapping to the body and back. Spec §4.3."""

from enum import Enum
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from recorder import limits
from recorder.exports.requests.validation import dataset_name
from recorder.models.export import ExportRow
from recorder.models.export_request import ExportCreate


class Outcome(Enum):
    """How a session ended."""

    success = "success"
    error = "error"
    abandoned = "abandoned"


class ActorKind(Enum):
    """Who did the work."""

    human = "human"
    model = "model"
    script = "script"


class SamplingMode(Enum):
    """Which frames of a session are taken."""

    event_only = "event_only"
    every_n_ms = "every_n_ms"
    keyframes_only = "keyframes_only"
    all = "all"


class Mode(Enum):
    """Real sessions, or those of test keys."""

    live = "live"
    test = "test"


class Format(Enum):
    """What files are written; a directory holds one kind."""

    parquet = "parquet"
    webdataset = "webdataset"
    jsonl = "jsonl"
    arrow = "arrow"


class SplitUnit(Enum):
    """What stays together in one part of the dataset."""

    session = "session"
    actor = "actor"


class FilterConfig(dg.Config):
    """Which sessions are taken; a field left empty leaves nothing out."""

    outcome: Outcome | None = Field(default=None, description="Only sessions that ended so.")
    since: str | None = Field(
        default=None, description="Started at or after: ISO 8601 with zone, or `30d`, `1h`."
    )
    until: str | None = Field(
        default=None, description="Started before and sealed by: ISO 8601 with zone, or `1h`."
    )
    actor_kind: ActorKind | None = Field(default=None, description="Only sessions of such an actor.")
    min_duration_ms: int | None = Field(default=None, description="Only sessions that took at least so long.")
    max_duration_ms: int | None = Field(default=None, description="Only sessions that took at most so long.")
    tag: str | None = Field(default=None, description="Only sessions that carry this tag.")
    path: str | None = Field(
        default=None, description="Only sessions that went this path of the memory graph: its id."
    )
    exclude_session_ids: list[str] = Field(default=[], description="Sessions to leave out.")


class SamplingConfig(dg.Config):
    """Which frames are taken."""

    mode: SamplingMode = Field(
        default=SamplingMode.event_only, description="`event_only`: frames where an event fires."
    )
    interval_ms: int | None = Field(default=None, description="The cadence of `every_n_ms`.")
    keep_action_frames: bool = Field(default=False, description="Add every frame at which somebody acted.")


class SplitConfig(dg.Config):
    """How sessions are dealt to the parts `train`, `validation` and `test`."""

    by: SplitUnit = Field(
        default=SplitUnit.session, description="`actor`: the sessions of one actor stay in one part."
    )
    validation: float = Field(default=0.0, description="Share of the part `validation`, 0 to 1.")
    test: float = Field(default=0.0, description="Share of the part `test`; the rest is `train`.")


class SignedUrlConfig(dg.Config):
    """The service keeps the files for 30 days and serves them under signed addresses."""

    kind: Literal["signed_url"] = "signed_url"
    expires_in: int = Field(
        default=limits.SIGNED_URL_DEFAULT_SECONDS, description="Seconds for which an address is good."
    )


class LocalConfig(dg.Config):
    """The files go to a folder below the operator's export root."""

    kind: Literal["local"] = "local"
    path: str = Field(description="Folder, relative to the export root.")


class S3Config(dg.Config):
    """The files go to a bucket; no credentials here: the service assumes the role, or has its own."""

    kind: Literal["s3"] = "s3"
    bucket: str = Field(description="Name of the bucket.")
    prefix: str | None = Field(default=None, description="Folder in the bucket.")
    region: str | None = Field(default=None, description="Region of the bucket.")
    role_arn: str | None = Field(
        default=None, description="Role to assume; the workspace's id is its external id."
    )


class GcsConfig(dg.Config):
    """The files go to a Google Cloud Storage bucket."""

    kind: Literal["gcs"] = "gcs"
    bucket: str = Field(description="Name of the bucket.")
    prefix: str | None = Field(default=None, description="Folder in the bucket.")
    service_account: str | None = Field(default=None, description="Account to act as.")


class AzureBlobConfig(dg.Config):
    """The files go to a container of an Azure storage account."""

    kind: Literal["azure_blob"] = "azure_blob"
    account: str = Field(description="Name of the storage account.")
    container: str = Field(description="Name of the container.")
    prefix: str | None = Field(default=None, description="Folder in the container.")


class DatasetConfig(dg.Config):
    """What a dataset is to hold: the fields of `POST /v1/exports`, and whose sessions it takes."""

    workspace: str = Field(description="Name or id of the workspace.")
    mode: Mode = Field(default=Mode.live, description="Real sessions, or those of test keys.")
    workflow: list[str] = Field(description="One or more workflow slugs.")
    filter: FilterConfig = FilterConfig()
    format: Format = Format.parquet
    frame_sampling: SamplingConfig = SamplingConfig()
    split: SplitConfig = SplitConfig()
    destination: SignedUrlConfig | LocalConfig | S3Config | GcsConfig | AzureBlobConfig = Field(
        default=SignedUrlConfig(), discriminator="kind"
    )
    tag: str | None = Field(
        default=None, description="Label of this version; by default the partition's name."
    )
    export_id: str | None = Field(
        default=None, description="An export that is queued already; set by the sensor."
    )


class DatasetNameMismatch(dg.Failure):
    """The partition is not named as the dataset that the config describes."""

    def __init__(self, partition: str, dataset: str) -> None:
        super().__init__(
            f"This config describes the dataset {dataset!r}, and the partition is {partition!r}. "
            "Choose the partition of that name, or leave the tag empty to take the partition's name as tag.",
            allow_retries=False,
        )


def to_body(config: DatasetConfig, *, partition: str) -> ExportCreate:
    """The body of `POST /v1/exports` that a launchpad's config stands for.

    Without a tag, a partition that is not named after the workflows gives its name as tag.

    Raises:
        DatasetNameMismatch: if the partition is that of another dataset.
    """
    tag = config.tag
    if tag is None and partition != dataset_name(None, config.workflow):
        tag = partition
    if dataset_name(tag, config.workflow) != partition:
        raise DatasetNameMismatch(partition, dataset_name(tag, config.workflow))
    plain = _plain(config)
    return ExportCreate.model_validate(
        {name: plain[name] for name in ("workflow", "format", "frame_sampling", "split", "destination")}
        | {"filter": _renamed(_named(plain["filter"]), "actor_kind", "actor.kind"), "tag": tag}
    )


def from_row(row: ExportRow) -> DatasetConfig:
    """The config that shows in the launchpad for a queued export: what was asked for, resolved.

    Sessions that are left out stand in the export alone.
    """
    # Dagster spells a union as a selector: `{kind: {its other members}}`.
    members = dict(row.destination)
    # The run reads the row; thousands of ids are nothing for a launchpad, nor for each record of the run.
    filters = {name: value for name, value in row.spec["filter"].items() if name != "exclude_session_ids"}
    return DatasetConfig.model_validate(
        {
            "workspace": row.workspace_id,
            "mode": row.mode,
            "workflow": row.spec["workflow"],
            "filter": _renamed(filters, "actor.kind", "actor_kind"),
            "format": row.format,
            "frame_sampling": row.spec["frame_sampling"],
            # The release before knew no parts.
            "split": row.spec.get("split") or {},
            "destination": {members.pop("kind"): members},
            "tag": row.tag,
            "export_id": row.id,
        }
    )


def _plain(config: dg.Config) -> dict[str, Any]:
    """The config in JSON types, without what was left empty."""
    values: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    return values


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """Without the lists that name nothing."""
    return {name: value for name, value in values.items() if value != []}


def _renamed(values: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if name == old else name: value for name, value in values.items()}
