"""Events coming in over HTTP: against a store that stores nothing, and against a row per event. Spec §8.1.

The goals are those of one API process with 64 connections, 256 sessions and 100 events a request.
"""

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from benchmarks.client import Answers, drive
from benchmarks.events import event_bodies
from benchmarks.figure_reports import Figure, at_least, at_most
from benchmarks.load import CONNECTIONS, Load, client_name, encoded_requests, put_load
from benchmarks.seeds import Target, new_settings, recording_sessions
from benchmarks.servers import Server, serving
from benchmarks.sqlmodel_peer import count_events, peer_sessions
from recorder import limits
from recorder.ids import id_range

_SESSIONS = 256
_KEYS = 16
_BODIES = 50
_OURS = "api.app:create_app"
_NULL = "benchmarks.apps:null_store"
_PEER = "benchmarks.sqlmodel_peer:create_peer"


@dataclass(frozen=True)
class Contender:
    """A server with the sessions that load is put on."""

    server: Server
    targets: Sequence[Target]


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure throughput, latency and CPU time of the events route; count lost acknowledged events."""
    rounds, seconds = (3, 2.0) if quick else (5, 6.0)
    bodies = event_bodies(_BODIES)
    with ExitStack() as stack:
        contenders = {
            "ours": stack.enter_context(contender(_OURS)),
            "null": stack.enter_context(contender(_NULL)),
            "rows": stack.enter_context(_peer()),
        }
        loads = alternate(contenders, bodies, rounds=rounds, seconds=seconds)
        keyed = [
            put_load(
                contenders["ours"].server,
                contenders["ours"].targets,
                bodies,
                seconds=seconds,
                batch_ids=f"r{n}-",
            )
            for n in range(rounds)
        ]
    return [*_figures(loads, keyed), nothing_is_lost(bodies, seconds=1.0 if quick else 2.0)]


def alternate(
    contenders: dict[str, Contender], bodies: Sequence[bytes], *, rounds: int, seconds: float
) -> dict[str, list[Load]]:
    """Load each contender in turn, after a moment to warm up; every other round backwards.

    Raises:
        RuntimeError: if one of them refuses a request.
    """
    names = list(contenders)
    loads: dict[str, list[Load]] = {name: [] for name in names}
    for name in names:
        put_load(contenders[name].server, contenders[name].targets, bodies, seconds=1.0)
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            load = put_load(contenders[name].server, contenders[name].targets, bodies, seconds=seconds)
            if load.refused:
                raise RuntimeError(f"{load.refused} of {load.requests} requests were refused ({name}).")
            loads[name].append(load)
    return loads


@contextmanager
def contender(factory: str, *, environment: dict[str, str] | None = None) -> Iterator[Contender]:
    """Yield our application, or a variant of it, on a fresh deployment."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        targets = recording_sessions(settings, sessions=_SESSIONS, keys=_KEYS)
        with serving(settings, factory, environment=environment) as server:
            yield Contender(server, targets)


@contextmanager
def _peer() -> Iterator[Contender]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        targets = peer_sessions(settings, sessions=_SESSIONS, keys=_KEYS)
        with serving(settings, _PEER) as server:
            yield Contender(server, targets)
        if not count_events(settings):
            raise RuntimeError("The peer stored nothing; it cannot be compared with.")


def _figures(loads: dict[str, list[Load]], keyed: list[Load]) -> list[Figure]:
    ours, null, rows = loads["ours"], loads["null"], loads["rows"]
    return [
        Figure(
            name="ingest / the same without a store",
            unit="requests/s",
            ours=[load.per_second for load in ours],
            peer=[load.per_second for load in null],
            peer_name="null store",
            goal=at_least(0.25),
            detail={
                "aim": 0.5,
                "CPU µs a request": [load.cpu_us for load in ours],
                "null store": [load.cpu_us for load in null],
                "with batch ids, requests/s": [load.per_second for load in keyed],
                "client": client_name(),
            },
        ),
        Figure(
            name=f"ingest p99, {CONNECTIONS} connections",
            unit="ms",
            ours=[load.p99_ms for load in ours],
            goal=at_most(80),
            detail={"p50": [load.p50_ms for load in ours], "null store p99": [load.p99_ms for load in null]},
        ),
        Figure(
            name="ingest / a row per event",
            unit="requests/s",
            ours=[load.per_second for load in ours],
            peer=[load.per_second for load in rows],
            peer_name="FastAPI + SQLModel",
            goal=at_least(10),
            detail={
                "CPU µs a request of the peer": [load.cpu_us for load in rows],
                "its p99 ms": [load.p99_ms for load in rows],
            },
        ),
    ]


def nothing_is_lost(bodies: Sequence[bytes], *, seconds: float, sessions: int = _SESSIONS) -> Figure:
    """Kill the server in the middle of a load and check every acknowledged event."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        targets = recording_sessions(settings, sessions=sessions, keys=_KEYS)
        with serving(settings) as server:
            answers = _load_until_killed(server, encoded_requests(targets, bodies), seconds)
        with serving(settings) as server:
            stored = [event_id for target in targets for event_id in _event_ids(server, target)]
    acknowledged = {event_id for _, body in answers.accepted for event_id in _acknowledged_ids(body)}
    if not acknowledged:
        raise RuntimeError("The server acknowledged nothing before it was killed.")
    lost = len(acknowledged.difference(stored))
    return Figure(
        name="acknowledged events lost or double after kill -9",
        unit="events",
        ours=[lost + len(stored) - len(set(stored))],
        goal=at_most(0),
        detail={"acknowledged": len(acknowledged), "found": len(stored)},
    )


def _load_until_killed(server: Server, requests: Sequence[bytes], seconds: float) -> Answers:
    killer = threading.Timer(seconds, server.kill)
    killer.start()
    try:
        return drive(server.host, server.port, requests, connections=CONNECTIONS, seconds=seconds + 30)
    finally:
        killer.join()


def _acknowledged_ids(body: bytes) -> list[str]:
    answer = orjson.loads(body)
    ids = id_range(answer["first_id"], answer["accepted"])
    if ids[-1] != answer["last_id"] or answer["accepted"] != limits.EVENTS_PER_BATCH:
        raise RuntimeError("An answer does not give the ids of its hundred events.")
    return ids


def _event_ids(server: Server, target: Target) -> list[str]:
    headers = {"Authorization": f"Bearer {target.key}", "Accept": "application/x-ndjson"}
    answer = httpx.get(server.url + target.path, headers=headers, timeout=60, trust_env=False)
    answer.raise_for_status()
    return [orjson.loads(line)["id"] for line in answer.content.splitlines()]
