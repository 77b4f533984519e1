"""Limits of open streams of both kinds, over HTTP. Spec §8.1, contract §3."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from recorder.access.rate_tiers import TIERS
from recorder.client import Client
from tests.support.factories import assert_problem
from tests.support.http_service import running_service
from tests.support.limiter_clock import limit_headers, limited_key

MOST = TIERS["default"].streams_per_key


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield the address and data folder of a service."""
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder) as running:
        yield running.url, folder


@pytest.fixture
def opened(service: tuple[str, Path]) -> tuple[str, str, str]:
    """Return the service's address, a new key with the limits of the specification, a recording session."""
    url, folder = service
    key = limited_key(folder)
    with Client(url, key) as client:
        session = client.create_session("streams", start=True)
    return url, key, f"/v1/sessions/{session['id']}/events"


class Streams:
    """Streams of one key, held open until the block ends."""

    def __init__(self, stack: AsyncExitStack, http: httpx.AsyncClient, path: str) -> None:
        self._stack, self._http, self._path = stack, http, path

    async def open(self) -> httpx.Response:
        """Return an SSE stream, or the reason why there is none."""
        answer = await self._http.send(self._http.build_request("GET", f"{self._path}/stream"), stream=True)
        self._stack.push_async_callback(answer.aclose)
        if answer.status_code != 200:
            await answer.aread()
        return answer

    async def open_socket(self) -> ClientConnection:
        """Return a WebSocket."""
        url = str(self._http.base_url.join(f"{self._path}/ws")).replace("http://", "ws://")
        authorization = {"Authorization": self._http.headers["authorization"]}
        socket = connect(url, additional_headers=authorization, proxy=None)
        return await self._stack.enter_async_context(socket)


@asynccontextmanager
async def streams(opened: tuple[str, str, str]) -> AsyncIterator[Streams]:
    url, key, path = opened
    async with AsyncExitStack() as stack:
        http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=200),
            timeout=30,
            trust_env=False,
        )
        await stack.enter_async_context(http)
        yield Streams(stack, http, path)


def test_the_51st_stream_is_refused_until_another_ends(opened: tuple[str, str, str]) -> None:
    async def run() -> None:
        async with streams(opened) as reader:
            held = [await reader.open() for _ in range(MOST)]
            assert [answer.status_code for answer in held] == [200] * MOST
            refused = await reader.open()
            assert_problem(refused, 429, "too_many_streams")
            assert "retry-after" not in refused.headers
            assert limit_headers(refused)[3] == "per_key"
            await held[0].aclose()
            async with asyncio.timeout(20):
                while (await reader.open()).status_code != 200:
                    await asyncio.sleep(0.05)

    asyncio.run(run())


def test_both_kinds_of_streams_count_alike(opened: tuple[str, str, str]) -> None:
    async def run() -> None:
        async with streams(opened) as reader:
            assert (await reader.open()).status_code == 200
            for _ in range(MOST - 1):
                await reader.open_socket()
            assert_problem(await reader.open(), 429, "too_many_streams")
            with pytest.raises(InvalidStatus) as raised:
                await reader.open_socket()
            assert raised.value.response.status_code == 429

    asyncio.run(run())
