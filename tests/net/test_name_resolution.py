"""Name resolution with silent name servers: it leaves threads to the names of other workspaces."""

import asyncio
import threading

import pytest

from recorder.net import outbound_guard
from recorder.webhooks.delivery_loop import SLOTS


def test_silent_name_servers_of_one_workspace_leave_look_ups_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()

    def look_up(host: str) -> list[str]:
        if host.startswith("silent"):
            ended.wait(60)
        return ["203.0.113.7"]

    monkeypatch.setattr(outbound_guard, "_query_resolver", look_up)

    async def run() -> None:
        # As many calls as one workspace may have under way, given up and begun again.
        for number in range(3 * SLOTS // 2):
            task = asyncio.create_task(outbound_guard.resolve_host(f"silent{number}.example"))
            await asyncio.sleep(0)
            task.cancel()
        assert await asyncio.wait_for(outbound_guard.resolve_host("receiver.example"), 20) == ["203.0.113.7"]

    try:
        asyncio.run(run())
    finally:
        ended.set()
