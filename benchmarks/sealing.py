"""From stopped to sealed, through Dagster's daemon: while a drain run is at work, and with none. Spec §3.1.

A session holds 100 events and 10 screens of 1280 × 720. They come at their own pace, two or three a second.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sqlmodel import col, select

from benchmarks.dagster_runs import end_runs
from benchmarks.events import event_items
from benchmarks.figure_reports import Figure, at_most
from benchmarks.screens import session_screens
from benchmarks.seeds import new_key, new_settings
from recorder.client import CapturedFrame, Client
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing import list_sealing_runs
from recorder.settings import Settings
from recorder.supervisor import Service, run_service

JOB = "seal_stopped_sessions"
_EVENTS = 100
_FRAMES = 10
_A_SECOND = 2.5
_LAST_MS = 60_000


@dataclass(frozen=True)
class Work:
    """Content of one session."""

    events: list[dict[str, object]]
    frames: list[CapturedFrame]


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the seconds from `stopped_at` to `sealed_at`, warm and cold."""
    warm, cold = (20, 5) if quick else (60, 8)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        work = [make_work(seed) for seed in range(warm + cold + 1)]
        with (
            run_service(settings, dagster=True) as service,
            Client(service.base_url, new_key(settings)) as client,
        ):
            first = record(client, work[0])
            client.wait_sealed(first, timeout_s=120)
            lags = _warm(settings, client, work[1 : warm + 1])
            cold_lags, seen = _cold(settings, service, client, work[warm + 1 :])
    return [
        Figure(
            name="stopped → sealed, warm, p50",
            unit="s",
            ours=[statistics.median(lags)],
            goal=at_most(0.5),
            detail={"sessions": len(lags), "a second": _A_SECOND, "all": lags},
        ),
        Figure(name="stopped → sealed, warm, p95", unit="s", ours=[_p95(lags)], goal=at_most(1.0)),
        Figure(
            name="stopped → sealed, cold start",
            unit="s",
            ours=cold_lags,
            goal=at_most(10),
            detail={"seen sealed by GET after the stop's answer, s": seen},
        ),
    ]


def make_work(seed: int) -> Work:
    """Return a session's events and screens; equal seeds give equal ones."""
    step = _LAST_MS // _FRAMES
    frames = [
        CapturedFrame.of(image, t_ms=n * step, url=f"https://erp.example.com/payables/{seed}")
        for n, image in enumerate(session_screens(_FRAMES, seed=seed))
    ]
    return Work(event_items(_EVENTS, seed=seed), frames)


def record(client: Client, work: Work) -> str:
    """Record one session in two pieces and stop it; returns its id."""
    session_id: str = client.create_session("approve_invoice", start=True)["id"]
    for part in (0, 1):
        client.add_frames(session_id, work.frames[part * _FRAMES // 2 : (part + 1) * _FRAMES // 2])
        client.add_events(session_id, work.events[part * _EVENTS // 2 : (part + 1) * _EVENTS // 2])
    client.stop(session_id)
    return session_id


def _warm(settings: Settings, client: Client, work: Sequence[Work]) -> list[float]:
    began = time.monotonic()

    def record_in_turn(turn: int, piece: Work) -> str:
        time.sleep(max(0.0, began + turn / _A_SECOND - time.monotonic()))
        return record(client, piece)

    with ThreadPoolExecutor(4) as people:
        ids = list(people.map(record_in_turn, range(len(work)), work))
    client.wait_sealed(ids, timeout_s=60)
    return read_lags(settings, ids)


def _cold(
    settings: Settings, service: Service, client: Client, work: Sequence[Work]
) -> tuple[list[float], list[float]]:
    """Return the lags by the rows, and by the clock of a client that asks every 20 ms."""
    rng = random.Random(7)
    ids, seen = [], []
    for piece in work:
        with service.open_dagster() as dagster:
            end_runs(dagster, JOB)
        _wait_for_lease(settings)
        # The daemon looks every few seconds: a session stops at any moment of that.
        time.sleep(rng.uniform(1.0, 6.0))
        session_id = record(client, piece)
        answered = time.monotonic()
        while client.get_session(session_id)["status"] != "sealed":
            if time.monotonic() - answered > 120:
                raise TimeoutError("No drain run came up.")
            time.sleep(0.02)
        seen.append(time.monotonic() - answered)
        ids.append(session_id)
    return read_lags(settings, ids), seen


def read_lags(settings: Settings, session_ids: Sequence[str]) -> list[float]:
    """Return the seconds from `stopped_at` to `sealed_at` of each session.

    Raises:
        RuntimeError: if one of them is not sealed, or does not hold all that was sent.
    """
    runtime = Runtime.open(settings)
    try:
        with runtime.database.transaction(write=False) as db:
            rows = db.exec(select(SessionRow).where(col(SessionRow.id).in_(session_ids))).all()
    finally:
        runtime.close()
    counts = {(row.event_count, row.frame_count, row.status) for row in rows}
    if len(rows) != len(session_ids) or counts != {(_EVENTS, _FRAMES, "sealed")}:
        raise RuntimeError("Sessions are missing, not sealed, or not whole.")
    return [
        (row.sealed_at - row.stopped_at).total_seconds() for row in rows if row.sealed_at and row.stopped_at
    ]


def _wait_for_lease(settings: Settings) -> None:
    """Wait until no drain run holds the right to seal."""
    runtime = Runtime.open(settings)
    try:
        while True:
            with runtime.database.transaction(write=False) as db:
                if not list_sealing_runs(db):
                    return
            time.sleep(0.1)
    finally:
        runtime.close()


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]
