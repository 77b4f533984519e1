"""A bad line to a store: a proxy that cuts requests and answers, delays, and answers 500 or 503 itself."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from urllib.parse import urlsplit

_FAULTS = {"none": 8, "cut_request": 3, "cut_answer": 3, "status": 4, "delay": 2}
_DELAY_SECONDS = 0.2


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
                status = self._random.choice([b"500 Internal Server Error", b"503 Service Unavailable"])
                writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
                await writer.drain()
                return
            if fault == "delay":
                await asyncio.sleep(_DELAY_SECONDS)
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            try:
                requests = budget if fault == "cut_request" else None
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
        except (OSError, asyncio.CancelledError):
            # A task that was cancelled is logged as an error of the server's.
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
    """A bad line to the store at an address, while the block runs."""
    line = FaultyLine(url, seed=seed)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(line.serve, "127.0.0.1", 0))
    line.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield line
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
