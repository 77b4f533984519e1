"""Delay of refusals: a client that repeats refused requests is answered later. Contract §1 (rate limits)."""

import asyncio

_CLIENTS = 20_000


class RefusalDelay:
    """Delay of the refusals that one client gets beyond a burst; used from the event loop.

    A refusal by a rate limit takes half a millisecond with a new connection, one of a body a millisecond, and
    no store is waited for. So a client that sends the next request at once could take the whole process. Its
    requests wait instead, each for at most two seconds.
    """

    def __init__(
        self,
        *,
        burst: int = 100,
        per_second: float = 100,
        longest_s: float = 2.0,
        most_waiting: int = 2_000,
    ) -> None:
        """Begin without refusals.

        Args:
            burst: refusals of a client at once without a wait.
            per_second: refusals of a client a second without a wait.
            longest_s: longest wait of a refusal.
            most_waiting: refusals that wait at a time, in this process; further ones are sent at once.
        """
        self._burst, self._per_second = burst, per_second
        self._longest_s, self._most_waiting = longest_s, most_waiting
        #: When the last refusal of a client was due, on the event loop's clock.
        self._due: dict[str, float] = {}
        self._waiting = 0

    async def wait(self, client: str) -> None:
        """Wait until the next refusal of a client is due.

        Args:
            client: workspace id, or the address of a request without a valid key.
        """
        now = asyncio.get_running_loop().time()
        earliest = now - self._burst / self._per_second
        due = max(self._due.get(client, earliest), earliest) + 1 / self._per_second
        due = min(due, now + self._longest_s)
        if len(self._due) >= _CLIENTS:
            self._due.clear()
        self._due[client] = due
        if due <= now or self._waiting >= self._most_waiting:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(due - now)
        finally:
            self._waiting -= 1
