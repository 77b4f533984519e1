"""Name resolution with silent name servers: it leaves threads to the names of other workspaces."""

import asyncio
import socket
import threading

import pytest

from recorder.net.outbound_guard import resolve_outbound_host
from recorder.webhooks.delivery_loop import SLOTS


def test_silent_name_servers_of_one_workspace_leave_look_ups_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()

    def look_up(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host.startswith("silent"):
            ended.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def run() -> None:
        # As many calls as one workspace may have under way, given up and begun again.
        for number in range(3 * SLOTS // 2):
            task = asyncio.create_task(resolve_outbound_host(f"silent{number}.example"))
            await asyncio.sleep(0)
            task.cancel()
        assert await asyncio.wait_for(resolve_outbound_host("receiver.example"), 20) == ["203.0.113.7"]

    try:
        asyncio.run(run())
    finally:
        ended.set()
