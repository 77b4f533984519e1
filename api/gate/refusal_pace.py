"""Pace of refusals: a client that ignores `Retry-After` is answered later. Contract §1 (rate limits)."""

import asyncio

#: A client is refused so many times at once, and so often a second, without a wait.
_BURST = 100
_PER_SECOND = 100
_LONGEST_S = 2.0
#: Refusals that wait at a time, in this process; further ones are sent at once.
_MAX_WAITING = 2_000
_CLIENTS = 20_000


class RefusalPace:
    """Delays the refusals by rate limits that one client gets beyond a burst; used from the event loop.

    A refusal takes half a millisecond with a new connection, so a client that opens the next one at once
    could take the whole process. Its connections wait instead, each for at most two seconds.
    """

    def __init__(self) -> None:
        #: When the last refusal of a client was due, on the event loop's clock.
        self._due: dict[str, float] = {}
        self._waiting = 0

    async def wait(self, client: str) -> None:
        """Wait until the next refusal of a client is due.

        Args:
            client: workspace id, or the address of a request without a valid key.
        """
        now = asyncio.get_running_loop().time()
        earliest = now - _BURST / _PER_SECOND
        due = min(max(self._due.get(client, earliest), earliest) + 1 / _PER_SECOND, now + _LONGEST_S)
        if len(self._due) >= _CLIENTS:
            self._due.clear()
        self._due[client] = due
        if due <= now or self._waiting >= _MAX_WAITING:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(due - now)
        finally:
            self._waiting -= 1
