"""Rate limits of requests: which buckets a request draws on, and the four headers. Spec §8.1, contract §1."""

from dataclasses import dataclass

from api.endpoints import Endpoint
from recorder.access.keys import Caller
from recorder.errors import RateLimited
from recorder.runtime import Runtime

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Admission:
    """What the limits say to a request."""

    #: `X-RateLimit-Limit`, `-Remaining`, `-Reset` and `X-Scope`, for the response whatever it is.
    headers: list[Header]
    #: Why the request goes no further; None where it may.
    error: RateLimited | None = None


class Limiting:
    """The limits of one process, or of all that share a Redis; used from the event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def admit(self, caller: Caller, endpoint: Endpoint | None) -> Admission:
        """Draw on the buckets of a key and its workspace."""
        return Admission([])

    async def admit_address(self, address: str, endpoint: Endpoint | None, *, is_signed: bool) -> Admission:
        """Draw on the bucket of a client address: strangers, and downloads by signed address."""
        return Admission([])
