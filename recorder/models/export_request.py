"""What is asked of an export: sessions, frames, parts, format and destination. Spec §4.3; contract §5."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic import Field as WireField

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
from recorder.models.wire import ActorKind, Outcome, TimeBound, WireInput

ExportFormat = Literal["parquet", "webdataset", "jsonl", "arrow"]
SamplingMode = Literal["event_only", "every_n_ms", "keyframes_only", "all"]
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
    since: TimeBound | None = None
    until: TimeBound | None = None
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
