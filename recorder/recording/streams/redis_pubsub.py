"""Telling other processes that a session went on, by Redis. A wake-up may get lost: the poll finds its row.

One message names all sessions that were touched since the last one, so that a flood of batches costs Redis
a hundred messages a second.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from recorder.access.ratelimit.stores import AWAY, Presence, connect

_CHANNEL = "recorder:stream-wakeups"
_GATHER_S = 0.01
_RECONNECT_S = 1.0
#: More than these do not wait for a Redis that is away: readers ask for them by then.
_MOST_WAITING = 10_000
#: A connection on which nothing came for so long is tried: the other side may be gone without a word.
_SILENCE_S = 15.0


class RedisWakeups:
    """Wake-ups to and from the other processes of a deployment; used from the event loop."""

    def __init__(self, url: str, wake: Callable[[Iterable[str] | None], None]) -> None:
        """Connect at `start`.

        Args:
            wake: is called with the sessions that others touched; with None where some may have been missed.
        """
        self._redis = connect(url)
        self._listener = connect(url, timeout_s=_SILENCE_S)
        self._wake = wake
        # So that a process does not listen to itself.
        self._name = secrets.token_hex(8).encode()
        self._touched: set[str] = set()
        self._is_touched = asyncio.Event()
        self._presence = Presence("stream wake-ups")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to listen and to tell."""
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._tell())]

    async def close(self) -> None:
        """Stop, and give the connections back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._redis.aclose()
        await self._listener.aclose()

    def touch(self, session_ids: Iterable[str]) -> None:
        """Tell the others that these sessions went on."""
        self._touched.update(session_ids)
        self._is_touched.set()

    async def _tell(self) -> None:
        while True:
            await self._is_touched.wait()
            self._is_touched.clear()
            touched, self._touched = self._touched, set()
            try:
                await self._redis.publish(_CHANNEL, b" ".join([self._name, *_encoded(touched)]))
            except AWAY as error:
                self._presence.failed(error)
                if len(touched) < _MOST_WAITING:
                    self.touch(touched)
                await asyncio.sleep(_RECONNECT_S)
            else:
                self._presence.answered()
                await asyncio.sleep(_GATHER_S)

    async def _listen(self) -> None:
        while True:
            with suppress(*AWAY):
                await self._hear()
            await asyncio.sleep(_RECONNECT_S)

    async def _hear(self) -> None:
        """Listen until the connection breaks."""
        async with self._listener.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(_CHANNEL)
            # What was told before is gone.
            self._wake(None)
            is_tried = False
            while True:
                heard = await channel.get_message(timeout=_SILENCE_S)
                if heard is not None:
                    is_tried = False
                    self._pass_on(heard)
                elif is_tried:
                    raise TimeoutError
                else:
                    await channel.ping()
                    is_tried = True

    def _pass_on(self, heard: dict[str, Any]) -> None:
        if heard["type"] != "message":
            return
        name, *session_ids = heard["data"].split(b" ")
        if name != self._name:
            self._wake([one.decode() for one in session_ids])


def _encoded(session_ids: Iterable[str]) -> Iterable[bytes]:
    return (one.encode() for one in session_ids)
