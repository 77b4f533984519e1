"""A bad line to a store: a proxy that cuts requests and answers, delays, and answers 500 or 503 itself."""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from urllib.parse import urlsplit

_FAULTS = {"none": 8, "cut_request": 3, "cut_answer": 3, "status": 4, "delay": 2}
_DELAY_SECONDS = 0.2
# Every answer of a store has more bytes, its status line and headers alone.
_SHORTEST_ANSWER = 100


class FaultyLine:
    """Each connection gets a fault by chance; one without is cut after some answers, for the next's sake."""

    def __init__(self, url: str, *, seed: int, most_bytes: int = 60_000) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname, address.port
        self._random = Random(seed)
        self._most_bytes = most_bytes
        #: How often each fault happened.
        self.faults: Counter[str] = Counter()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        fault = self._random.choices(list(_FAULTS), list(_FAULTS.values()))[0]
        budget = self._random.randint(1, self._most_bytes)
        answers = budget if fault == "cut_answer" else 500 + budget // 12
        self.faults[fault] += 1
        try:
            if fault == "status":
                await reader.read(1)
                await self._refuse(writer)
                return
            if fault == "delay":
                await asyncio.sleep(_DELAY_SECONDS)
            requests = budget if fault == "cut_request" else None
            await self._connect(reader, writer, requests=requests, answers=answers)
        except (OSError, asyncio.CancelledError):
            # A task that was cancelled is logged as an error of the server's.
            pass
        finally:
            writer.close()

    async def _refuse(self, writer: asyncio.StreamWriter) -> None:
        status = self._random.choice([b"500 Internal Server Error", b"503 Service Unavailable"])
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        await writer.drain()

    async def _connect(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        requests: int | None,
        answers: int | None,
        head: bytes = b"",
    ) -> None:
        """Carry bytes both ways until one side ends, or one budget is used up."""
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        try:
            far_writer.write(head[:requests])
            if requests is not None:
                requests -= len(head)
                if requests <= 0:
                    await far_writer.drain()
                    return
            ways = [
                asyncio.ensure_future(_carry(reader, far_writer, requests)),
                asyncio.ensure_future(_carry(far_reader, writer, answers)),
            ]
            ended, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            self.faults["cut"] += any(way.result() for way in ended)
            for way in rest:
                way.cancel()
        finally:
            far_writer.close()


class FaultyCalls(FaultyLine):
    """Line on which each connection carries one call, and a share of the calls fails."""

    def __init__(self, url: str, *, seed: int, share: float) -> None:
        super().__init__(url, seed=seed)
        self._share = share
        #: Number of calls.
        self.calls = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one call, or let it fail: refused, cut before its end, or with its answer cut."""
        fault = "none"
        if self._random.random() < self._share:
            fault = self._random.choice(["status", "cut_request", "cut_answer"])
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.calls += 1
            self.faults[fault] += 1
            if fault == "status":
                await self._refuse(writer)
                return
            # The store ends the connection after its answer.
            head = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            length = next((int(size) for size in re.findall(rb"(?i)content-length: *(\d+)", head)), 0)
            requests = self._random.randint(1, len(head) + length - 1) if fault == "cut_request" else None
            answers = self._random.randrange(1, _SHORTEST_ANSWER) if fault == "cut_answer" else None
            await self._connect(reader, writer, requests=requests, answers=answers, head=head)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None) -> bool:
    """Pass bytes on; True if the budget was used up."""
    with suppress(OSError):
        while data := await reader.read(65_536 if budget is None else min(budget, 65_536)):
            writer.write(data)
            await writer.drain()
            if budget is not None:
                budget -= len(data)
                if budget <= 0:
                    return True
    return False


@contextmanager
def faulty_line(url: str, *, seed: int) -> Iterator[FaultyLine]:
    """Run a proxy that disturbs the connections to the store at an address, while the block runs."""
    line = FaultyLine(url, seed=seed)
    with _serving(line):
        yield line


@contextmanager
def faulty_calls(url: str, *, seed: int, share: float) -> Iterator[FaultyCalls]:
    """Run a proxy to the store at an address, which lets a share of the calls fail, for the block."""
    line = FaultyCalls(url, seed=seed, share=share)
    with _serving(line):
        yield line


@contextmanager
def _serving(line: FaultyLine) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(line.serve, "127.0.0.1", 0))
    line.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    carrying = asyncio.all_tasks() - {asyncio.current_task()}
    for task in carrying:
        task.cancel()
    await asyncio.gather(*carrying, return_exceptions=True)
