"""What recording and reading sessions need of the client. Spec §4.1, contract §2–§3."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from recorder import clock, limits
from recorder.client.batches import CapturedFrame, event_calls, frame_calls
from recorder.client.errors import TookTooLong
from recorder.client.requests import Json, Requests, poll
from recorder.client.streaming import read_stream
from recorder.client.transport import Call


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
