"""The kinds of errors: the HTTP layer maps them to statuses, the command line to exit codes."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

# A body may hold a hundred thousand unknown members.
_SHOWN_PROBLEMS = 500


class RecorderError(Exception):
    """Base of all errors that carry a code of the contract."""

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    #: Seconds after which the same request may do better; None where waiting alone does not help.
    retry_after_s: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as message and members: most are made from other arguments than their message."""
        return _unpickled, (type(self), self.args), self.__dict__

    @property
    def extra(self) -> dict[str, Any]:
        """Members that stand beside the problem's own (`resource`, `current_status`, `errors`)."""
        return {}


def _unpickled(kind: type[RecorderError], args: tuple[Any, ...]) -> RecorderError:
    error = kind.__new__(kind)
    error.args = args
    return error


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


class Unauthenticated(RecorderError):
    """Nobody we know."""

    code = "invalid_api_key"
    title = "Not authenticated"


class Forbidden(RecorderError):
    """Known, but not allowed."""

    code = "insufficient_scope"
    title = "Forbidden"


class NotFound(RecorderError):
    """Missing, deleted, or of another workspace or mode: all answer alike."""

    code = "not_found"
    title = "Not found"

    def __init__(self, resource: str, detail: str | None = None) -> None:
        super().__init__(detail or f"No such {resource} in this workspace.")
        self.resource = resource

    @property
    def extra(self) -> dict[str, Any]:
        """Which kind of thing is missing."""
        return {"resource": self.resource}


class Conflict(RecorderError):
    """Right, but not now."""

    code = "invalid_state"
    title = "Conflict"


class Gone(RecorderError):
    """It was there, and is no more."""

    code = "resume_window_expired"
    title = "Gone"


class TooLarge(RecorderError):
    """The request as a whole is over its cap."""

    code = "payload_too_large"
    title = "Payload too large"


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
        shown = self.problems[:_SHOWN_PROBLEMS]
        return {"errors": [problem.as_json() for problem in shown]} if shown else {}


class Exhausted(RecorderError):
    """Too often, or too much."""

    code = "rate_limited"
    title = "Limit reached"


class Unavailable(RecorderError):
    """Database or storage is away; nothing was acknowledged."""

    code = "unavailable"
    title = "Unavailable"
    retry_after_s = 1

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} does not answer; nothing was acknowledged. Try again.")


class Overloaded(Unavailable):
    """The service is up but has no room for this request now; nothing was acknowledged."""

    def __init__(self, what: str = "memory for request bodies") -> None:
        RecorderError.__init__(
            self, f"The service has no free {what} now; nothing was acknowledged. Try again in 1 s."
        )
