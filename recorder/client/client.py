"""The client: one method for each thing that recording and reading need. Spec §4.1–§4.3, contract §2–§5."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import orjson

from recorder import clock, limits
from recorder.client.batches import CapturedFrame, event_calls, frame_calls
from recorder.client.errors import ExportFailed, TookTooLong
from recorder.client.transport import Call, Params, Transport

Json = dict[str, Any]

_TIMEOUT_S = 60.0
_PATIENCE_S = 60.0
_POLL_FIRST_S = 0.2
_POLL_MAX_S = 2.0


class Client:
    """A connection to the service; close it, or use it as a context manager. Safe to share among threads.

    Answers are the interface's own JSON objects. Every method raises `ApiError` where the service refuses
    and `Unreachable` where it does not answer; what may safely be repeated was repeated before.
    """

    def __init__(
        self, base_url: str, key: str, *, timeout_s: float = _TIMEOUT_S, patience_s: float = _PATIENCE_S
    ) -> None:
        """Connect to `base_url` with an API key.

        Args:
            base_url: address of the service, such as http://127.0.0.1:8700.
            key: an API key; it is sent with every request and shown nowhere.
            timeout_s: seconds to wait for one answer.
            patience_s: seconds over which a request is repeated before its error is raised.
        """
        self._transport = Transport(base_url, key, timeout_s=timeout_s, patience_s=patience_s)

    def __repr__(self) -> str:
        return f"Client({self._transport.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._transport.close()

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
        return self._post("/v1/sessions", body)

    def start(self, session_id: str) -> Json:
        """The session, now recording."""
        return self._post(f"{_session(session_id)}/start", repeatable=True)

    def stop(self, session_id: str) -> Json:
        """The session, now stopped; the service seals it soon after."""
        return self._post(f"{_session(session_id)}/stop", repeatable=True)

    def batch_stop(self, session_ids: Iterable[str]) -> list[Json]:
        """Stop many sessions; one result for each id."""
        wanted = list(session_ids)
        results: list[Json] = []
        for first in range(0, len(wanted), limits.BATCH_STOP_IDS):
            body = {"ids": wanted[first : first + limits.BATCH_STOP_IDS]}
            results += self._post("/v1/sessions:batch_stop", body, repeatable=True)["data"]
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
        return self._post(f"{_session(session_id)}/tags", body)

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

    def list_events(self, session_id: str) -> Iterator[Json]:
        """The session's events in order of `(t_ms, id)`."""
        return self._pages(f"{_session(session_id)}/events")

    def list_frames(self, session_id: str) -> Iterator[Json]:
        """The session's frames (without their bytes) in order of `(t_ms, id)`."""
        return self._pages(f"{_session(session_id)}/frames")

    def list_tags(self, session_id: str) -> Iterator[Json]:
        """The session's tags in order of `(t_ms, id)`."""
        return self._pages(f"{_session(session_id)}/tags")

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

    def memory_paths(self, workflow: str, **filters: str | int | float) -> list[Json]:
        """The workflow's paths, most frequent first; filters: since, until, outcome, min_frequency, limit."""
        paths: list[Json] = self._get("/v1/memory/paths", {"workflow": workflow, **filters})["data"]
        return paths

    def create_export(
        self,
        workflow: str | list[str],
        *,
        format: str = "parquet",
        filter: Mapping[str, Any] | None = None,
        frame_sampling: Mapping[str, Any] | None = None,
        destination: Mapping[str, Any] | None = None,
        tag: str | None = None,
    ) -> Json:
        """A new export, queued; without a destination the service hosts its files, signed for a day."""
        chosen = {"filter": filter, "frame_sampling": frame_sampling, "tag": tag}
        body = {
            "workflow": workflow,
            "format": format,
            "destination": destination or {"kind": "signed_url"},
            **{name: value for name, value in chosen.items() if value is not None},
        }
        return self._post("/v1/exports", body)

    def get_export(self, export_id: str) -> Json:
        """An export as it stands."""
        return self._get(f"/v1/exports/{quote(export_id, safe='')}")

    def export_manifest(self, export_id: str) -> Json:
        """The manifest of a completed export; addresses of hosted shards are freshly signed."""
        return self._get(f"/v1/exports/{quote(export_id, safe='')}/manifest")

    def wait_export(self, export_id: str, *, timeout_s: float = 600.0) -> Json:
        """The export once it is completed.

        Raises:
            ExportFailed: if it failed.
            TookTooLong: if it is not done within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        export = _poll(lambda: self.get_export(export_id), ("completed", "failed"), deadline)
        if export is None:
            raise TookTooLong(f"{export_id} is not done", timeout_s)
        if export["status"] == "failed":
            raise ExportFailed(export)
        return export

    def _wait_sealed(self, session_id: str, deadline: float, timeout_s: float) -> Json:
        session = _poll(lambda: self.get_session(session_id), ("sealed",), deadline)
        if session is None:
            raise TookTooLong(f"{session_id} is not sealed", timeout_s)
        return session

    def _get(self, path: str, params: Params | None = None) -> Json:
        answer: Json = self._transport.json(Call("GET", path, params=params, repeatable=True))
        return answer

    def _post(self, path: str, body: Json | None = None, *, repeatable: bool = False) -> Json:
        content = None if body is None else orjson.dumps(body)
        answer: Json = self._transport.json(Call("POST", path, content=content, repeatable=repeatable))
        return answer

    def _pages(self, path: str, params: Params | None = None) -> Iterator[Json]:
        asked = {**(params or {}), "limit": limits.LIST_MAX}
        while True:
            page = self._get(path, asked)
            yield from page["data"]
            if not page["has_more"]:
                return
            asked["cursor"] = page["next_cursor"]


def _session(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}"


def _poll(read: Callable[[], Json], wanted: tuple[str, ...], deadline: float) -> Json | None:
    """What `read` gives once its status is a wanted one; None when the deadline passes first."""
    wait_s = _POLL_FIRST_S
    while True:
        found = read()
        if found["status"] in wanted:
            return found
        if time.monotonic() + wait_s > deadline:
            return None
        time.sleep(wait_s)
        wait_s = min(wait_s * 1.5, _POLL_MAX_S)
