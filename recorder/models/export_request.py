"""Bodies of `POST /v1/exports`: filter, sampling, split and destinations. Spec §4.3.

Buckets, accounts and regions become parts of host names and paths: what the clouds themselves would not take
is refused here, so that no name leads anywhere else.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic import Field as WireField

from recorder import limits
from recorder.models import text_patterns
from recorder.models.wire import ActorKind, Outcome, TimeBound, WireInput

#: Leaves room in the 1,024 bytes of a key for the export's id and the longest path of a file.
_PREFIX_BYTES = 512
_IP_ADDRESS = re.compile(r"[0-9.]+")


def _check_destination_bucket(value: str) -> str:
    if ".." in value or ".-" in value or "-." in value or _IP_ADDRESS.fullmatch(value):
        raise ValueError("is no name of a bucket")
    return value


def _check_destination_container(value: str) -> str:
    if "--" in value:
        raise ValueError("is no name of a container")
    return value


def _check_destination_prefix(value: str) -> str:
    """Check a prefix and take the slash from its end.

    Dots at the end of a segment are cut by some stores, and backslashes read as slashes by others.
    """
    prefix = value.removesuffix("/")
    if not value.isprintable() or "\\" in value or len(prefix.encode()) > _PREFIX_BYTES:
        raise ValueError(f"takes up to {_PREFIX_BYTES} bytes of printable characters, without backslashes")
    if any(not part or part.endswith((".", " ")) or part.startswith(" ") for part in prefix.split("/")):
        raise ValueError("takes names with single slashes between them, none at the start, no dots at an end")
    return prefix


S3Bucket = Annotated[
    str, WireField(pattern=text_patterns.S3_BUCKET), AfterValidator(_check_destination_bucket)
]
GcsBucket = Annotated[
    str, WireField(pattern=text_patterns.GCS_BUCKET), AfterValidator(_check_destination_bucket)
]
KeyPrefix = Annotated[str, WireField(min_length=1), AfterValidator(_check_destination_prefix)]
AwsRegion = Annotated[str, WireField(pattern=text_patterns.AWS_REGION)]
RoleArn = Annotated[str, WireField(pattern=text_patterns.ROLE_ARN)]
ServiceAccount = Annotated[str, WireField(pattern=text_patterns.SERVICE_ACCOUNT)]
AzureAccount = Annotated[str, WireField(pattern=text_patterns.AZURE_ACCOUNT)]
AzureContainer = Annotated[
    str, WireField(pattern=text_patterns.AZURE_CONTAINER), AfterValidator(_check_destination_container)
]


ExportFormat = Literal["parquet", "webdataset", "jsonl", "arrow"]
SamplingMode = Literal["event_only", "every_n_ms", "keyframes_only", "all"]
SplitUnit = Literal["session", "actor"]


def _accept_one_filter_slug(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Take one slug as a list of one; its error then names the member, not an item of a list."""
    return [_SLUG.validate_python(value)] if isinstance(value, str) else check(value)


def _check_printable_export_text(value: str) -> str:
    if not value.isprintable():
        raise ValueError("takes printable characters")
    return value


Slug = Annotated[str, WireField(pattern=limits.WORKFLOW_PATTERN)]
_SLUG = TypeAdapter(Slug)
Label = Annotated[
    str,
    WireField(min_length=1, max_length=limits.TAG_NAME_CHARACTERS),
    AfterValidator(_check_printable_export_text),
]


class ExportFilter(WireInput):
    """Filter of sessions; a member that was not sent excludes nothing."""

    outcome: Outcome | None = None
    since: TimeBound | None = None
    until: TimeBound | None = None
    actor_kind: ActorKind | None = WireField(default=None, alias="actor.kind")
    min_duration_ms: int | None = WireField(default=None, ge=0, le=limits.T_MS_MAX)
    max_duration_ms: int | None = WireField(default=None, ge=0, le=limits.T_MS_MAX)
    tag: str | None = WireField(default=None, min_length=1, max_length=limits.TAG_NAME_CHARACTERS)
    path: str | None = None
    subpath: str | None = None
    min_replayability: float | None = WireField(default=None, ge=0, le=1)
    exclude_session_ids: list[str] | None = None


class ExportFilterAsked(ExportFilter):
    """Filter of a request; stored exports of earlier releases may name tags that no session can have."""

    tag: Label | None = None


class FrameSampling(WireInput):
    """Selection of the frames of a session."""

    mode: SamplingMode = "event_only"
    interval_ms: int | None = WireField(default=None, ge=1)
    keep_action_frames: bool = False


class FrameSamplingAsked(FrameSampling):
    """Frame sampling of a request; stored exports of earlier releases may have longer intervals."""

    interval_ms: int | None = WireField(default=None, ge=1, le=limits.T_MS_MAX)


class SplitRule(WireInput):
    """Division of sessions into `train`, `validation` and `test`; no unit is in two of them.

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


def _choose_destination_model(value: Any) -> Any:
    """Choose the model by `kind` first, so that what is wrong is found under the member's own name."""
    if isinstance(value, BaseModel):
        return value
    return _DESTINATIONS[DestinationObject.model_validate(value).kind].model_validate(value)


RequestedDestination = Annotated[
    AnyDestination, WireField(discriminator="kind"), BeforeValidator(_choose_destination_model)
]


class ExportCreate(WireInput):
    """Body of `POST /v1/exports`."""

    workflow: Annotated[
        list[Slug],
        WireField(min_length=1, max_length=limits.EXPORT_WORKFLOWS),
        WrapValidator(
            _accept_one_filter_slug,
            json_schema_input_type=Slug
            | Annotated[list[Slug], WireField(min_length=1, max_length=limits.EXPORT_WORKFLOWS)],
        ),
    ]
    filter: ExportFilterAsked | None = None
    format: ExportFormat
    frame_sampling: FrameSamplingAsked | None = None
    split: SplitRule | None = None
    destination: RequestedDestination
    tag: Label | None = None
