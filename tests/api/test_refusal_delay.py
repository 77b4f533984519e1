"""Pace of refusals: beyond a burst each waits its turn, and no other client waits. Contract §1."""

import asyncio

import pytest

from api.gate.refusal_delay import RefusalDelay
from tests.support.factories import Caller, event


def small_pace() -> RefusalDelay:
    """Return a pace at which a client has two refusals at once and ten a second, and eight wait."""
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


def test_refusals_of_invalid_and_denied_requests_wait_and_other_answers_do_not(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []

    async def wait(delay: RefusalDelay, client: str) -> None:
        waited.append(client)

    monkeypatch.setattr(RefusalDelay, "wait", wait)
    session_id = caller.make_session()
    assert caller.add_events(session_id, event(1)).status_code == 202
    assert caller.get("/v1/sessions/ses_missing").status_code == 404
    assert waited == []
    assert caller.add_events(session_id, {"t_ms": 1}).status_code == 422
    assert caller.get("/v1/sessions?limit=0").status_code == 422
    assert caller.post_raw(f"/v1/sessions/{session_id}/events", b"{").status_code == 400
    reader = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="read")
    assert reader.post("/v1/sessions", {"workflow": "checkout"}).status_code == 403
    assert waited == [caller.key.workspace_id] * 4
    assert caller.service.client.get("/no-such-address").status_code == 404
    assert len(waited) == 5
