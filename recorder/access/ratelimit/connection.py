"""The way to the Redis that processes share, and what is made of its silence. Contract §1 (rate limits)."""

import logging
import time

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

#: A request waits for its limits no longer than this; then it goes by what this process knows.
TIMEOUT_S = 0.5
_RETRY_S = 1.0
#: What says that Redis is away, or not able to answer.
AWAY = (RedisError, OSError, TimeoutError)


def connect(url: str, *, timeout_s: float = TIMEOUT_S) -> "Redis":
    """A client that gives up soon, and repeats nothing by itself."""
    return Redis.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
    )


class Presence:
    """Whether Redis answers: while it does not, one call in a second tries it. Both turns are logged once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_away = False
        self._retry_at = 0.0

    def may_ask(self) -> bool:
        """Whether the next call should go to Redis."""
        if not self._is_away:
            return True
        now = time.monotonic()
        if now < self._retry_at:
            return False
        self._retry_at = now + _RETRY_S
        return True

    def answered(self) -> None:
        """Note that it is there."""
        if self._is_away:
            self._is_away = False
            log.warning("Redis answers again; all processes share %s", self._what)

    def failed(self, error: BaseException) -> None:
        """Note that it is away."""
        self._retry_at = time.monotonic() + _RETRY_S
        if not self._is_away:
            self._is_away = True
            # The class alone: the message of an error may hold the address with its password.
            log.error(
                "Redis does not answer (%s); each process has its own %s", type(error).__name__, self._what
            )
