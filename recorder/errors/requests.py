"""Errors of whole requests: JSON, cursor, size, type, version, host. Contract §1."""

from collections.abc import Sequence
from typing import Any

from recorder.errors.kinds import BadRequest, NotFound, Problem, RecorderError, TooLarge

_SHOWN_POINTERS = 5


class InvalidHost(BadRequest):
    """The `Host` header is missing, repeated, malformed, or names a host that is not allowed."""

    code = "invalid_host"
    title = "Invalid host"

    def __init__(self) -> None:
        super().__init__(
            "Send one Host header with a name of this service: localhost, the host of its public URL, or a "
            "name that its operator lists in RECORDER_ALLOWED_HOSTS."
        )


class InvalidJson(BadRequest):
    """The body is not strict JSON (400)."""

    code = "invalid_json"
    title = "The body is not valid JSON"

    def __init__(self, detail: str, *, item: str | None = None) -> None:
        super().__init__(detail)
        self.item = item

    @property
    def extra(self) -> dict[str, Any]:
        """The more specific code, if there is one."""
        if self.item is None:
            return {}
        return {"errors": [Problem("body", "", self.item, str(self)).as_json()]}


class InvalidCursor(BadRequest):
    """The cursor is not of this list, or its position was removed (400)."""

    code = "invalid_cursor"
    title = "Invalid cursor"

    def __init__(
        self, detail: str = "Use the next_cursor of the previous page, with the same filters and key."
    ) -> None:
        super().__init__(detail)


class MalformedRequest(BadRequest):
    """The bytes are not a valid HTTP request or WebSocket handshake (400)."""

    code = "invalid_request"
    title = "Malformed request"

    def __init__(self, detail: str = "The request is malformed; send HTTP/1.1 as in RFC 9112.") -> None:
        super().__init__(detail)


class RangeNotSatisfiable(RecorderError):
    """The byte range is outside of the resource (416)."""

    code = "range_not_satisfiable"
    title = "Range not satisfiable"

    def __init__(self, size: int) -> None:
        super().__init__(f"Send a Range within the {size} bytes, or no Range.")
        self.size = size


class UnknownWorkflow(NotFound):
    """The workspace has no workflow of this name in this mode (404)."""

    def __init__(self, pointers: Sequence[str] = ()) -> None:
        """Create the error.

        Args:
            pointers: positions of the unknown names in the body, if they are in one.
        """
        shown = f", at {', '.join(pointers[:_SHOWN_POINTERS])}" if len(pointers) > 1 else ""
        super().__init__(
            "workflow",
            f"This workspace has no such workflow{shown}; GET /v1/workflows lists its workflows. Check the "
            "mode of the key too.",
        )
        message = str(self) if len(pointers) == 1 else "This workspace has no such workflow."
        self.problems = [Problem("body", pointer, self.code, message) for pointer in pointers]

    @property
    def extra(self) -> dict[str, Any]:
        """The kind of the missing resource, and where the body names it."""
        errors = [problem.as_json() for problem in self.problems]
        return super().extra | ({"errors": errors} if errors else {})


class NoSuchAddress(NotFound):
    """No route has this path, or none that the request can reach (404)."""

    def __init__(self, *, ends_with_slash: bool = False) -> None:
        remedy = "remove the slash at its end" if ends_with_slash else "see /docs"
        super().__init__("route", f"No such address; {remedy}.")


class PayloadTooLarge(TooLarge):
    """The body is larger than the endpoint allows (413)."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The body may hold at most {limit_bytes} bytes; send it in smaller parts.")


class HeadTooLarge(TooLarge):
    """Request line and headers are larger than allowed (413)."""


class UnsupportedMediaType(RecorderError):
    """The Content-Type, or the type of an image, is not accepted here (415)."""

    code = "unsupported_media_type"
    title = "Unsupported media type"

    def __init__(self, accepted: str, pointer: str | None = None) -> None:
        super().__init__(f"Send {accepted}.")
        self.problems = [] if pointer is None else [Problem("body", pointer, self.code, f"Send {accepted}.")]

    @property
    def extra(self) -> dict[str, Any]:
        """The member that names the type, if one does."""
        return {"errors": [problem.as_json() for problem in self.problems]} if self.problems else {}


class InvalidEventId(BadRequest):
    """The Last-Event-ID is not an id of a stream's message (400)."""

    code = "invalid_event_id"
    title = "Invalid event id"

    def __init__(self) -> None:
        super().__init__("Last-Event-ID takes the `id` of the last message that you received.")


class UnsupportedVersion(BadRequest):
    """The Service-Version is not a release (400)."""

    code = "unsupported_version"
    title = "Unsupported version"

    def __init__(self, newest: str) -> None:
        super().__init__(
            f"Service-Version takes a release such as {newest}; send a release, or no Service-Version."
        )


class RequestTimeout(RecorderError):
    """The request arrived too slowly (408)."""

    code = "request_timeout"
    title = "Request timeout"

    def __init__(self, seconds: int, *, part: str, bytes_per_s: int | None = None) -> None:
        rate = "" if bytes_per_s is None else f", or with {bytes_per_s // 1000} kB in each second"
        super().__init__(f"The request's {part} did not arrive within {seconds} s{rate}; send it faster.")


class NotAcceptable(RecorderError):
    """The endpoint has none of the formats that Accept names (406)."""

    code = "not_acceptable"
    title = "Not acceptable"

    def __init__(self, given: str) -> None:
        super().__init__(f"This address answers {given}; name one of them in Accept.")
