"""Errors of fields, items and files of a request: 422 and its specific codes. Contract §1."""

from recorder.errors.kinds import Invalid, Problem
from recorder.number_formats import format_count


class ValidationFailed(Invalid):
    """One or more fields are invalid; `errors` lists them."""

    def __init__(self, problems: list[Problem]) -> None:
        pointers = {problem.pointer or problem.where for problem in problems}
        where = ", ".join(sorted(pointers, key=_make_pointer_sort_key)[:5])
        super().__init__(f"{format_count(len(problems), 'problem')}: {where}.", problems)

    @classmethod
    def of(cls, pointer: str, code: str, *, message: str, where: str = "body") -> "ValidationFailed":
        """Return the error for one invalid field."""
        return cls([Problem(where, pointer, code, message)])


def _make_pointer_sort_key(pointer: str) -> list[tuple[int, str]]:
    """Return a key that orders the items of an array by number: it compares the length of numbers first."""
    return [(len(part) if part.isdecimal() else 0, part) for part in pointer.split("/")]


class MetadataTooLarge(Invalid):
    """The metadata of a session exceed 16 KB."""

    code = "metadata_too_large"
    title = "Metadata too large"

    def __init__(self, limit_bytes: int) -> None:
        detail = f"metadata may hold at most {limit_bytes} bytes of compact UTF-8 JSON; shorten it."
        super().__init__(detail, [Problem("body", "/metadata", self.code, detail)])


class BatchTooLarge(Invalid):
    """The batch has more items than allowed."""

    code = "batch_too_large"
    title = "Batch too large"

    def __init__(self, name: str, limit: int) -> None:
        detail = f"A batch holds at most {limit} {name}; send the rest in another batch."
        super().__init__(detail, [Problem("body", f"/{name}", self.code, detail)])


class EmptyBatch(Invalid):
    """The batch has no items."""

    code = "empty_batch"
    title = "Empty batch"

    def __init__(self, name: str) -> None:
        detail = f"{name} must hold at least one item."
        super().__init__(detail, [Problem("body", f"/{name}", self.code, detail)])


class TooManyIds(Invalid):
    """The list has more ids than allowed."""

    code = "too_many_ids"
    title = "Too many ids"

    def __init__(self, pointer: str, limit: int, *, advice: str = "send the rest in another request") -> None:
        detail = f"Send at most {limit} ids at once; {advice}."
        super().__init__(detail, [Problem("body", pointer, self.code, detail)])


class InvalidTime(Invalid):
    """The value is not a time, or an impossible one."""

    code = "invalid_time"
    title = "Invalid time"

    def __init__(self, name: str, detail: str | None = None, *, where: str = "query") -> None:
        text = detail or f"{name} takes an ISO 8601 time with a zone, such as 2026-06-01T00:00:00Z."
        super().__init__(text, [Problem(where, name, self.code, text)])

    @classmethod
    def of(cls, problems: list[Problem]) -> "InvalidTime":
        """Return the error for one or more fields that are not times."""
        error = cls(problems[0].pointer, problems[0].message, where=problems[0].where)
        error.problems = problems
        return error


class InvalidRange(Invalid):
    """The lower bound exceeds the upper bound, or the upper bound is in the future."""

    code = "invalid_range"
    title = "Invalid range"

    def __init__(self, low: str, high: str, *, where: str = "query", detail: str | None = None) -> None:
        text = detail or f"{low} must not exceed {high}."
        super().__init__(text, [Problem(where, low, self.code, text)])


class InvalidImage(Invalid):
    """The bytes are not a picture of the stated type."""

    code = "invalid_image"
    title = "Invalid image"

    def __init__(self, index: int, message: str) -> None:
        super().__init__(
            "A frame is not a readable image; send PNG, JPEG or WebP of the stated content_type.",
            [Problem("body", f"/frames/{index}", self.code, message)],
        )


class ImageTooLarge(Invalid):
    """The picture has too many bytes or pixels."""

    code = "image_too_large"
    title = "Image too large"

    def __init__(self, index: int, message: str) -> None:
        super().__init__(
            "A frame is too large; send a smaller image.",
            [Problem("body", f"/frames/{index}", self.code, message)],
        )


class InvalidDestination(Invalid):
    """The destination cannot be written to."""

    code = "invalid_destination"
    title = "Invalid destination"

    def __init__(self, detail: str, pointer: str = "/destination") -> None:
        super().__init__(detail, [Problem("body", pointer, self.code, detail)])


class DestinationNotAllowed(Invalid):
    """The local path is outside of the operator's export root, or the service has none."""

    code = "destination_not_allowed"
    title = "Destination not allowed"

    def __init__(self, *, has_root: bool = True) -> None:
        detail = (
            "A local destination must be below RECORDER_LOCAL_EXPORT_ROOT; ask the operator for it."
            if has_root
            else "This service has no export root (RECORDER_LOCAL_EXPORT_ROOT is not set); ask the operator, "
            "or use signed_url."
        )
        super().__init__(detail, [Problem("body", "/destination/path", self.code, detail)])


class IdempotencyKeyReused(Invalid):
    """An Idempotency-Key was sent with two different bodies."""

    code = "idempotency_key_reused"
    title = "Idempotency key reused"

    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key was sent before with another body; use a new key for each request."
        )


class InvalidUrl(Invalid):
    """The URL cannot be read, or has a form that the service does not call."""

    code = "invalid_url"
    title = "Invalid URL"

    def __init__(self, detail: str, pointer: str = "/url") -> None:
        super().__init__(detail, [Problem("body", pointer, self.code, detail)])


class UrlNotAllowed(Invalid):
    """The service does not call this URL."""

    code = "url_not_allowed"
    title = "URL not allowed"

    def __init__(self, detail: str, pointer: str = "/url") -> None:
        super().__init__(detail, [Problem("body", pointer, self.code, detail)])


class SessionFull(Invalid):
    """The batch would exceed the largest size of a session."""

    code = "limit_reached"
    title = "Limit reached"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(
            f"A session holds at most {limit} {what}, and this batch would exceed that; the batch was not "
            "stored. Stop the session and continue in a new session."
        )


class LimitReached(Invalid):
    """The workspace, or another owner, has reached its limit of this resource."""

    code = "limit_reached"
    title = "Limit reached"

    def __init__(
        self, what: str, limit: int, remedy: str = "delete one first", *, owner: str = "workspace"
    ) -> None:
        super().__init__(f"A {owner} has at most {limit} {what}; {remedy}.")


class ReadTooLong(Invalid):
    """The database took longer for a page of a list than it may."""

    code = "limit_reached"
    title = "Limit reached"

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"The database ended this list after {limit_s:g} s. Ask for less: send more filters, or `since` "
            "and `until` that are closer together. If the same request was fast before, try again later."
        )
