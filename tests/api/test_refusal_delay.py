"""Pace of refusals: beyond a burst each waits its turn, and no other client waits. Contract §1."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from api.gate.refusal_delay import RefusalDelay
from tests.support.factories import Caller


def small_pace() -> RefusalDelay:
    """A pace at which a client has two refusals at once and ten a second, and eight wait."""
    return RefusalDelay(burst=2, per_second=10, longest_s=0.5, most_waiting=8)


async def time_refusals(pace: RefusalDelay, client: str, count: int) -> list[float]:
    """Return after how many seconds each of so many refusals at once may be sent, in their order."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def refuse() -> float:
        await pace.wait(client)
        return loop.time() - began

    return await asyncio.gather(*(refuse() for _ in range(count)))


def test_refusals_beyond_the_burst_wait_their_turn() -> None:
    async def refuse() -> tuple[list[float], list[float]]:
        pace = small_pace()
        return await asyncio.gather(time_refusals(pace, "wsp_a", 5), time_refusals(pace, "wsp_b", 2))

    waits, others = asyncio.run(refuse())
    assert all(wait >= least for wait, least in zip(waits[2:], (0.09, 0.19, 0.29), strict=True))
    assert max(others) < waits[3]


def test_few_refusals_wait_at_a_time() -> None:
    waits = asyncio.run(time_refusals(small_pace(), "wsp_a", 14))
    # Two of the burst; eight wait, from a tenth of a second to half of one; the rest is sent at once.
    assert [wait >= 0.09 for wait in waits] == [False] * 2 + [True] * 8 + [False] * 4


def test_invalid_batches_beyond_the_burst_wait_and_valid_ones_do_not(caller: Caller) -> None:
    session_id = caller.make_session()
    with ThreadPoolExecutor(16) as threads:
        began = time.monotonic()
        flood = [threads.submit(caller.add_events, session_id, {"t_ms": 1}) for _ in range(300)]
        assert {request.result().status_code for request in flood} == {422}
        # 200 of them at once, the others in half a second at least.
        assert time.monotonic() - began >= 0.45
        accepted = [
            threads.submit(caller.add_events, session_id, {"t_ms": 1, "type": "a"}) for _ in range(30)
        ]
        assert {request.result().status_code for request in accepted} == {202}
