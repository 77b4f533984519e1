"""Fields, items and files of a request that are not acceptable: 422 and its finer codes. Contract §1."""

from recorder.errors.kinds import Invalid, Problem


class ValidationFailed(Invalid):
    """One or more fields are wrong; `errors` says which."""

    def __init__(self, problems: list[Problem]) -> None:
        where = ", ".join(sorted({problem.pointer or problem.where for problem in problems})[:5])
        super().__init__(f"{len(problems)} problem(s): {where}.", problems)

    @classmethod
    def of(cls, pointer: str, code: str, *, message: str, where: str = "body") -> "ValidationFailed":
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


class TooManyIds(Invalid):
    """A list of ids over its cap."""

    code = "too_many_ids"
    title = "Too many ids"

    def __init__(self, pointer: str, limit: int) -> None:
        detail = f"At most {limit} ids at once."
        super().__init__(detail, [Problem("body", pointer, self.code, detail)])


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

    @classmethod
    def of(cls, problems: list[Problem]) -> "InvalidTime":
        """Return the error for one or more places that are no times."""
        error = cls(problems[0].pointer, problems[0].message, where=problems[0].where)
        error.problems = problems
        return error


class InvalidRange(Invalid):
    """A lower bound above its upper bound, or an upper one that lies ahead."""

    code = "invalid_range"
    title = "Invalid range"

    def __init__(self, low: str, high: str, *, where: str = "query", detail: str | None = None) -> None:
        text = detail or f"{low} must not lie above {high}."
        super().__init__(text, [Problem(where, low, self.code, text)])


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


class IdempotencyKeyReused(Invalid):
    """One key, two bodies."""

    code = "idempotency_key_reused"
    title = "Idempotency key reused"

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key came before with another body; use a fresh key for each request."
        )


class InvalidUrl(Invalid):
    """Not an address that a webhook can be sent to."""

    code = "invalid_url"
    title = "Invalid URL"

    def __init__(self, detail: str, pointer: str = "/url") -> None:
        super().__init__(detail, [Problem("body", pointer, self.code, detail)])


class UrlNotAllowed(Invalid):
    """An address that the service does not call."""

    code = "url_not_allowed"
    title = "URL not allowed"

    def __init__(self, detail: str, pointer: str = "/url") -> None:
        super().__init__(detail, [Problem("body", pointer, self.code, detail)])


class SessionFull(Invalid):
    """A batch that would make a session larger than a session may be."""

    code = "limit_reached"
    title = "Limit reached"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(
            f"A session holds at most {limit} {what}, and this batch would exceed that; nothing of it was "
            "stored. Stop the session and go on in a new one."
        )


class LimitReached(Invalid):
    """As many of a kind as a workspace may have."""

    code = "limit_reached"
    title = "Limit reached"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"A workspace has at most {limit} {what}; delete one first.")
