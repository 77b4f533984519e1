"""Reads of large sessions: memory, time, pages, and the calls of another tenant beside them. Contract §2."""

import multiprocessing
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow.dataset as ds

from benchmarks.figure_reports import Figure, at_most, quantile
from benchmarks.large_sessions import (
    BenchmarkWorkspace,
    add_hot_session,
    add_sealed_session,
    make_batches,
    new_tenant,
)
from benchmarks.seeds import new_settings
from benchmarks.servers import Server, serving
from recorder.runtime import Runtime

_ARROW = "application/vnd.apache.arrow.stream"
_NDJSON = "application/x-ndjson"
_AT_ONCE = 20
_OF_ONE_KEY = 8
_REST_S = 60.0
_PAIRS = 3
_MEMORY = re.compile(r"(VmRSS|VmHWM):\s+(\d+) kB")


@dataclass(frozen=True)
class _Sessions:
    """Readers of a session, the session, and the other callers."""

    tenant: BenchmarkWorkspace
    quiet: BenchmarkWorkspace
    hot: str
    sealed: str
    #: Number of frames → ids of a hot and of a sealed session with so many.
    frames: dict[int, tuple[str, str]]
    quiet_session: str


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure memory of 20 whole reads at once, the price of one, pages, and calls of another tenant."""
    events, frames = (60_000, [1_000, 20_000]) if quick else (300_000, [1_000, 20_000, 100_000])
    rest_s = 10.0 if quick else _REST_S
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        runtime = Runtime.open(settings)
        try:
            sessions = _fill(runtime, events, frames)
            parquet = Path(runtime.lake.url) / sessions.tenant.workspace_id / "live" / "events"
        finally:
            runtime.close()
        with serving(settings) as server:
            figures = _measure_pages(server, sessions, events)
        for name, session_id in (("hot", sessions.hot), ("sealed", sessions.sealed)):
            with serving(settings) as server:
                figures += _measure_others(server, sessions, name, session_id, seconds=4 if quick else 12)
            with serving(settings) as server:
                figures += _measure_price(server, sessions, name, session_id, parquet)
                figures += _measure_memory(server, sessions, name, session_id, rest_s=rest_s)
    return figures


def _fill(runtime: Runtime, events: int, frames: Sequence[int]) -> _Sessions:
    tenant, quiet = new_tenant(runtime, "reader", keys=3), new_tenant(runtime, "quiet", keys=1)
    batches = make_batches(events)
    return _Sessions(
        tenant,
        quiet,
        add_hot_session(runtime, tenant, batches=batches),
        add_sealed_session(runtime, tenant, batches=batches),
        {
            count: (
                add_hot_session(runtime, tenant, frames=count),
                add_sealed_session(runtime, tenant, frames=count, number=number),
            )
            for number, count in enumerate(frames, start=2)
        },
        add_hot_session(runtime, quiet, batches=make_batches(200)),
    )


def _measure_pages(server: Server, sessions: _Sessions, events: int) -> list[Figure]:
    figures = []
    with _client(server, sessions.tenant.keys[0]) as client:
        for count, ids in sessions.frames.items():
            for name, session_id in zip(("hot", "sealed"), ids, strict=True):
                figures.append(
                    Figure(
                        name=f"frames?limit=1 of {count:,}, {name}",
                        unit="ms",
                        ours=_times(client, f"/v1/sessions/{session_id}/frames?limit=1"),
                        goal=at_most(20),
                        detail={
                            "limit=500, ms": _times(client, f"/v1/sessions/{session_id}/frames?limit=500"),
                            "include=frames_summary, ms": _times(
                                client, f"/v1/sessions/{session_id}?include=frames_summary"
                            ),
                        },
                    )
                )
        for name, session_id in (("hot", sessions.hot), ("sealed", sessions.sealed)):
            address = f"/v1/sessions/{session_id}/events"
            figures.append(
                Figure(
                    name=f"events?limit=1 of {events:,}, {name}",
                    unit="ms",
                    ours=_times(client, f"{address}?limit=1"),
                    detail={"limit=500, ms": _times(client, f"{address}?limit=500")},
                )
            )
    return figures


def _times(client: httpx.Client, path: str, *, runs: int = 15) -> list[float]:
    """Return the milliseconds of a request, after one that is not counted."""
    results = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        answer = client.get(path)
        results.append((time.perf_counter() - began) * 1e3)
        if answer.status_code != 200:
            raise RuntimeError(answer.text)
    return results[1:]


def _measure_price(
    server: Server, sessions: _Sessions, name: str, session_id: str, parquet: Path
) -> list[Figure]:
    """Return the time of one whole read, beside reading the Parquet files with pyarrow."""
    arrow, lines, floor = [], [], []
    size = 0
    for _ in range(5):
        arrow.append(_drain(server, sessions.tenant.keys[0], session_id, _ARROW)[0])
        seconds, size = _drain(server, sessions.tenant.keys[0], session_id, _NDJSON)
        lines.append(seconds)
        began = time.perf_counter()
        table = ds.dataset(parquet, format="parquet", partitioning="hive").to_table(
            columns=["event_id", "t_ms", "type", "frame_id", "payload"],
            filter=ds.field("session_id") == sessions.sealed,
            use_threads=False,
        )
        floor.append(time.perf_counter() - began)
        if not table.num_rows:
            raise RuntimeError("The floor read nothing.")
    peer = "pyarrow reads the Parquet"
    return [
        Figure(name=f"whole session as Arrow, {name}", unit="s", ours=arrow, peer=floor, peer_name=peer),
        Figure(
            name=f"whole session as NDJSON, {name}",
            unit="s",
            ours=lines,
            peer=floor,
            peer_name=peer,
            detail={"MB": round(size / 1e6)},
        ),
    ]


def _measure_memory(
    server: Server, sessions: _Sessions, name: str, session_id: str, *, rest_s: float
) -> list[Figure]:
    """Return the memory of the API process before, during and after so many reads at once."""
    time.sleep(2.0)
    idle = _memory_mb(server)["VmRSS"]
    figures = []
    for accept, form in ((_ARROW, "Arrow"), (_NDJSON, "NDJSON")):
        Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # the peak counts from now on
        began = time.perf_counter()
        sizes = _drain_many(server, sessions.tenant.keys, session_id, accept, _AT_ONCE)
        seconds = time.perf_counter() - began
        peak = _memory_mb(server)["VmHWM"]
        time.sleep(rest_s)
        rest = _memory_mb(server)["VmRSS"]
        figures.append(
            Figure(
                name=f"{_AT_ONCE} reads at once, {form}, {name}: peak above idle",
                unit="MB",
                ours=[peak - idle],
                goal=at_most(400),
                detail={"idle": idle, "peak": peak, "s": seconds, "MB each": round(sizes[0] / 1e6)},
            )
        )
        figures.append(
            Figure(
                name=f"{_AT_ONCE} reads at once, {form}, {name}: after {rest_s:.0f} s",
                unit="MB",
                ours=[rest],
                peer=[idle],
                peer_name="idle",
                goal=at_most(1.2),
            )
        )
    return figures


def _measure_others(
    server: Server, sessions: _Sessions, name: str, session_id: str, *, seconds: float
) -> list[Figure]:
    """Return the latency of another tenant's calls while one key has as many reads under way as it may."""
    context = multiprocessing.get_context("spawn")
    url, key, quiet_session = server.url, sessions.quiet.keys[0], sessions.quiet_session

    def call() -> list[float]:
        with context.Pool(1) as pool:
            return pool.apply(call_quietly, (url, key, quiet_session, seconds))

    call()
    figures = []
    for accept, form in ((_ARROW, "Arrow"), (_NDJSON, "NDJSON")):
        quiet, busy = [], []
        for _ in range(_PAIRS):
            quiet.append(call())
            stop = context.Event()
            arguments = (server.host, server.port, sessions.tenant.keys[0], session_id, accept, stop)
            reader = context.Process(target=read_on, args=arguments)
            reader.start()
            time.sleep(1.5)
            try:
                busy.append(call())
            finally:
                stop.set()
                reader.join()
        figures.append(
            Figure(
                name=f"another tenant's p99 beside {_OF_ONE_KEY} reads, {form}, {name}",
                unit="ms",
                ours=[quantile(sample, 0.99) for sample in busy],
                peer=[quantile(sample, 0.99) for sample in quiet],
                peer_name="alone",
                goal=at_most(2.0),
                detail={
                    "p50 ms": [quantile(sample, 0.5) for sample in busy],
                    "p50 ms alone": [quantile(sample, 0.5) for sample in quiet],
                    "calls": sum(map(len, busy)),
                },
            )
        )
    return figures


def call_quietly(url: str, key: str, session_id: str, seconds: float) -> list[float]:
    """Call as a quiet tenant does, 50 times a second in turn; return the milliseconds of each call."""
    results = []
    with httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False
    ) as client:
        paths = [f"/v1/sessions/{session_id}", f"/v1/sessions/{session_id}/events?limit=10", "/v1/sessions"]
        client.get(paths[0])
        until = time.perf_counter() + seconds
        turn = 0
        while (began := time.perf_counter()) < until:
            client.get(paths[turn % len(paths)])
            results.append((time.perf_counter() - began) * 1e3)
            turn += 1
            time.sleep(max(0.0, 0.02 - (time.perf_counter() - began)))
    return results


def read_on(host: str, port: int, key: str, session_id: str, accept: str, stop: Any) -> None:
    """Read a session eight times at once, again and again, until the event is set.

    It runs at a lower priority: readers run on other machines.
    """
    os.nice(10)

    def read_again() -> None:
        while not stop.is_set():
            _drain_socket(host, port, key, session_id, accept, stop)

    threads = [threading.Thread(target=read_again) for _ in range(_OF_ONE_KEY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _drain(server: Server, key: str, session_id: str, accept: str) -> tuple[float, int]:
    """Read a whole session; return seconds and bytes."""
    began = time.perf_counter()
    size = _drain_socket(server.host, server.port, key, session_id, accept)
    return time.perf_counter() - began, size


def _drain_many(server: Server, keys: Sequence[str], session_id: str, accept: str, count: int) -> list[int]:
    sizes = [0] * count

    def drain(n: int) -> None:
        sizes[n] = _drain(server, keys[n % len(keys)], session_id, accept)[1]

    threads = [threading.Thread(target=drain, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(set(sizes)) != 1 or not sizes[0]:
        raise RuntimeError(f"Reads of one session differ in size: {sizes}.")
    return sizes


def _drain_socket(host: str, port: int, key: str, session_id: str, accept: str, stop: Any = None) -> int:
    """Read a whole session and keep nothing; return the bytes on the wire, 0 if stopped."""
    head = f"GET /v1/sessions/{session_id}/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
    buffer = bytearray(1 << 20)
    size, tail = 0, b""
    with socket.create_connection((host, port)) as connection:
        connection.sendall(f"{head}Accept: {accept}\r\nConnection: close\r\n\r\n".encode())
        while received := connection.recv_into(buffer):
            if not size and not buffer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(bytes(buffer[:500]).decode(errors="replace"))
            size += received
            tail = (tail + bytes(buffer[max(0, received - 8) : received]))[-8:]
            if stop is not None and stop.is_set():
                return 0
    if not tail.endswith(b"0\r\n\r\n"):
        raise RuntimeError("A whole-session read did not end.")
    return size


def _client(server: Server, key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=120, trust_env=False)


def _memory_mb(server: Server) -> dict[str, float]:
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return {name: int(size) / 1024 for name, size in _MEMORY.findall(text)}
