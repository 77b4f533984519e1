"""Requests that cannot be read as a whole: their JSON, cursor, size, type or version. Contract §1."""

from typing import Any

from recorder.errors.kinds import BadRequest, NotFound, Problem, RecorderError, TooLarge


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
    """A cursor that this list did not give out, or that leads nowhere any more."""

    code = "invalid_cursor"
    title = "Invalid cursor"

    def __init__(
        self, detail: str = "Use the next_cursor of the previous page, with the same filters and key."
    ) -> None:
        super().__init__(detail)


class MalformedRequest(BadRequest):
    """Bytes that are no HTTP request, or a WebSocket handshake that is none."""

    code = "invalid_request"
    title = "Malformed request"

    def __init__(self, detail: str = "Send a request as HTTP/1.1 has it (RFC 9112).") -> None:
        super().__init__(detail)


class RangeNotSatisfiable(RecorderError):
    """A byte range outside of what is there."""

    code = "range_not_satisfiable"
    title = "Range not satisfiable"

    def __init__(self, size: int) -> None:
        super().__init__(f"Ask for a range within the {size} bytes, or leave Range out.")
        self.size = size


class NoSuchAddress(NotFound):
    """No route has this path, or none that this request could reach."""

    def __init__(self) -> None:
        super().__init__("route", "No such address; see /docs.")


class PayloadTooLarge(TooLarge):
    """The body is larger than this route takes."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The body may hold at most {limit_bytes} bytes; send it in smaller parts.")


class HeadTooLarge(TooLarge):
    """Request line and headers are larger than any request of ours."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"Request line and headers may hold at most {limit_bytes} bytes together.")


class UnsupportedMediaType(RecorderError):
    """A Content-Type (or an image type) that this place does not take."""

    code = "unsupported_media_type"
    title = "Unsupported media type"

    def __init__(self, accepted: str) -> None:
        super().__init__(f"Send {accepted}.")


class InvalidEventId(BadRequest):
    """A Last-Event-ID that no stream gave out."""

    code = "invalid_event_id"
    title = "Invalid event id"

    def __init__(self) -> None:
        super().__init__("Last-Event-ID takes the `id` of the last message that was received.")


class UnsupportedVersion(BadRequest):
    """A Service-Version that was never released."""

    code = "unsupported_version"
    title = "Unsupported version"

    def __init__(self, newest: str) -> None:
        super().__init__(f"Service-Version takes a release such as {newest}, or leave it out.")


class RequestTimeout(RecorderError):
    """The request came too slowly."""

    code = "request_timeout"
    title = "Request timeout"

    def __init__(self, seconds: int, *, part: str = "body") -> None:
        super().__init__(f"The request's {part} did not arrive within {seconds} s; send it faster.")


class NotAcceptable(RecorderError):
    """None of the formats that were asked for is given here."""

    code = "not_acceptable"
    title = "Not acceptable"

    def __init__(self, given: str) -> None:
        super().__init__(f"This address answers {given}.")
