"""Requests as the client makes them: what may be repeated, and pages one after the other. Contract §1."""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import orjson

from recorder import ids, limits
from recorder.client.transport import Call, Params, Transport

Json = dict[str, Any]

_TIMEOUT_S = 60.0
_PATIENCE_S = 60.0
_POLL_FIRST_S = 0.2
_POLL_MAX_S = 2.0


class Requests:
    """A connection to the service; close it, or use it as a context manager."""

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
        self._patience_s = patience_s
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

    def _get(self, path: str, params: Params | None = None) -> Json:
        answer: Json = self._transport.json(Call("GET", path, params=params, repeatable=True))
        return answer

    def _create(self, path: str, body: Json) -> Json:
        """A POST that makes something: under a key of its own it makes it once, however often it is sent."""
        key = f"cre_{ids.encode(ids.reserve(1))}"
        answer: Json = self._transport.json(
            Call("POST", path, content=orjson.dumps(body), key=key, repeatable=True)
        )
        return answer

    def _create_once(self, path: str, body: Json) -> Json:
        """A POST whose answer shows a secret: a second answer would show another, or none."""
        answer: Json = self._transport.json(Call("POST", path, content=orjson.dumps(body)))
        return answer

    def _post(self, path: str, body: Json | None = None) -> Json:
        """A POST that changes a state: sent twice it leaves the same one."""
        content = None if body is None else orjson.dumps(body)
        answer: Json = self._transport.json(Call("POST", path, content=content, repeatable=True))
        return answer

    def _patch(self, path: str, settings: Json) -> Json:
        """A PATCH: sent twice it leaves the same settings."""
        answer: Json = self._transport.json(
            Call("PATCH", path, content=orjson.dumps(settings), repeatable=True)
        )
        return answer

    def _pages(self, path: str, params: Params | None = None) -> Iterator[Json]:
        asked = {**(params or {}), "limit": limits.LIST_MAX}
        while True:
            page = self._get(path, asked)
            yield from page["data"]
            if not page["has_more"]:
                return
            asked["cursor"] = page["next_cursor"]


def poll(read: Callable[[], Json], wanted: tuple[str, ...], deadline: float) -> Json | None:
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
