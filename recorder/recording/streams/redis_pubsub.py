"""Redis publish and subscribe: wake-ups between processes when a session has new rows.

A wake-up may get lost; the next poll reads its rows. One message names all sessions that were touched since
the last one, so that a flood of batches costs Redis a hundred messages a second.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from recorder.access.rate_limits.bucket_stores import AWAY, RedisAvailability, connect_shared_redis

_CHANNEL = "recorder:stream-wakeups"
_GATHER_S = 0.01
_RECONNECT_S = 1.0
#: Wake-ups that wait for a Redis that does not answer; more are dropped, since the readers' poll comes first.
_MOST_WAITING = 10_000
#: A connection without messages for this long is pinged: the other side may be gone without closing it.
_SILENCE_S = 15.0


class RedisWakeups:
    """Wake-ups to and from the other processes of a deployment; used from the event loop."""

    def __init__(self, url: str, wake: Callable[[Iterable[str] | None], None]) -> None:
        """Connect at `start`.

        Args:
            url: address of Redis.
            wake: is called with the sessions that others touched; with None if some may have been missed.
        """
        self._redis = connect_shared_redis(url)
        self._listener = connect_shared_redis(url, timeout_s=_SILENCE_S)
        self._wake = wake
        # A process ignores the messages that carry its own name.
        self._name = secrets.token_hex(8).encode()
        self._touched: set[str] = set()
        self._is_touched = asyncio.Event()
        self._availability = RedisAvailability("stream wake-ups")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to listen and to publish."""
        self._tasks = [
            asyncio.create_task(self._listen_repeatedly()),
            asyncio.create_task(self._publish_repeatedly()),
        ]

    async def close(self) -> None:
        """Stop, and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._redis.aclose()
        await self._listener.aclose()

    def touch(self, session_ids: Iterable[str]) -> None:
        """Publish to the other processes that these sessions have new rows."""
        self._touched.update(session_ids)
        self._is_touched.set()

    async def _publish_repeatedly(self) -> None:
        while True:
            await self._is_touched.wait()
            self._is_touched.clear()
            touched, self._touched = self._touched, set()
            try:
                await self._redis.publish(_CHANNEL, b" ".join([self._name, *_encode_published_ids(touched)]))
            except AWAY as error:
                self._availability.note_failure(error)
                if len(touched) < _MOST_WAITING:
                    self.touch(touched)
                await asyncio.sleep(_RECONNECT_S)
            else:
                self._availability.note_answer()
                await asyncio.sleep(_GATHER_S)

    async def _listen_repeatedly(self) -> None:
        while True:
            with suppress(*AWAY):
                await self._listen_once()
            await asyncio.sleep(_RECONNECT_S)

    async def _listen_once(self) -> None:
        """Listen until the connection breaks."""
        async with self._listener.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(_CHANNEL)
            # Messages of the time before are lost.
            self._wake(None)
            is_tried = False
            while True:
                message = await channel.get_message(timeout=_SILENCE_S)
                if message is not None:
                    is_tried = False
                    self._handle_message(message)
                elif is_tried:
                    raise TimeoutError
                else:
                    await channel.ping()
                    is_tried = True

    def _handle_message(self, message: dict[str, Any]) -> None:
        if message["type"] != "message":
            return
        name, *session_ids = message["data"].split(b" ")
        if name != self._name:
            self._wake([session_id.decode() for session_id in session_ids])


def _encode_published_ids(session_ids: Iterable[str]) -> Iterable[bytes]:
    return (session_id.encode() for session_id in session_ids)
