"""Requests of a workspace while two others hold large bodies that trickle, and honest uploads that are slow.

Each hostile workspace holds as much memory of bodies as it gets: its uploads arrive quickly but for the end,
which trickles. The third workspace sends small batches, and pictures that are large bodies, on schedule.
"""

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks.figure_reports import Figure, at_least, at_most, quantile
from benchmarks.hostile_bodies import make_multipart_upload
from benchmarks.neighbours import GOAL, create_workspace_sessions, make_request, read_answer
from benchmarks.seeds import Target, new_settings
from benchmarks.servers import Server, serving
from recorder import limits

_MB = 1_000_000
_UPLOAD_BYTES = 60 * _MB
#: The largest upload: eight of them fill the memory of bodies.
_HELD_BYTES = limits.FRAMES_REQUEST_BYTES - 10_000
#: The end of a hostile upload that trickles.
_TRICKLED_BYTES = 5 * _MB
#: A hostile workspace opens so many uploads at once, and sends so many bytes a second of the end of each.
_HELD, _TRICKLE_BYTES_PER_S = 12, 64_000
#: After an answer, the next upload follows so much later: sending costs the service more than holding.
_RETRY_S = 30.0
#: Time in which the hostile workspaces take what they can.
_FILL_S = 12.0
_PER_SECOND = 20
_PATIENCE_S = 10.0


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure p99 and refusals of a third workspace while two hold memory, and slow uploads without them."""
    seconds = 5.0 if quick else 20.0
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        quiet = create_workspace_sessions(settings, "quiet")[0]
        hostile = [create_workspace_sessions(settings, f"hostile {n}", keys=2) for n in range(2)]
        with serving(settings, environment={"RECORDER_LOG_LEVEL": "error"}) as server:
            _record(server, quiet, 2.0)
            before = _record(server, quiet, seconds)
            with _holding(server, hostile, _FILL_S + seconds + 2.0):
                time.sleep(_FILL_S)
                under = _record(server, quiet, seconds)
            figures = [_compare(kind, under, before) for kind in ("batch", "picture")]
            for rate in (_MB,) if quick else (_MB, 128_000):
                figures.append(_measure_honest_upload(server, quiet, rate))
    return figures


def _compare(kind: str, under: dict[str, list[float]], quiet: dict[str, list[float]]) -> Figure:
    return Figure(
        name=f"p99 of a {kind} while two workspaces hold bodies",
        unit="ms",
        ours=[quantile(under[kind], 0.99)],
        peer=[quantile(quiet[kind], 0.99)],
        peer_name="quiet",
        goal=at_most(GOAL),
        detail={
            "p50, ms": quantile(under[kind], 0.5),
            "p50 quiet, ms": quantile(quiet[kind], 0.5),
            "refused": float(len(under[f"{kind} refused"])),
        },
    )


def _measure_honest_upload(server: Server, target: Target, rate: int) -> Figure:
    """Send 60 MB at a constant rate."""
    last, kind, body = make_multipart_upload(_UPLOAD_BYTES)
    began = time.perf_counter()
    status = uvloop.run(_upload(server, make_request(target, last, kind, body), rate))
    return Figure(
        name=f"upload of 60 MB at {rate // 1_000:,} kB/s",
        unit="accepted",
        ours=[float(status == "202")],
        peer=[1.0],
        peer_name="accepted",
        goal=at_least(1.0),
        detail={"status": float(status), "seconds": time.perf_counter() - began},
    )


async def _upload(server: Server, request: bytes, rate: int) -> str:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        with contextlib.suppress(OSError, RuntimeError):  # the service closed the connection
            await _send_at_rate(writer, request, rate)
        return (await read_answer(reader))[0]
    except (OSError, EOFError):
        return "0"
    finally:
        writer.transport.abort()


async def _send_at_rate(writer: asyncio.StreamWriter, data: bytes, rate: int) -> None:
    step = max(1, rate // 10)
    for start in range(0, len(data), step):
        writer.write(data[start : start + step])
        await writer.drain()
        await asyncio.sleep(0.1)


# --- the third workspace ---


def _record(server: Server, target: Target, seconds: float) -> dict[str, list[float]]:
    """Send batches and pictures on schedule; return latencies in ms of both kinds, and of refusals."""
    events = [{"type": "ui.click", "t_ms": n, "target": {"name": "Save"}} for n in range(20)]
    batch = make_request(target, "events", "application/json", json.dumps({"events": events}).encode())
    picture = make_request(target, *make_multipart_upload(1 * _MB, count=1))
    return uvloop.run(_send_on_schedule(server, {"batch": batch, "picture": picture}, seconds))


async def _send_on_schedule(
    server: Server, requests: dict[str, bytes], seconds: float
) -> dict[str, list[float]]:
    latencies: dict[str, list[float]] = {f"{kind}{end}": [] for kind in requests for end in ("", " refused")}
    begin = time.perf_counter() + 0.05

    async def send(kind: str, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        reader, writer = await asyncio.open_connection(server.host, server.port)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                with contextlib.suppress(OSError, RuntimeError):
                    writer.write(requests[kind])
                    await writer.drain()
                status, _ = await read_answer(reader)
        except (OSError, EOFError):
            status = "none"
        finally:
            writer.transport.abort()
        latency = (time.perf_counter() - due) * 1e3
        latencies[kind].append(latency)
        if status != "202":
            latencies[f"{kind} refused"].append(latency)

    kinds = itertools.cycle(("batch", "batch", "batch", "picture"))
    await asyncio.gather(
        *(
            send(kind, begin + n / _PER_SECOND)
            for n, kind in zip(range(round(seconds * _PER_SECOND)), kinds, strict=False)
        )
    )
    return latencies


# --- the two that hold memory ---


@contextlib.contextmanager
def _holding(server: Server, hostile: list[list[Target]], seconds: float) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_hold, args=((server.host, server.port), hostile, seconds), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.join(seconds + 30)
        if process.is_alive():
            process.kill()


def _hold(address: tuple[str, int], hostile: list[list[Target]], seconds: float) -> None:
    last, kind, body = make_multipart_upload(_HELD_BYTES)
    requests = [[make_request(target, last, kind, body) for target in targets] for targets in hostile]
    answers: Counter[str] = Counter()

    async def keep_holding(request: bytes, turn: int) -> None:
        await asyncio.sleep(turn * 0.3)
        while True:
            with contextlib.suppress(OSError, EOFError, RuntimeError):
                answers[await _hold_one(address, request)] += 1
            await asyncio.sleep(_RETRY_S)

    async def run() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for of_workspace in requests:
                    for turn, request in zip(range(_HELD), itertools.cycle(of_workspace), strict=False):
                        group.create_task(keep_holding(request, turn))

    uvloop.run(run())
    print("answers to the hostile workspaces:", dict(answers))


async def _hold_one(address: tuple[str, int], request: bytes) -> str:
    """Send an upload whose end trickles; return the status of its answer."""
    reader, writer = await asyncio.open_connection(*address)
    answer = asyncio.create_task(read_answer(reader))
    try:
        quick = memoryview(request)[:-_TRICKLED_BYTES]
        for start in range(0, len(quick), 65_536):
            writer.write(quick[start : start + 65_536])
            await writer.drain()
            if answer.done():
                return answer.result()[0]
        for start in range(len(quick), len(request), _TRICKLE_BYTES_PER_S):
            if answer.done():
                break
            writer.write(request[start : start + _TRICKLE_BYTES_PER_S])
            await asyncio.sleep(1.0)
        return (await answer)[0]
    finally:
        answer.cancel()
        writer.transport.abort()
