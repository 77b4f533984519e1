"""Client methods for sessions: recording, reading, and streams that resume after a break. Spec §4.1.

A stream continues after a broken connection at the position of the last message. Contract §2–§3.
"""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import orjson

from recorder import clock, limits
from recorder.client.errors import TEMPORARY_STATUSES, ApiError, ClientError, TookTooLong, Unreachable
from recorder.client.transport import Json, Requests, Transport, TransportCall, poll_request_until_status
from recorder.client.upload_batches import CapturedFrame, EncodedFrame, event_batch_calls, frame_batch_calls

# Silence after which a stream counts as broken: the service sends a comment in each third of it.
_SILENCE_S = 3.0 * limits.STREAM_KEEP_ALIVE_S
_PAUSE_MAX_S = 3.0


@dataclass
class _ResumePosition:
    """Position up to which a stream was read."""

    is_from_start: bool
    #: Position of the last message.
    position: str | None
    heard_at: float

    @property
    def params(self) -> dict[str, str]:
        return {"from": "start"} if self.is_from_start and self.position is None else {}

    @property
    def headers(self) -> dict[str, str]:
        known = {} if self.position is None else {"Last-Event-ID": self.position}
        return {"Accept": "text/event-stream", **known}


def read_resumed_stream(
    transport: Transport, path: str, *, from_start: bool, after: int | None, patience_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the messages of a stream until it ends, over several connections where they break.

    The pauses are made here and not by stamina: each message that arrives resets them.

    Args:
        transport: sends the requests.
        path: address of the stream.
        from_start: begin with the first message of the session.
        after: position of the last message that was received before.
        patience_s: seconds without a message after which the last error is raised.

    Raises:
        ApiError: if the service refuses the stream.
        Unreachable: if it does not answer for so long.
    """
    progress = _ResumePosition(from_start, None if after is None else str(after), time.monotonic())
    pause_s = transport.reconnect_pause_s
    while True:
        heard_at = progress.heard_at
        try:
            if (yield from _read_stream_until_break(transport, path, progress)):
                return
        except ClientError as error:
            if not _is_temporary_stream_error(error) or time.monotonic() - progress.heard_at > patience_s:
                raise
        is_fresh = progress.heard_at > heard_at
        pause_s = transport.reconnect_pause_s if is_fresh else min(2 * pause_s, _PAUSE_MAX_S)
        time.sleep(pause_s)


def _read_stream_until_break(
    transport: Transport, path: str, progress: _ResumePosition
) -> Generator[dict[str, Any], None, bool]:
    """Yield the messages of one connection; return whether the stream is over."""
    with transport.streamed(path, progress.params, progress.headers, silence_s=_SILENCE_S) as response:
        if response.status_code == 204:
            return True
        for fields in _read_stream_blocks(response.iter_bytes()):
            progress.heard_at = time.monotonic()
            progress.position = fields.get("id", progress.position)
            if fields.get("event") == "stream.end":
                return True
            if "data" in fields:
                message: dict[str, Any] = orjson.loads(fields["data"])
                yield message
    return False


def _read_stream_blocks(chunks: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """Yield the fields of each block; a block that is cut off before its empty line is dropped."""
    rest = b""
    for chunk in chunks:
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            lines = (line.partition(":") for line in block.decode().split("\n"))
            yield {name: value.removeprefix(" ") for name, _, value in lines}


def _is_temporary_stream_error(error: ClientError) -> bool:
    if isinstance(error, ApiError):
        return error.status in TEMPORARY_STATUSES and error.code != "quota_exceeded"
    return isinstance(error, Unreachable)


class Sessions(Requests):
    """Methods for sessions with their events, frames, tags and streams."""

    def create_session(
        self,
        workflow: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        actor: Mapping[str, str] | None = None,
        start: bool = False,
        started_at: datetime | None = None,
    ) -> Json:
        """Create a session; `started_at` (with `start`) imports a recording made elsewhere."""
        body: Json = {"workflow": workflow, "start": start}
        if metadata is not None:
            body["metadata"] = metadata
        if actor is not None:
            body["actor"] = actor
        if started_at is not None:
            body["started_at"] = clock.to_iso(started_at)
        return self._create("/v1/sessions", body)

    def start(self, session_id: str) -> Json:
        """Start a session and return it."""
        return self._post(f"{_make_session_url_path(session_id)}/start")

    def stop(self, session_id: str) -> Json:
        """Stop a session and return it; the service seals it soon after."""
        return self._post(f"{_make_session_url_path(session_id)}/stop")

    def batch_stop(self, session_ids: Iterable[str]) -> list[Json]:
        """Stop many sessions; return one result for each id."""
        wanted = list(session_ids)
        results: list[Json] = []
        for first in range(0, len(wanted), limits.BATCH_STOP_IDS):
            body = {"ids": wanted[first : first + limits.BATCH_STOP_IDS]}
            results += self._post("/v1/sessions:batch_stop", body)["data"]
        return results

    def delete_session(self, session_id: str, *, hard: bool = False) -> None:
        """Delete a session: softly (gone from every read at once), or at once and for good."""
        self._transport.send(
            TransportCall(
                "DELETE", _make_session_url_path(session_id), params={"hard": "true"} if hard else None
            )
        )

    def add_events(self, session_id: str, events: Iterable[Mapping[str, Any] | bytes]) -> int:
        """Upload events in batches; return how many the service accepted, those sent before included.

        Args:
            session_id: the session.
            events: event items, or the JSON of each.
        """
        answers = map(self._transport.json, event_batch_calls(session_id, events))
        return sum(answer["accepted"] + answer["duplicates"] for answer in answers)

    def add_frames(self, session_id: str, frames: Iterable[CapturedFrame | EncodedFrame]) -> list[Json]:
        """Upload frames in batches; return `{id, t_ms, sha256, bytes}` of each, in order."""
        answers = map(self._transport.json, frame_batch_calls(session_id, frames))
        return [frame for answer in answers for frame in answer["data"]]

    def tag(
        self, session_id: str, name: str, *, data: Mapping[str, Any] | None = None, t_ms: int | None = None
    ) -> Json:
        """Tag a moment of a session (without `t_ms`: now, or the end once it is stopped)."""
        body: Json = {"name": name}
        if data is not None:
            body["data"] = data
        if t_ms is not None:
            body["t_ms"] = t_ms
        return self._create(f"{_make_session_url_path(session_id)}/tags", body)

    def get_session(self, session_id: str, *, include: Iterable[str] = ()) -> Json:
        """Return a session; `include` adds `events`, `tags`, `frames_summary`."""
        return self._get(_make_session_url_path(session_id), {"include": ",".join(include) or None})

    def list_sessions(self, *, workflow: str | list[str] | None = None, **filters: str) -> Iterator[Json]:
        """Yield every session that matches, newest first.

        Args:
            workflow: one slug or several.
            filters: status, outcome, since, until, tag, path; `actor_kind` is sent as `actor.kind`.
        """
        named = {name.replace("actor_kind", "actor.kind"): value for name, value in filters.items()}
        return self._iterate_pages("/v1/sessions", {"workflow": workflow, **named})

    def list_events(
        self,
        session_id: str,
        *,
        types: Sequence[str] = (),
        from_t_ms: int | None = None,
        to_t_ms: int | None = None,
    ) -> Iterator[Json]:
        """Yield the session's events in order of `(t_ms, id)`.

        Args:
            session_id: the session.
            types: event types to read; all without any.
            from_t_ms: milliseconds since the session's start, inclusive.
            to_t_ms: milliseconds since the session's start, exclusive.
        """
        chosen: dict[str, Any] = {"from_t_ms": from_t_ms, "to_t_ms": to_t_ms, "type": list(types) or None}
        params = {name: value for name, value in chosen.items() if value is not None}
        return self._iterate_pages(f"{_make_session_url_path(session_id)}/events", params)

    def list_frames(self, session_id: str) -> Iterator[Json]:
        """Yield the session's frames (without their bytes) in order of `(t_ms, id)`."""
        return self._iterate_pages(f"{_make_session_url_path(session_id)}/frames")

    def list_tags(self, session_id: str) -> Iterator[Json]:
        """Yield the session's tags in order of `(t_ms, id)`."""
        return self._iterate_pages(f"{_make_session_url_path(session_id)}/tags")

    def stream(
        self, session_id: str, *, from_start: bool = False, after: int | None = None
    ) -> Iterator[Json]:
        """Yield messages of a session until it is sealed: `{id, event, data}`, where `id` is the position.

        The stream continues after a broken connection without missing or repeating a message. Closing the
        iterator closes the stream.

        Args:
            session_id: the session.
            from_start: begin with the first message; by default with the next one.
            after: begin after this position, of the last half hour.

        Raises:
            ApiError: also later, if the session was deleted or the key was revoked.
            Unreachable: if the service does not answer within the patience of the client.
        """
        return read_resumed_stream(
            self._transport,
            f"{_make_session_url_path(session_id)}/events/stream",
            from_start=from_start,
            after=after,
            patience_s=self._patience_s,
        )

    def get_frame(self, session_id: str, frame_id: str) -> Json:
        """Return the record of a frame."""
        return self._get(f"{_make_session_url_path(session_id)}/frames/{quote(frame_id, safe='')}")

    def frame_dom(self, session_id: str, frame_id: str) -> Json:
        """Return the DOM snapshot of a frame, as it was sent."""
        return self._get(f"{_make_session_url_path(session_id)}/frames/{quote(frame_id, safe='')}/dom")

    def frame_html(self, session_id: str, frame_id: str) -> str:
        """Return the DOM snapshot of a frame as HTML, without scripts."""
        path = f"{_make_session_url_path(session_id)}/frames/{quote(frame_id, safe='')}/dom"
        return self._transport.send(TransportCall("GET", path, repeatable=True, accept="text/html")).text

    def frame_image(self, session_id: str, frame_id: str) -> bytes:
        """Return the image file of a frame."""
        path = f"{_make_session_url_path(session_id)}/frames/{quote(frame_id, safe='')}/image"
        return self._transport.send(TransportCall("GET", path, repeatable=True)).content

    def wait_sealed(self, session_ids: str | Iterable[str], *, timeout_s: float = 120.0) -> list[Json]:
        """Wait until all sessions are sealed, and return them in the order given.

        Raises:
            TookTooLong: if one is not sealed within `timeout_s` seconds.
        """
        wanted = [session_ids] if isinstance(session_ids, str) else list(session_ids)
        deadline = time.monotonic() + timeout_s
        return [self._wait_sealed(session_id, deadline, timeout_s) for session_id in wanted]

    def _wait_sealed(self, session_id: str, deadline: float, timeout_s: float) -> Json:
        session: Json = {}

        def read() -> Json:
            session.update(self.get_session(session_id))
            return session

        if poll_request_until_status(read, ("sealed",), deadline) is None:
            raise _make_unsealed_error(session, timeout_s)
        return session


def _make_unsealed_error(session: Json, timeout_s: float) -> TookTooLong:
    """Return the error for a session that was not sealed in time, with its reason."""
    session_id, status = session["id"], session["status"]
    if status in ("created", "recording"):
        advice = f"It is {status}, and only stopped sessions are sealed: stop it."
    elif reason := session["seal_error"]:
        advice = (
            f"It was set aside ({reason['code']}); the operator's command: recorder sessions quarantined."
        )
    else:
        advice = None
    return TookTooLong(f"{session_id} is not sealed", timeout_s, advice=advice)


def _make_session_url_path(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}"
