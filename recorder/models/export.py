"""Exports: request, resource, and the rows that make a run resumable. Spec §2.5, §4.3; contract §5."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic import Field as WireField
from sqlalchemy import JSON, BigInteger, Index, text
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.places import (
    AwsRegion,
    AzureAccount,
    AzureContainer,
    GcsBucket,
    KeyPrefix,
    RoleArn,
    S3Bucket,
    ServiceAccount,
)
from recorder.models.wire import ActorKind, Outcome, WireInput, WireOutput, WireTime

ExportStatus = Literal["queued", "running", "completed", "failed"]
ExportFormat = Literal["parquet", "webdataset", "jsonl", "arrow"]
SamplingMode = Literal["event_only", "every_n_ms", "keyframes_only", "all"]
ShardKind = Literal["events", "frames", "samples"]
SplitUnit = Literal["session", "actor"]


def _in_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("takes printable characters")
    return value


Slug = Annotated[str, WireField(pattern=limits.WORKFLOW_PATTERN)]
Label = Annotated[
    str, WireField(min_length=1, max_length=limits.TAG_NAME_CHARACTERS), AfterValidator(_printable)
]


class ExportFilter(WireInput):
    """Which sessions are taken; members that were not sent leave nothing out."""

    outcome: Outcome | None = None
    since: str | None = None
    until: str | None = None
    actor_kind: ActorKind | None = WireField(default=None, alias="actor.kind")
    min_duration_ms: int | None = WireField(default=None, ge=0, le=limits.T_MS_MAX)
    max_duration_ms: int | None = WireField(default=None, ge=0, le=limits.T_MS_MAX)
    tag: str | None = WireField(default=None, min_length=1, max_length=limits.TAG_NAME_CHARACTERS)
    path: str | None = None
    exclude_session_ids: list[str] | None = None


class FrameSampling(WireInput):
    """Which frames of a session are taken."""

    mode: SamplingMode = "event_only"
    interval_ms: int | None = WireField(default=None, ge=1)
    keep_action_frames: bool = False


class FrameSamplingAsked(FrameSampling):
    """The same as it is asked for; what an earlier release took is still shown."""

    interval_ms: int | None = WireField(default=None, ge=1, le=limits.T_MS_MAX)


class SplitRule(WireInput):
    """How sessions are dealt to the parts `train`, `validation` and `test`; a unit is never in two of them.

    By `actor`, the sessions of one actor stay together; a session without an actor is a unit of its own.
    """

    by: SplitUnit = "session"
    #: Shares of the units; the rest is `train`.
    validation: float = WireField(default=0.1, ge=0, le=1)
    test: float = WireField(default=0.1, ge=0, le=1)


class SignedUrlDestination(WireInput):
    """Files are kept by the service for 30 days and served under signed addresses."""

    kind: Literal["signed_url"]
    #: Seconds for which an address is good.
    expires_in: int = WireField(
        default=limits.SIGNED_URL_DEFAULT_SECONDS,
        ge=limits.SIGNED_URL_SECONDS[0],
        le=limits.SIGNED_URL_SECONDS[1],
    )


class LocalDestination(WireInput):
    """Files are written to a folder of the machine, below the operator's export root."""

    kind: Literal["local"]
    path: str = WireField(min_length=1, max_length=4096)


class S3Destination(WireInput):
    """Files are written to a bucket under a role that the service assumes."""

    kind: Literal["s3"]
    bucket: S3Bucket
    prefix: KeyPrefix | None = None
    region: AwsRegion | None = None
    role_arn: RoleArn | None = None


class GcsDestination(WireInput):
    """Files are written to a Google Cloud Storage bucket."""

    kind: Literal["gcs"]
    bucket: GcsBucket
    prefix: KeyPrefix | None = None
    service_account: ServiceAccount | None = None


class AzureBlobDestination(WireInput):
    """Files are written to a container of an Azure storage account."""

    kind: Literal["azure_blob"]
    account: AzureAccount
    container: AzureContainer
    prefix: KeyPrefix | None = None


DestinationKind = Literal["signed_url", "local", "s3", "gcs", "azure_blob"]
AnyDestination = (
    SignedUrlDestination | LocalDestination | S3Destination | GcsDestination | AzureBlobDestination
)
_DESTINATIONS: dict[DestinationKind, type[AnyDestination]] = {
    "signed_url": SignedUrlDestination,
    "local": LocalDestination,
    "s3": S3Destination,
    "gcs": GcsDestination,
    "azure_blob": AzureBlobDestination,
}


class DestinationObject(BaseModel):
    """A destination of which only the kind is known yet."""

    kind: DestinationKind


def _read_destination(value: Any) -> Any:
    """Choose the model by `kind` first, so that what is wrong is found under the member's own name."""
    if isinstance(value, BaseModel):
        return value
    return _DESTINATIONS[DestinationObject.model_validate(value).kind].model_validate(value)


Destination = Annotated[AnyDestination, WireField(discriminator="kind"), BeforeValidator(_read_destination)]


class ExportCreate(WireInput):
    """Body of `POST /v1/exports`."""

    workflow: Annotated[list[Slug], WireField(min_length=1), BeforeValidator(_in_list)]
    filter: ExportFilter | None = None
    format: ExportFormat
    frame_sampling: FrameSamplingAsked | None = None
    split: SplitRule | None = None
    destination: Destination
    tag: Label | None = None


class ExportCreated(WireOutput):
    """Answer of `POST /v1/exports`."""

    id: str
    status: ExportStatus
    manifest_url: str | None
    created_at: WireTime


class ExportProgress(WireOutput):
    """How far a running export is; the total is null before the plan."""

    shards_done: int
    shards_total: int | None


class ExportError(WireOutput):
    """Why an export failed."""

    code: str
    message: str


class Export(WireOutput):
    """A dataset that was asked for; the figures are null until it is completed."""

    id: str
    status: ExportStatus
    workflow: list[str]
    format: ExportFormat
    filter: dict[str, Any]
    frame_sampling: FrameSampling
    #: Null where the release that made the dataset knew no parts.
    split: SplitRule | None
    destination: dict[str, Any]
    tag: str | None
    rows: int | None
    shards: int | None
    shard_size_bytes: int | None
    frames: int | None
    actions: int | None
    manifest_url: str | None
    progress: ExportProgress
    error: ExportError | None
    created_at: WireTime
    completed_at: WireTime | None


SessionChange = Literal["added", "removed", "changed"]
ChangeCause = Literal["deletion", "request", "graph", "import", "tag", "lake"]


class SessionDifference(WireOutput):
    """A session that one of two exports has, or has otherwise."""

    session_id: str
    change: SessionChange
    cause: ChangeCause


class DifferenceCounts(WireOutput):
    """How many are the same, only in the newer one, only in the other, and in both but not the same."""

    same: int
    added: int
    removed: int
    changed: int


class ExportDifference(WireOutput):
    """What an export has, compared with another: in sums, and session by session where they are there."""

    export_id: str
    against: str
    #: Whether both hold the same rows: equal `row_set_sha256`.
    same_rows: bool
    same_request: bool
    sessions: DifferenceCounts
    shards: DifferenceCounts
    #: Sessions that differ, by what explains it; deleted ones are in no list.
    causes: dict[ChangeCause, int]
    data: list[SessionDifference]
    next_cursor: str | None
    has_more: bool


class ExportRow(SQLModel, table=True):
    """An export: the row is the queue that the dataset runs work on."""

    __tablename__ = "exports"
    __table_args__ = (
        Index("ix_exports_list", "workspace_id", "mode", "id"),
        Index("ix_exports_status", "status", "id"),
        Index("ix_exports_series", "workspace_id", "mode", "series_sha256", "id"),
        Index(
            "ix_exports_files_left",
            "id",
            sqlite_where=text("files_left"),
            postgresql_where=text("files_left"),
        ),
    )

    id: str = Field(primary_key=True)
    workspace_id: str
    mode: str
    status: str
    format: str
    #: Resolved request: workflow, filter, frame_sampling, split. Times are absolute.
    spec: dict[str, Any] = Field(sa_type=JSON)
    destination: dict[str, Any] = Field(sa_type=JSON)
    tag: str | None = None
    #: Dataset name = dynamic partition of the `datasets` asset.
    dataset: str
    #: How many runs took it up; a killed run leaves the export to the next one.
    attempt: int = 0
    #: The last of them that brought it on.
    progressed_attempt: int | None = None
    #: Why the last run that was cut short could not go on.
    last_error: str | None = None
    #: Whether files of an export that failed may still lie at the destination.
    files_left: bool | None = None
    shards_total: int | None = None
    shards_done: int = 0
    rows: int | None = Field(default=None, sa_type=BigInteger)
    shards: int | None = None
    shard_size_bytes: int | None = Field(default=None, sa_type=BigInteger)
    frames: int | None = Field(default=None, sa_type=BigInteger)
    actions: int | None = Field(default=None, sa_type=BigInteger)
    #: Rows that the plan holds in the quota of this period (`YYYY-MM`); null where nothing is held.
    reserved_rows: int | None = Field(default=None, sa_type=BigInteger)
    reserved_period: str | None = None
    #: Blob that holds the plan; a second attempt works on the same one.
    plan_key: str | None = None
    plan_sha256: str | None = None
    #: Digest of what an export has in common with the one whose shards it may take over.
    series_sha256: str | None = None
    #: `parent` and `tombstones` of the manifest, as of the plan.
    lineage: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    row_set_sha256: str | None = None
    manifest_sha256: str | None = None
    error: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    #: The POST that asked for it; None for one that was made in Dagster.
    request_id: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None


class ExportWorkflowRow(SQLModel, table=True):
    """One workflow of an export; the list filter starts from it."""

    __tablename__ = "export_workflows"
    __table_args__ = (Index("ix_export_workflows", "workspace_id", "mode", "workflow", "export_id"),)

    export_id: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    workspace_id: str
    mode: str


class ExportShardRow(SQLModel, table=True):
    """One planned shard and what became of it; done shards are never written again."""

    __tablename__ = "export_shards"

    export_id: str = Field(primary_key=True)
    #: Path relative to the manifest; unique, since it names kind, workflow and bucket.
    path: str = Field(primary_key=True)
    kind: str
    workflow: str
    bucket: int
    content_key: str
    #: As planned; a file with another number of rows is refused.
    rows: int = Field(sa_type=BigInteger)
    sessions: int
    is_done: bool = False
    #: The export of which the file was copied.
    reused_from: str | None = None
    size_bytes: int | None = Field(default=None, sa_type=BigInteger)
    sha256: str | None = None
