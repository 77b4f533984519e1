"""Base classes of errors: the HTTP layer maps them to statuses, the command line to exit codes."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

# A body may hold a hundred thousand wrong members; the error for each takes 20 µs.
_SHOWN_PROBLEMS = 100


class RecorderError(Exception):
    """Base of all errors that carry a code of the contract."""

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    #: Seconds after which the same request may succeed; None if waiting does not help.
    retry_after_s: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error as message and members: most constructors take other arguments."""
        return _unpickle_recorder_error, (type(self), self.args), self.__dict__

    @property
    def extra(self) -> dict[str, Any]:
        """Further members of the problem document (`resource`, `current_status`, `errors`)."""
        return {}


def _unpickle_recorder_error(kind: type[RecorderError], args: tuple[Any, ...]) -> RecorderError:
    error = kind.__new__(kind)
    error.args = args
    return error


@dataclass(frozen=True)
class Problem:
    """An invalid field of a request: `pointer` is a JSON pointer in a body, otherwise the name."""

    where: str
    pointer: str
    code: str
    message: str

    def as_json(self) -> dict[str, str]:
        """Return the item of `errors` in a problem document."""
        fields = asdict(self)
        return {"in": fields.pop("where"), **fields}


def json_pointer(*parts: str | int) -> str:
    """Return the JSON pointer (RFC 6901) to a member of a body."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


class BadRequest(RecorderError):
    """The request cannot be read (400)."""

    code = "invalid_json"
    title = "Bad request"


class Unauthenticated(RecorderError):
    """The request carries no valid API key (401)."""

    code = "invalid_api_key"
    title = "Not authenticated"


class Forbidden(RecorderError):
    """The caller lacks the permission (403)."""

    code = "insufficient_scope"
    title = "Forbidden"


class NotFound(RecorderError):
    """The resource is missing, deleted, or of another workspace or mode (404)."""

    code = "not_found"
    title = "Not found"

    def __init__(self, resource: str, detail: str | None = None) -> None:
        super().__init__(
            detail or f"No such {resource} in this workspace; check its id, and the mode of the key."
        )
        self.resource = resource

    @property
    def extra(self) -> dict[str, Any]:
        """The kind of the missing resource."""
        return {"resource": self.resource}


class Conflict(RecorderError):
    """The request is valid but conflicts with the current state (409)."""

    code = "invalid_state"
    title = "Conflict"


class Gone(RecorderError):
    """The resource existed and was removed (410)."""

    code = "resume_window_expired"
    title = "Gone"


class TooLarge(RecorderError):
    """The request exceeds a limit of size (413)."""

    code = "payload_too_large"
    title = "Payload too large"


class Invalid(RecorderError):
    """A field of the request is invalid (422)."""

    code = "validation_failed"
    title = "Validation failed"

    def __init__(self, detail: str, problems: list[Problem] | None = None) -> None:
        super().__init__(detail)
        self.problems = problems or []

    @property
    def extra(self) -> dict[str, Any]:
        """The invalid fields, if there are any."""
        shown = self.problems[:_SHOWN_PROBLEMS]
        return {"errors": [problem.as_json() for problem in shown]} if shown else {}


class Exhausted(RecorderError):
    """A rate limit or a quota is exhausted (429)."""

    code = "rate_limited"
    title = "Limit reached"


class Unavailable(RecorderError):
    """The database or a store does not answer; nothing was acknowledged (503)."""

    code = "unavailable"
    title = "Unavailable"
    retry_after_s = 1

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} does not answer; nothing was acknowledged. Try again.")


class NotReady(Unavailable):
    """A part that every request needs does not answer (503 of `GET /readyz`)."""

    def __init__(self, parts: dict[str, str], warnings: list[dict[str, Any]]) -> None:
        """Create the error.

        Args:
            parts: `ok` or `unavailable` for each part.
            warnings: warnings for the operator.
        """
        failing = ", ".join(name for name, state in parts.items() if state != "ok")
        text = (
            f"Parts that do not answer: {failing}. Requests that need one of them are refused until it does."
        )
        RecorderError.__init__(self, text)
        self._extra = {"parts": parts, "warnings": warnings}

    @property
    def extra(self) -> dict[str, Any]:
        """State of the parts, and the warnings."""
        return self._extra


class IdentityMissing(Unavailable):
    """The service has no identity of its own at a cloud; nothing was acknowledged (503)."""

    retry_after_s = 3_600  # an operator must act

    def __init__(self, cloud: str) -> None:
        RecorderError.__init__(
            self,
            f"The service has no identity of its own for {cloud}, so it writes no exports there; "
            "nothing was acknowledged. Ask its operator.",
        )


class Overloaded(Unavailable):
    """The service has no free capacity for the request; nothing was acknowledged (503)."""

    def __init__(self, what: str = "memory for request bodies") -> None:
        RecorderError.__init__(
            self, f"The service has no free {what} now; nothing was acknowledged. Try again in 1 s."
        )


class SessionBusy(Unavailable):
    """Other requests hold the session; nothing was acknowledged (503)."""

    def __init__(self) -> None:
        RecorderError.__init__(
            self,
            "Other requests have changed the session for too long without a pause; nothing was acknowledged. "
            "Try again, with fewer requests that change this session at the same time.",
        )
