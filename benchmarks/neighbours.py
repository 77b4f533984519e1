"""Latency of one workspace while another one sends hostile bodies, next to its latency when all is quiet.

The service is one uvicorn process, as `recorder up` starts it. The quiet workspace records and reads: 50
small batches and 20 lists of sessions a second, on a fixed schedule, so that a stall of the service counts
for every request that was due in it. A list takes a worker thread and a transaction, a batch neither. Each
attack comes from a process of its own, which runs at a lower priority, as it would run on another machine.

The first figure is the floor: the latency while as many processes as the machine has processors only
compute, at that lower priority, and no other client sends anything. No service with busy workers gets below
it.
"""

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.figure_reports import Figure, Goal, at_most, quantile
from benchmarks.hostile_bodies import ATTACKS, Attack
from benchmarks.seeds import Target, new_settings
from benchmarks.servers import Server, ServerFailed, serving
from recorder.access.keys import create_key
from recorder.access.workspaces import create_workspace
from recorder.models.session import SessionCreate
from recorder.recording.sessions import create_session
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.tenant import Tenant

#: The p99 under an attack may be this many times the quiet one.
GOAL = 2.0
#: Priority of an attacking process, which would run on another machine.
NICENESS = 10
_BATCHES_PER_SECOND, _READS_PER_SECOND = 50, 20
_CONNECTIONS = 8
_CHUNK = 256 * 1024
#: A request of the quiet workspace is not waited for longer; then it counts as answered after so long.
_PATIENCE_S = 20.0


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure the quiet p99, then the p99 under each attack, each between two quiet stretches.

    Raises:
        ServerFailed: if an attack ends the service.
    """
    seconds = 3.0 if quick else 6.0
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        quiet_target, hostile = (
            create_workspace_sessions(settings, "quiet"),
            create_workspace_sessions(settings, "hostile", keys=2),
        )
        with serving(settings, environment={"RECORDER_LOG_LEVEL": "error"}) as server:
            _record(server, quiet_target[0], 1.0)
            before = _record(server, quiet_target[0], seconds)
            with _computing():
                beside = _record(server, quiet_target[0], seconds)
            quiet = _record(server, quiet_target[0], seconds / 2)
            name, detail = "processes that only compute", {"processes": os.cpu_count()}
            figures += _make_figures(f"beside {name}", beside, [before, quiet], detail, goal=None)
            before = quiet
            for attack in ATTACKS:
                with _attacking(attack, server, hostile, seconds + 1.5) as statuses:
                    time.sleep(1.0)
                    under = _record(server, quiet_target[0], seconds)
                if (code := server.process.poll()) is not None:
                    raise ServerFailed(f"The service ended with {code} under {attack.name}.")
                after = _record(server, quiet_target[0], seconds / 2)
                answers = {f"answers {status}": count for status, count in sorted(statuses.items())}
                figures += _make_figures(
                    f"under {attack.name}", under, [before, after], answers, goal=at_most(GOAL)
                )
                before = after
    return figures


@dataclass(frozen=True)
class _Latencies:
    """Latencies of the quiet workspace, in milliseconds."""

    batches: list[float]
    reads: list[float]


def _make_figures(
    circumstance: str,
    under: _Latencies,
    quiet: list[_Latencies],
    detail: dict[str, Any],
    *,
    goal: Goal | None,
) -> list[Figure]:
    """Return the figures of batches and of reads."""
    kinds = (
        ("batch", under.batches, [value for each in quiet for value in each.batches]),
        ("list", under.reads, [value for each in quiet for value in each.reads]),
    )
    return [
        Figure(
            name=f"p99 of a {kind} {circumstance}",
            unit="ms",
            ours=[quantile(busy, 0.99)],
            peer=[quantile(calm, 0.99)],
            peer_name="quiet",
            goal=goal,
            detail={
                "p50, ms": quantile(busy, 0.5),
                "p50 quiet, ms": quantile(calm, 0.5),
                "longest, ms": max(busy),
                **detail,
            },
        )
        for kind, busy, calm in kinds
    ]


@contextlib.contextmanager
def _computing() -> Iterator[None]:
    """Keep all processors busy at the priority of the attacks while the block runs."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_compute, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in processes:
        process.start()
    try:
        time.sleep(1.0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute() -> None:
    os.nice(NICENESS)
    while True:
        sum(range(1_000_000))


def create_workspace_sessions(settings: Settings, name: str, *, keys: int = 1) -> list[Target]:
    """Create a workspace in the tier `default`; return a recording session for each of its keys."""
    runtime = Runtime.open(settings)
    try:
        with runtime.database.transaction(write=True) as db:
            first = create_workspace(db, name, region=settings.region, secret=settings.secret, tier="default")
            given = [first.key]
            for n in range(1, keys):
                key = create_key(
                    db,
                    first.workspace_id,
                    label=f"{name} {n}",
                    scope="write",
                    mode="live",
                    secret=settings.secret,
                )
                given.append(key.key)
            body = SessionCreate(workflow="benchmark", start=True)
            return [
                Target(create_session(db, Tenant(first.workspace_id, "live"), body).id, key) for key in given
            ]
    finally:
        runtime.close()


# --- the quiet workspace ---


def _record(server: Server, target: Target, seconds: float) -> _Latencies:
    """Send batches and lists on schedule; return their latencies."""
    events = [
        {"type": "ui.click", "t_ms": n, "target": {"role": "button", "name": "Save"}} for n in range(20)
    ]
    batch = make_request(target, "events", "application/json", json.dumps({"events": events}).encode())
    read = (
        f"GET /v1/sessions?limit=10 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {target.key}\r\n\r\n"
    )

    async def send_both() -> _Latencies:
        batches, reads = await asyncio.gather(
            send_on_schedule(server, batch, "202", seconds, per_second=_BATCHES_PER_SECOND),
            send_on_schedule(server, read.encode(), "200", seconds, per_second=_READS_PER_SECOND),
        )
        return _Latencies(batches, reads)

    return uvloop.run(send_both())


async def send_on_schedule(
    server: Server, request: bytes, expected: str, seconds: float, *, per_second: int
) -> list[float]:
    """Send a request again and again, each at its time; return the latencies from that time on, in ms.

    Raises:
        RuntimeError: if an answer has another status than the expected one.
    """
    latencies: list[float] = []
    begin = time.perf_counter() + 0.05

    async def send(offset: int) -> None:
        talk = None
        for n in range(offset, round(seconds * per_second), _CONNECTIONS):
            due = begin + n / per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            is_answered = False
            while not is_answered and time.perf_counter() < begin + seconds + _PATIENCE_S:
                try:
                    talk = talk or await asyncio.open_connection(server.host, server.port)
                    talk[1].write(request)
                    async with asyncio.timeout(_PATIENCE_S):
                        status, stays_open = await read_answer(talk[0])
                except (OSError, EOFError):  # a timeout is one
                    talk = None  # sent again on another connection: the request waits so much longer
                    await asyncio.sleep(0.01)
                    continue
                if status != expected:
                    raise RuntimeError(f"The quiet workspace was answered {status}.")
                is_answered = True
                talk = talk if stays_open else None
            latencies.append((time.perf_counter() - due) * 1e3)
        if talk is not None:
            talk[1].close()

    await asyncio.gather(*(send(offset) for offset in range(_CONNECTIONS)))
    return latencies


# --- the hostile one ---


@contextlib.contextmanager
def _attacking(
    attack: Attack, server: Server, targets: list[Target], seconds: float
) -> Iterator[Counter[str]]:
    """Run an attack during the block; the counter is filled with the answers when it ends."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    address = (server.host, server.port)
    process = context.Process(
        target=_attack, args=(ATTACKS.index(attack), address, targets, seconds, sender), daemon=True
    )
    answers: Counter[str] = Counter()
    process.start()
    sender.close()
    try:
        receiver.recv()
        yield answers
        answers.update(receiver.recv())
    finally:
        process.join(30)
        if process.is_alive():
            process.kill()


def _attack(
    number: int, address: tuple[str, int], targets: list[Target], seconds: float, sender: Any
) -> None:
    os.nice(NICENESS)
    attack = ATTACKS[number]
    requests = [
        make_request(target, last, kind, body, announced=not attack.drip)
        for target, (last, kind, body) in zip(itertools.cycle(targets), [*attack.bodies()] * 2, strict=False)
    ]

    async def run() -> Counter[str]:
        answers: Counter[str] = Counter()
        until = time.perf_counter() + seconds
        sender.send(None)
        await asyncio.gather(
            *(_keep_sending(attack, address, requests, n, until, answers) for n in range(attack.connections))
        )
        return answers

    sender.send(uvloop.run(run()))


async def _keep_sending(
    attack: Attack,
    address: tuple[str, int],
    requests: list[bytes],
    turn: int,
    until: float,
    answers: Counter[str],
) -> None:
    await asyncio.sleep(attack.pause_s * turn / attack.connections)
    while (left := until - time.perf_counter()) > 0:
        try:
            async with asyncio.timeout(left), _connection(address) as (reader, writer):
                while True:
                    turn += 1
                    sending = asyncio.create_task(_send(writer, requests[turn % len(requests)], attack.drip))
                    try:
                        status, stays_open = await read_answer(reader)
                    finally:
                        sending.cancel()
                        # uvloop raises a RuntimeError where the service closed the connection.
                        with contextlib.suppress(asyncio.CancelledError, OSError, RuntimeError):
                            await sending
                    answers[status] += 1
                    await asyncio.sleep(attack.pause_s)
                    if not stays_open:
                        break
        except TimeoutError:
            return
        except (OSError, EOFError):
            answers["cut off"] += 1
            await asyncio.sleep(0.005)


async def _send(writer: asyncio.StreamWriter, request: bytes, drip: int) -> None:
    if drip:
        head, _, body = request.partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        for start in range(0, len(body), drip):
            part = body[start : start + drip]
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        return
    view = memoryview(request)
    for start in range(0, len(view), _CHUNK):
        writer.write(view[start : start + _CHUNK])
        await writer.drain()


@contextlib.asynccontextmanager
async def _connection(
    address: tuple[str, int],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_answer(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """Read an answer; return its status, and whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
    await reader.readexactly(int(headers.get("content-length", "0")))
    return head.split(" ", 2)[1], headers.get("connection") != "close"


def make_request(target: Target, last: str, kind: str, body: bytes, *, announced: bool = True) -> bytes:
    path = last if last.startswith("/") else f"/v1/sessions/{target.session_id}/{last}"
    length = f"Content-Length: {len(body)}" if announced else "Transfer-Encoding: chunked"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {target.key}\r\n"
        f"Content-Type: {kind}\r\n{length}\r\n\r\n"
    )
    return head.encode() + body
