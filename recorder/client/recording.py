"""A session's stream, taken up again after every cut: nothing missed, nothing twice. Contract §3 (SSE)."""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import orjson

from recorder import clock, limits
from recorder.client.batches import CapturedFrame, event_calls, frame_calls
from recorder.client.errors import ApiError, ClientError, TookTooLong, Unreachable
from recorder.client.transport import Call, Json, Requests, Transport, poll

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


class Recording(Requests):
    """Sessions with their events, frames, tags and streams."""

    def create_session(
        self,
        workflow: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        actor: Mapping[str, str] | None = None,
        start: bool = False,
        started_at: datetime | None = None,
    ) -> Json:
        """A new session; `started_at` (with `start`) brings in a recording made elsewhere."""
        body: Json = {"workflow": workflow, "start": start}
        if metadata is not None:
            body["metadata"] = metadata
        if actor is not None:
            body["actor"] = actor
        if started_at is not None:
            body["started_at"] = clock.to_iso(started_at)
        return self._create("/v1/sessions", body)

    def start(self, session_id: str) -> Json:
        """The session, now recording."""
        return self._post(f"{_session(session_id)}/start")

    def stop(self, session_id: str) -> Json:
        """The session, now stopped; the service seals it soon after."""
        return self._post(f"{_session(session_id)}/stop")

    def batch_stop(self, session_ids: Iterable[str]) -> list[Json]:
        """Stop many sessions; one result for each id."""
        wanted = list(session_ids)
        results: list[Json] = []
        for first in range(0, len(wanted), limits.BATCH_STOP_IDS):
            body = {"ids": wanted[first : first + limits.BATCH_STOP_IDS]}
            results += self._post("/v1/sessions:batch_stop", body)["data"]
        return results

    def delete_session(self, session_id: str, *, hard: bool = False) -> None:
        """Delete a session: softly (gone from every read at once), or at once and for good."""
        self._transport.send(Call("DELETE", _session(session_id), params={"hard": "true"} if hard else None))

    def add_events(self, session_id: str, events: Iterable[Mapping[str, Any]]) -> int:
        """Upload events in batches; returns how many the service took, those sent before included."""
        answers = map(self._transport.json, event_calls(session_id, events))
        return sum(answer["accepted"] + answer["duplicates"] for answer in answers)

    def add_frames(self, session_id: str, frames: Iterable[CapturedFrame]) -> list[Json]:
        """Upload frames in batches; returns `{id, t_ms, sha256, bytes}` of each, in order."""
        answers = map(self._transport.json, frame_calls(session_id, frames))
        return [frame for answer in answers for frame in answer["data"]]

    def tag(
        self, session_id: str, name: str, *, data: Mapping[str, Any] | None = None, t_ms: int | None = None
    ) -> Json:
        """Mark a moment of a session (without `t_ms`: now, or the end once it is stopped)."""
        body: Json = {"name": name}
        if data is not None:
            body["data"] = data
        if t_ms is not None:
            body["t_ms"] = t_ms
        return self._create(f"{_session(session_id)}/tags", body)

    def get_session(self, session_id: str, *, include: Iterable[str] = ()) -> Json:
        """A session; `include` adds `events`, `tags`, `frames_summary`."""
        return self._get(_session(session_id), {"include": ",".join(include) or None})

    def list_sessions(self, *, workflow: str | list[str] | None = None, **filters: str) -> Iterator[Json]:
        """Every session that matches, newest first, page by page.

        Args:
            workflow: one slug or several.
            filters: status, outcome, since, until, tag, path; `actor_kind` stands for `actor.kind`.
        """
        named = {name.replace("actor_kind", "actor.kind"): value for name, value in filters.items()}
        return self._pages("/v1/sessions", {"workflow": workflow, **named})

    def list_events(
        self,
        session_id: str,
        *,
        types: Sequence[str] = (),
        from_t_ms: int | None = None,
        to_t_ms: int | None = None,
    ) -> Iterator[Json]:
        """Yield the session's events in order of `(t_ms, id)`, page by page.

        Args:
            session_id: the session.
            types: event types to read; all without any.
            from_t_ms: milliseconds since the session's start, inclusive.
            to_t_ms: milliseconds since the session's start, exclusive.
        """
        chosen: dict[str, Any] = {"from_t_ms": from_t_ms, "to_t_ms": to_t_ms, "type": list(types) or None}
        params = {name: value for name, value in chosen.items() if value is not None}
        return self._pages(f"{_session(session_id)}/events", params)

    def list_frames(self, session_id: str) -> Iterator[Json]:
        """The session's frames (without their bytes) in order of `(t_ms, id)`."""
        return self._pages(f"{_session(session_id)}/frames")

    def list_tags(self, session_id: str) -> Iterator[Json]:
        """The session's tags in order of `(t_ms, id)`."""
        return self._pages(f"{_session(session_id)}/tags")

    def stream(
        self, session_id: str, *, from_start: bool = False, after: int | None = None
    ) -> Iterator[Json]:
        """The session as it happens, until it is sealed: `{id, event, data}` each, `id` being its position.

        A connection that breaks is taken up again where it broke: nothing is missed, nothing comes twice.
        Closing the iterator leaves the stream.

        Args:
            from_start: begin with what happened so far; else with what happens from now on.
            after: begin behind this position, of the last half hour.

        Raises:
            ApiError: also in the middle, where the session or the key is gone.
            Unreachable: if the service does not answer for as long as the client has patience.
        """
        return read_stream(
            self._transport,
            f"{_session(session_id)}/events/stream",
            from_start=from_start,
            after=after,
            patience_s=self._patience_s,
        )

    def frame_image(self, session_id: str, frame_id: str) -> bytes:
        """The image file of a frame."""
        path = f"{_session(session_id)}/frames/{quote(frame_id, safe='')}/image"
        return self._transport.send(Call("GET", path, repeatable=True)).content

    def wait_sealed(self, session_ids: str | Iterable[str], *, timeout_s: float = 120.0) -> list[Json]:
        """The sessions once all of them are sealed, in the order given.

        Raises:
            TookTooLong: if one is not sealed within `timeout_s` seconds.
        """
        wanted = [session_ids] if isinstance(session_ids, str) else list(session_ids)
        deadline = time.monotonic() + timeout_s
        return [self._wait_sealed(session_id, deadline, timeout_s) for session_id in wanted]

    def _wait_sealed(self, session_id: str, deadline: float, timeout_s: float) -> Json:
        session = poll(lambda: self.get_session(session_id), ("sealed",), deadline)
        if session is None:
            raise TookTooLong(f"{session_id} is not sealed", timeout_s)
        return session


def _session(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}"
