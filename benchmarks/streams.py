"""Streams of events: what a delivered message costs, and what live readers cost the ingest. Spec §6.5, §8.1.

Readers run in a process of their own and see to it that every message comes in its place.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import httpx
import orjson

from benchmarks.events import event_bodies, event_items
from benchmarks.figure_reports import Figure, at_least, at_most
from benchmarks.ingest import contender
from benchmarks.load import client_name, put_load
from benchmarks.seeds import Target, new_settings, recording_sessions
from benchmarks.servers import Server, serving
from benchmarks.stream_readers import Kind, Received, Wanted
from recorder import limits

_KEYS = 10
_READERS_PER_KEY = 50
_READ_SESSIONS = 50
_MESSAGES_PER_SECOND = 20
_PATIENCE_S = 30.0


class Readers:
    """A process that reads streams; all are open once it is made."""

    def __init__(self, server: Server, kind: Kind, wanted: Sequence[Wanted]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.stream_readers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
        )
        order = {"host": server.host, "port": server.port, "kind": kind}
        self._tell(orjson.dumps({**order, "readers": [asdict(reader) for reader in wanted]}))
        if self._hear() != b"ready\n":
            raise RuntimeError("The readers could not open their streams.")

    def stop(self) -> list[Received]:
        """Return the messages that each reader got until now."""
        self._tell(b"stop")
        output = [Received(**fields) for fields in orjson.loads(self._hear())]
        self._process.wait(timeout=10)
        return output

    def kill(self) -> None:
        """End it, whatever it does."""
        with self._process as process:
            process.kill()

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def _hear(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure CPU time of a delivered message on both kinds of streams, and ingest beside readers."""
    rounds, seconds = (3, 3.0) if quick else (5, 8.0)
    return [
        message_cost("sse", rounds=rounds, seconds=seconds),
        message_cost("websocket", rounds=rounds, seconds=seconds),
        message_cost("sse", rounds=rounds, seconds=seconds, per_batch=limits.EVENTS_PER_BATCH),
        ingest_with_readers(rounds=rounds, seconds=seconds),
    ]


def message_cost(
    kind: Kind,
    *,
    rounds: int,
    seconds: float,
    keys: int = _KEYS,
    readers_per_key: int = _READERS_PER_KEY,
    per_batch: int = 1,
) -> Figure:
    """Return the CPU time of the whole server process for each message that one reader got.

    Each key reads one session; each session takes so many events a second, evenly. What it costs to store
    them is measured in turn without readers, and left out.
    """
    costs, stored, delivered = [], [], 0
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        targets = recording_sessions(settings, sessions=keys, keys=keys)
        wanted = [Wanted(target.session_id, target.key) for target in targets for _ in range(readers_per_key)]
        with serving(settings) as server:
            for _ in range(rounds):
                sent, alone_s = _publish(server, targets, seconds, per_batch)
                with _reading(server, kind, wanted) as readers:
                    sent, cpu_s = _publish(server, targets, seconds, per_batch)
                    received = readers.stop()
                count = _check(received, sent * per_batch * readers_per_key)
                delivered += count
                stored.append(alone_s / sent * 1e6)
                costs.append((cpu_s - alone_s) / count * 1e6)
    return Figure(
        name=f"CPU of a delivered message, {kind}, {keys * readers_per_key} readers"
        + (f", {per_batch} at once" if per_batch > 1 else ""),
        unit="µs",
        ours=costs,
        goal=at_most(25),
        detail={"messages delivered": delivered, "CPU µs to store a batch": stored},
    )


def ingest_with_readers(*, rounds: int, seconds: float, sessions: int = _READ_SESSIONS) -> Figure:
    """Return batches a second while so many of 256 sessions have a live reader each, by those without any."""
    bodies = event_bodies(50)
    with_readers, without, lags = [], [], []
    with contender("api.app:create_app") as ours:
        wanted = [Wanted(target.session_id, target.key) for target in ours.targets[:sessions]]
        put_load(ours.server, ours.targets, bodies, seconds=1.0)
        for turn in range(rounds * 2):
            if turn % 2 == (turn // 2) % 2:
                without.append(put_load(ours.server, ours.targets, bodies, seconds=seconds))
                continue
            with _reading(ours.server, "sse", wanted) as readers:
                with_readers.append(put_load(ours.server, ours.targets, bodies, seconds=seconds))
                began = time.monotonic()
                _wait_idle(ours.server)
                lags.append(time.monotonic() - began)
                received = readers.stop()
            _check(received, None)
    return Figure(
        name=f"ingest with a live reader on {sessions} of 256 sessions",
        unit="requests/s",
        ours=[load.per_second for load in with_readers],
        peer=[load.per_second for load in without],
        peer_name="without readers",
        goal=at_least(0.8),
        detail={
            "CPU µs a request": [load.cpu_us for load in with_readers],
            "without readers": [load.cpu_us for load in without],
            "p99 ms": [load.p99_ms for load in with_readers],
            "seconds until readers had all": lags,
            "client": client_name(),
        },
    )


@contextmanager
def _reading(server: Server, kind: Kind, wanted: Sequence[Wanted]) -> Iterator[Readers]:
    readers = Readers(server, kind, wanted)
    try:
        yield readers
    finally:
        readers.kill()


def _publish(server: Server, targets: Sequence[Target], seconds: float, per_batch: int) -> tuple[int, float]:
    """Send one batch after the other, evenly; gives how many, and the server's CPU time until it rests."""
    items = event_items(1000, seed=7)
    pause = per_batch / (_MESSAGES_PER_SECOND * len(targets))
    count = max(len(targets), round(seconds / pause))
    with httpx.Client(base_url=server.url, trust_env=False, timeout=_PATIENCE_S) as client:
        before, began = server.cpu_seconds(), time.monotonic()
        for n in range(count):
            target, first = targets[n % len(targets)], n * per_batch % len(items)
            answer = client.post(
                target.path,
                json={"events": items[first : first + per_batch]},
                headers={"Authorization": f"Bearer {target.key}"},
            )
            answer.raise_for_status()
            time.sleep(max(0.0, began + (n + 1) * pause - time.monotonic()))
        _wait_idle(server)
        return count, server.cpu_seconds() - before


def _wait_idle(server: Server) -> None:
    """Return once the server rests: what was to be delivered was."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        before = server.cpu_seconds()
        time.sleep(0.25)
        if server.cpu_seconds() - before <= 0.02:
            return


def _check(received: Sequence[Received], expected: int | None) -> int:
    """Return the number of messages, each in its place and none missing.

    Raises:
        RuntimeError: if one was lost, came twice or came out of order.
    """
    count = sum(reader.messages for reader in received)
    if any(reader.misplaced for reader in received) or not count or expected not in (None, count):
        raise RuntimeError(f"Readers got {count} messages of {expected}, or got them out of place.")
    return count
