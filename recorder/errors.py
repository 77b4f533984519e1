"""Every error the service raises, as a tree of kinds; contract §1 gives the codes.

RecorderError
├── BadRequest        400  InvalidJson InvalidCursor
├── Unauthenticated   401  MissingAuthorization InvalidApiKey
├── Forbidden         403  WorkspaceDisabled InvalidSignature UrlExpired
├── NotFound          404  (code `not_found`, with the kind of resource)
├── Conflict          409  InvalidState EventConflict
├── TooLarge          413  PayloadTooLarge
├── Invalid           422  ValidationFailed and the finer codes
└── Unavailable       503  (code `unavailable`; nothing was acknowledged)

The HTTP layer maps kinds to statuses; the command line maps them to exit codes. Messages are built from
names, states and limits, never from the offending value.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar


class RecorderError(Exception):
    """Base of all errors that carry a code of the contract."""

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"

    @property
    def extra(self) -> dict[str, Any]:
        """Members that stand beside the problem's own (`resource`, `current_status`, `errors`)."""
        return {}


@dataclass(frozen=True)
class Problem:
    """One place that is wrong in a request: `pointer` is a JSON pointer in a body, else the name."""

    where: str
    pointer: str
    code: str
    message: str

    def as_json(self) -> dict[str, str]:
        """The item as it stands in `errors` of a problem document."""
        fields = asdict(self)
        return {"in": fields.pop("where"), **fields}


def json_pointer(*parts: str | int) -> str:
    """The JSON pointer (RFC 6901) to a place in a body."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


class BadRequest(RecorderError):
    """The request cannot be read."""

    code = "invalid_json"
    title = "Bad request"


class InvalidJson(BadRequest):
    """The body is not strict JSON."""

    code = "invalid_json"
    title = "The body is not valid JSON"

    def __init__(self, detail: str, *, item: str | None = None) -> None:
        super().__init__(detail)
        self.item = item

    @property
    def extra(self) -> dict[str, Any]:
        """The finer code, where there is one."""
        if self.item is None:
            return {}
        return {"errors": [Problem("body", "", self.item, str(self)).as_json()]}


class InvalidCursor(BadRequest):
    """A cursor that this list did not give out."""

    code = "invalid_cursor"
    title = "Invalid cursor"

    def __init__(self) -> None:
        super().__init__("Use the next_cursor of the previous page, with the same filters and key.")


class Unauthenticated(RecorderError):
    """Nobody we know."""

    code = "invalid_api_key"
    title = "Not authenticated"


class MissingAuthorization(Unauthenticated):
    """No Authorization header."""

    code = "missing_authorization"
    title = "Missing authorization"

    def __init__(self) -> None:
        super().__init__("Send the header `Authorization: Bearer <API_KEY>`.")


class InvalidApiKey(Unauthenticated):
    """The key matches no active key."""

    code = "invalid_api_key"
    title = "Invalid API key"

    def __init__(self) -> None:
        super().__init__("The key is unknown, expired or revoked, or the scheme is not Bearer.")


class Forbidden(RecorderError):
    """Known, but not allowed."""

    code = "insufficient_scope"
    title = "Forbidden"


class WorkspaceDisabled(Forbidden):
    """The workspace is suspended or expired."""

    code = "workspace_disabled"
    title = "Workspace disabled"

    def __init__(self, status: str) -> None:
        super().__init__(f"The workspace is {status}; its operator can make it active again.")


class InvalidSignature(Forbidden):
    """A signed address that was altered."""

    code = "invalid_signature"
    title = "Invalid signature"

    def __init__(self) -> None:
        super().__init__(
            "This address was not signed by the service; read the manifest again for a fresh one."
        )


class UrlExpired(Forbidden):
    """A signed address past its time."""

    code = "url_expired"
    title = "Address expired"

    def __init__(self) -> None:
        super().__init__("This address has expired; read the manifest again for a fresh one.")


class NotFound(RecorderError):
    """Missing, deleted, or of another workspace or mode: all answer alike."""

    code = "not_found"
    title = "Not found"

    def __init__(self, resource: str) -> None:
        super().__init__(f"No such {resource} in this workspace.")
        self.resource = resource

    @property
    def extra(self) -> dict[str, Any]:
        """Which kind of thing is missing."""
        return {"resource": self.resource}


class Conflict(RecorderError):
    """Right, but not now."""

    code = "invalid_state"
    title = "Conflict"


class InvalidState(Conflict):
    """The resource's state does not admit this."""

    code = "invalid_state"
    title = "Invalid state"

    def __init__(self, status: str, *, needed: str) -> None:
        super().__init__(f"The {needed}; it is {status}.")
        self.status = status

    @property
    def extra(self) -> dict[str, Any]:
        """The state it is in."""
        return {"current_status": self.status}


class EventConflict(Conflict):
    """An id that this session already holds with other content."""

    code = "event_conflict"
    title = "Id already used"

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("These ids were sent before with other content; nothing of this batch was stored.")
        self.problems = problems

    @property
    def extra(self) -> dict[str, Any]:
        """The items concerned."""
        return {"errors": [problem.as_json() for problem in self.problems]}


class TooLarge(RecorderError):
    """The request as a whole is over its cap."""

    code = "payload_too_large"
    title = "Payload too large"


class PayloadTooLarge(TooLarge):
    """The body is larger than this route takes."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The body may hold at most {limit_bytes} bytes; send it in smaller parts.")


class Invalid(RecorderError):
    """Read, but not acceptable."""

    code = "validation_failed"
    title = "Validation failed"

    def __init__(self, detail: str, problems: list[Problem] | None = None) -> None:
        super().__init__(detail)
        self.problems = problems or []

    @property
    def extra(self) -> dict[str, Any]:
        """The items concerned, where there are any."""
        return {"errors": [problem.as_json() for problem in self.problems]} if self.problems else {}


class ValidationFailed(Invalid):
    """One or more fields are wrong; `errors` says which."""

    def __init__(self, problems: list[Problem]) -> None:
        where = ", ".join(sorted({problem.pointer or problem.where for problem in problems})[:5])
        super().__init__(f"{len(problems)} problem(s): {where}.", problems)

    @classmethod
    def of(cls, pointer: str, code: str, message: str, *, where: str = "body") -> "ValidationFailed":
        """The error for one wrong place."""
        return cls([Problem(where, pointer, code, message)])


class NotSupportedYet(ValidationFailed):
    """A part of the interface that this release does not carry yet."""

    def __init__(self, pointer: str, what: str, *, where: str = "body") -> None:
        super().__init__([Problem(where, pointer, "not_supported_yet", f"{what} is not supported yet.")])


class MetadataTooLarge(Invalid):
    """Session metadata over 16 KB."""

    code = "metadata_too_large"
    title = "Metadata too large"

    def __init__(self, limit_bytes: int) -> None:
        detail = f"metadata may hold at most {limit_bytes} bytes of compact UTF-8 JSON."
        super().__init__(detail, [Problem("body", "/metadata", self.code, detail)])


class BatchTooLarge(Invalid):
    """More items than a batch may hold."""

    code = "batch_too_large"
    title = "Batch too large"

    def __init__(self, name: str, limit: int) -> None:
        detail = f"A batch holds at most {limit} {name}; send the rest in another."
        super().__init__(detail, [Problem("body", f"/{name}", self.code, detail)])


class EmptyBatch(Invalid):
    """A batch without items."""

    code = "empty_batch"
    title = "Empty batch"

    def __init__(self, name: str) -> None:
        detail = f"A batch holds at least one of {name}."
        super().__init__(detail, [Problem("body", f"/{name}", self.code, detail)])


class InvalidTime(Invalid):
    """Not a time, or one that cannot be."""

    code = "invalid_time"
    title = "Invalid time"

    def __init__(self, name: str, detail: str | None = None, *, where: str = "query") -> None:
        text = (
            detail
            or f"{name} takes an ISO 8601 time with a zone, or a duration such as 90s, 15m, 1h, 30d, 2w."
        )
        super().__init__(text, [Problem(where, name, self.code, text)])


class InvalidRange(Invalid):
    """A lower bound above its upper bound, or an upper one that lies ahead."""

    code = "invalid_range"
    title = "Invalid range"

    def __init__(self, low: str, high: str, *, where: str = "query", detail: str | None = None) -> None:
        text = detail or f"{low} must not lie above {high}."
        super().__init__(text, [Problem(where, low, self.code, text)])


class IdempotencyKeyReused(Invalid):
    """One key, two bodies."""

    code = "idempotency_key_reused"
    title = "Idempotency key reused"

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key came before with another body; use a fresh key for each batch."
        )


class InvalidImage(Invalid):
    """Bytes that are not the picture they claim to be."""

    code = "invalid_image"
    title = "Invalid image"

    def __init__(self, index: int, message: str) -> None:
        super().__init__(
            "A frame is not a readable image.", [Problem("body", f"/frames/{index}", self.code, message)]
        )


class ImageTooLarge(Invalid):
    """A picture with too many bytes or pixels."""

    code = "image_too_large"
    title = "Image too large"

    def __init__(self, index: int, message: str) -> None:
        super().__init__("A frame is too large.", [Problem("body", f"/frames/{index}", self.code, message)])


class TooManyIds(Invalid):
    """A list of ids over its cap."""

    code = "too_many_ids"
    title = "Too many ids"

    def __init__(self, pointer: str, limit: int) -> None:
        detail = f"At most {limit} ids at once."
        super().__init__(detail, [Problem("body", pointer, self.code, detail)])


class InvalidDestination(Invalid):
    """A destination that cannot be written to."""

    code = "invalid_destination"
    title = "Invalid destination"

    def __init__(self, detail: str, pointer: str = "/destination") -> None:
        super().__init__(detail, [Problem("body", pointer, self.code, detail)])


class DestinationNotAllowed(Invalid):
    """A local path outside the operator's export root."""

    code = "destination_not_allowed"
    title = "Destination not allowed"

    def __init__(self) -> None:
        detail = "Local exports lie under the folder that RECORDER_LOCAL_EXPORT_ROOT names; ask the operator."
        super().__init__(detail, [Problem("body", "/destination/path", self.code, detail)])


class UnsupportedMediaType(RecorderError):
    """A Content-Type (or an image type) that this place does not take."""

    code = "unsupported_media_type"
    title = "Unsupported media type"

    def __init__(self, accepted: str) -> None:
        super().__init__(f"Send {accepted}.")


class Unavailable(RecorderError):
    """Database or storage is away; nothing was acknowledged."""

    code = "unavailable"
    title = "Unavailable"
    retry_after_s = 1

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} does not answer; nothing was acknowledged. Try again.")
