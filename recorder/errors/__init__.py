"""Errors of the service as a tree of kinds; contract §1 lists their codes.

RecorderError
├── BadRequest        400  InvalidHost MalformedRequest InvalidJson InvalidCursor InvalidEventId
│                         UnsupportedVersion
├── Unauthenticated   401  MissingAuthorization InvalidApiKey
├── Forbidden         403  InsufficientScope WorkspaceDisabled InvalidSignature UrlExpired
├── NotFound          404  UnknownWorkflow NoSuchAddress (code `not_found`, with the kind of resource)
├── NotAcceptable     406
├── RequestTimeout    408
├── Conflict          409  InvalidState SessionNotRecording SessionNotSealed EventConflict
│                         IdempotencyInProgress
├── Gone              410  ResumeWindowExpired
├── TooLarge          413  PayloadTooLarge HeadTooLarge
├── UnsupportedMediaType 415
├── RangeNotSatisfiable 416
├── Invalid           422  ValidationFailed and the finer codes
├── Exhausted         429  RateLimited TooManyConnections TooManyStreams QuotaExceeded
└── Unavailable       503  IdentityMissing NotReady Overloaded NoFreeConnection SessionBusy
                          (nothing was acknowledged)

The HTTP layer maps kinds to statuses; the command line maps them to exit codes. Messages are built from
names, states and limits, never from the offending value.
"""

from recorder.errors.access import (
    InsufficientScope,
    InvalidApiKey,
    InvalidSignature,
    MissingAuthorization,
    NoFreeConnection,
    QuotaExceeded,
    RateLimited,
    TooManyConnections,
    TooManyStreams,
    UrlExpired,
    WorkspaceDisabled,
)
from recorder.errors.conflicts import (
    EventConflict,
    IdempotencyInProgress,
    InvalidState,
    ResumeWindowExpired,
    SessionNotRecording,
    SessionNotSealed,
)
from recorder.errors.fields import (
    BatchTooLarge,
    DestinationNotAllowed,
    EmptyBatch,
    IdempotencyKeyReused,
    ImageTooLarge,
    InvalidDestination,
    InvalidImage,
    InvalidRange,
    InvalidTime,
    InvalidUrl,
    LimitReached,
    MetadataTooLarge,
    ReadTooLong,
    SessionFull,
    TooManyIds,
    UrlNotAllowed,
    ValidationFailed,
)
from recorder.errors.kinds import (
    BadRequest,
    Conflict,
    Exhausted,
    Forbidden,
    Gone,
    IdentityMissing,
    Invalid,
    NotFound,
    NotReady,
    Overloaded,
    Problem,
    RecorderError,
    SessionBusy,
    TooLarge,
    Unauthenticated,
    Unavailable,
    json_pointer,
)
from recorder.errors.requests import (
    HeadTooLarge,
    InvalidCursor,
    InvalidEventId,
    InvalidHost,
    InvalidJson,
    MalformedRequest,
    NoSuchAddress,
    NotAcceptable,
    PayloadTooLarge,
    RangeNotSatisfiable,
    RequestTimeout,
    UnknownWorkflow,
    UnsupportedMediaType,
    UnsupportedVersion,
)

__all__ = [
    "BadRequest",
    "BatchTooLarge",
    "Conflict",
    "DestinationNotAllowed",
    "EmptyBatch",
    "EventConflict",
    "Exhausted",
    "Forbidden",
    "Gone",
    "HeadTooLarge",
    "IdempotencyInProgress",
    "IdempotencyKeyReused",
    "IdentityMissing",
    "ImageTooLarge",
    "InsufficientScope",
    "Invalid",
    "InvalidApiKey",
    "InvalidCursor",
    "InvalidDestination",
    "InvalidEventId",
    "InvalidHost",
    "InvalidImage",
    "InvalidJson",
    "InvalidRange",
    "InvalidSignature",
    "InvalidState",
    "InvalidTime",
    "InvalidUrl",
    "LimitReached",
    "MalformedRequest",
    "MetadataTooLarge",
    "MissingAuthorization",
    "NoFreeConnection",
    "NoSuchAddress",
    "NotAcceptable",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PayloadTooLarge",
    "Problem",
    "QuotaExceeded",
    "RangeNotSatisfiable",
    "RateLimited",
    "ReadTooLong",
    "RecorderError",
    "RequestTimeout",
    "ResumeWindowExpired",
    "SessionBusy",
    "SessionFull",
    "SessionNotRecording",
    "SessionNotSealed",
    "TooLarge",
    "TooManyConnections",
    "TooManyIds",
    "TooManyStreams",
    "Unauthenticated",
    "Unavailable",
    "UnknownWorkflow",
    "UnsupportedMediaType",
    "UnsupportedVersion",
    "UrlExpired",
    "UrlNotAllowed",
    "ValidationFailed",
    "WorkspaceDisabled",
    "json_pointer",
]
