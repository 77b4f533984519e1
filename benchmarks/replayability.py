"""Replayability of sealed sessions: time until it is there, cost of a session, and sealing beside it."""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event
from pathlib import Path

from sqlmodel import col, select, update

from benchmarks.figure_reports import Figure, at_least, at_most
from benchmarks.replay_drain import record_session
from benchmarks.seeds import new_key, new_settings
from recorder.client import Client
from recorder.models.session import SessionRow
from recorder.replay_service.due_replays import LEASE
from recorder.replay_service.replayability.replayability_work import ReplayabilityWork
from recorder.runtime import Runtime
from recorder.sealing import Sealer
from recorder.settings import Settings
from recorder.storage.leases import hold_lease
from recorder.supervisor import run_service

_A_SECOND = 2.5
_TIMEOUT_S = 300.0


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure seconds from sealing to value; cost of a session; sealing with and without it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        lags = _time_values(new_settings(Path(folder)), sessions=30 if quick else 100)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cost, alone, beside = _compare_sealing(
            new_settings(Path(folder)), sessions=30 if quick else 60, rounds=2 if quick else 3
        )
    return [
        Figure(
            name="sealed → replayability, p95, with the start of the run",
            unit="s",
            ours=[sorted(lags)[int(0.95 * len(lags))]],
            goal=at_most(60),
            detail={"sessions": len(lags), "a second": _A_SECOND, "median": statistics.median(lags)},
        ),
        Figure(name="replayability of a session of 13 events", unit="ms", ours=[cost]),
        Figure(
            name="sealing while replayability is computed",
            unit="1/s",
            ours=beside,
            peer=alone,
            peer_name="without",
            goal=at_least(0.5),
        ),
    ]


def _time_values(settings: Settings, *, sessions: int) -> list[float]:
    """Return the seconds from the sealing of each session to its value, through Dagster's daemon."""
    with (
        run_service(settings, dagster=True) as service,
        Client(service.base_url, new_key(settings)) as client,
    ):
        began = time.monotonic()
        for number in range(sessions):
            time.sleep(max(0.0, began + number / _A_SECOND - time.monotonic()))
            record_session(client, number)
        runtime = Runtime.open(settings)
        try:
            until = time.monotonic() + _TIMEOUT_S
            while time.monotonic() < until:
                with runtime.database.transaction(write=False) as db:
                    rows = db.exec(select(SessionRow).where(col(SessionRow.replayability) == 1)).all()
                if len(rows) == sessions:
                    return [
                        (row.replayability_at - row.sealed_at).total_seconds()
                        for row in rows
                        if row.replayability_at and row.sealed_at
                    ]
                time.sleep(0.2)
        finally:
            runtime.close()
    raise TimeoutError("Some sessions have no replayability.")


def _compare_sealing(
    settings: Settings, *, sessions: int, rounds: int
) -> tuple[float, Sequence[float], Sequence[float]]:
    """Return ms a session, and sessions sealed a second without and with another process that computes."""
    with (
        run_service(settings, dagster=False) as service,
        Client(service.base_url, new_key(settings)) as client,
    ):
        runtime = Runtime.open(settings)
        sealer = Sealer(runtime, owner="bench")
        try:
            if not sealer.take():
                raise RuntimeError("Another run seals.")
            _seal(client, sealer, sessions)
            cost = _compute_all(runtime)
            alone, beside = [], []
            for _ in range(rounds):
                alone.append(_seal(client, sealer, sessions))
                ended = multiprocessing.get_context("spawn").Event()
                worker = multiprocessing.get_context("spawn").Process(
                    target=_compute_until, args=(str(settings.data_dir), ended)
                )
                worker.start()
                beside.append(_seal(client, sealer, sessions))
                ended.set()
                worker.join()
        finally:
            sealer.release()
            runtime.close()
    return cost, alone, beside


def _seal(client: Client, sealer: Sealer, sessions: int) -> float:
    """Record sessions, then seal them; return how many are sealed a second."""
    for number in range(sessions):
        record_session(client, number)
    began, sealed = time.perf_counter(), 0
    while sealed < sessions:
        batch = sealer.seal_batch()
        sealed += 0 if batch is None else batch.sessions
    return sessions / (time.perf_counter() - began)


def _compute_all(runtime: Runtime) -> float:
    """Compute all values; return milliseconds a session, without the start of the process."""
    work = ReplayabilityWork(runtime)
    try:
        with runtime.database.transaction(write=True) as db:
            held = hold_lease(db, LEASE, "bench", ttl_ms=300_000)
        if held is None:
            raise RuntimeError("Another run has the lease.")
        work.take_turn(held)
        began, before = time.perf_counter(), work.counts["computed"]
        while work.take_turn(held):
            pass
        return 1_000 * (time.perf_counter() - began) / (work.counts["computed"] - before)
    finally:
        work.end()


def _compute_until(data_dir: str, ended: Event) -> None:
    """Compute the values of all sealed sessions again and again, as a run with a long back-fill does."""
    runtime = Runtime.open(new_settings(Path(data_dir)))
    work = ReplayabilityWork(runtime)
    try:
        with runtime.database.transaction(write=True) as db:
            held = hold_lease(db, LEASE, "bench", ttl_ms=300_000)
        while held is not None and not ended.is_set():
            if not work.take_turn(held):
                with runtime.database.transaction(write=True) as db:
                    is_sealed = col(SessionRow.sealed_at).is_not(None)
                    db.exec(update(SessionRow).where(is_sealed).values(replayability_at=None))
    finally:
        work.end()
        runtime.close()
