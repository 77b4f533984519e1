"""A session's stream, taken up again after every cut: nothing missed, nothing twice. Contract §3 (SSE)."""

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from recorder import limits
from recorder.client.errors import ApiError, ClientError, Unreachable
from recorder.client.transport import Transport

# The service says at least a word in so long; three that do not come are a cut.
_SILENCE_S = 3.0 * limits.STREAM_KEEP_ALIVE_S
_PAUSE_FIRST_S = 0.2
_PAUSE_MAX_S = 3.0
#: What may be otherwise in a moment: a limit, a restart, a gateway before a service that restarts.
_PASSING = (429, 502, 503, 504)


@dataclass
class _Place:
    """How far the stream was read."""

    is_from_start: bool
    #: The last position that was told.
    position: str | None
    heard_at: float

    @property
    def params(self) -> dict[str, str]:
        return {"from": "start"} if self.is_from_start and self.position is None else {}

    @property
    def headers(self) -> dict[str, str]:
        known = {} if self.position is None else {"Last-Event-ID": self.position}
        return {"Accept": "text/event-stream", **known}


def read_stream(
    transport: Transport, path: str, *, from_start: bool, after: int | None, patience_s: float
) -> Iterator[dict[str, Any]]:
    """The messages of a stream until it ends, over as many connections as it takes.

    Args:
        path: address of the stream.
        after: position of the last message that was received before.
        patience_s: seconds without a word after which the last error is raised.

    Raises:
        ApiError: if the service refuses the stream.
        Unreachable: if it does not answer for so long.
    """
    place = _Place(from_start, None if after is None else str(after), time.monotonic())
    pause_s = _PAUSE_FIRST_S
    while True:
        heard_at = place.heard_at
        try:
            if (yield from _read_connection(transport, path, place)):
                return
        except ClientError as error:
            if not _is_passing(error) or time.monotonic() - place.heard_at > patience_s:
                raise
        pause_s = _PAUSE_FIRST_S if place.heard_at > heard_at else min(2 * pause_s, _PAUSE_MAX_S)
        time.sleep(pause_s)


def _read_connection(transport: Transport, path: str, place: _Place) -> Generator[dict[str, Any], None, bool]:
    """The messages that one connection brings; returns whether the stream is over."""
    with transport.streamed(path, place.params, place.headers, silence_s=_SILENCE_S) as response:
        if response.status_code == 204:
            return True
        for fields in _blocks(response.iter_bytes()):
            place.heard_at = time.monotonic()
            place.position = fields.get("id", place.position)
            if fields.get("event") == "stream.end":
                return True
            if "data" in fields:
                message: dict[str, Any] = orjson.loads(fields["data"])
                yield message
    return False


def _blocks(chunks: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """The fields of each block; one that was cut off before its empty line does not count."""
    rest = b""
    for chunk in chunks:
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            lines = (line.partition(":") for line in block.decode().split("\n"))
            yield {name: value.removeprefix(" ") for name, _, value in lines}


def _is_passing(error: ClientError) -> bool:
    if isinstance(error, ApiError):
        return error.status in _PASSING and error.code != "quota_exceeded"
    return isinstance(error, Unreachable)
