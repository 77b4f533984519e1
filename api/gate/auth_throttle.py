"""Keys that were never seen: how many an address may have looked up at once. Contract §1 (rate limits)."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from api.gate.rate_limits import Limiting, network_of
from recorder.access.rate_tiers import STRANGERS
from recorder.errors import RateLimited


class Guesses:
    """Look-ups of unknown keys that are under way, by address.

    The address's bucket is drawn on when a look-up fails: who shows good keys pays nothing. So that many
    guesses at once do not pass before the first has failed, no more keys are looked up than the bucket has
    tokens. Requests with one key share its look-up, so they count once: a client that opens a hundred
    connections after a restart guesses nothing.
    """

    def __init__(self, limiting: Limiting) -> None:
        self._limiting = limiting
        self._under_way: dict[str, Counter[bytes]] = {}

    @asynccontextmanager
    async def room(self, address: str, authorization: bytes, state: dict[str, Any]) -> AsyncIterator[None]:
        """Room for the look-up of one header, while the block runs.

        Args:
            state: the request's; it keeps what the limits said.

        Raises:
            RateLimited: if there is none.
        """
        found = await self._limiting.look_address(address)
        network = network_of(address)
        under_way = self._under_way.get(network, Counter())
        is_new = authorization not in under_way
        if is_new and round(found.share * STRANGERS.burst) <= len(under_way):
            admission = await self._limiting.admit_address(address, is_signed=False)
            state["admission"] = admission
            raise admission.error or RateLimited("per_address", 1)
        self._under_way[network] = under_way
        under_way[authorization] += 1
        try:
            yield
        finally:
            self._end(network, under_way, authorization)

    def _end(self, network: str, under_way: Counter[bytes], authorization: bytes) -> None:
        under_way[authorization] -= 1
        if not under_way[authorization]:
            del under_way[authorization]
        if not under_way:
            del self._under_way[network]
