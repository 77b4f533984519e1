"""Dry replays in a deployment with Dagster: from the request to the end, and how fast a queue drains."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sqlmodel import col, func, select

from benchmarks.figure_reports import Figure, at_least, at_most
from benchmarks.resolve import make_session
from benchmarks.screens import session_screens
from benchmarks.seeds import new_key, new_settings
from recorder.access.keys import authenticate_key
from recorder.audit.log import Origin
from recorder.client import CapturedFrame, Client
from recorder.models.replay import ReplayCreate, ReplayPolicyBody, ReplayRow, ReplayThresholds
from recorder.replay_service.requests.replays import create_replay
from recorder.replay_service.requests.request_checks import EarlierLookup
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.supervisor import run_service

_SESSIONS = 20
_EVENTS_EACH = 13
_QUEUED_AT_ONCE = 500
_TIMEOUT_S = 600.0


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure seconds from the request to the end of a dry replay, and replays per second of a full queue."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        key = new_key(settings)
        with run_service(settings, dagster=True) as service, Client(service.base_url, key) as client:
            session_ids = [record_session(client, number) for number in range(_SESSIONS)]
            client.wait_sealed(session_ids, timeout_s=_TIMEOUT_S)
            cold = time_replay(client, session_ids[0])
            warm = [
                time_replay(client, session_ids[number % _SESSIONS], number)
                for number in range(20 if quick else 200)
            ]
            replays = 1_000 if quick else 10_000
            rates = [
                _time_queue(settings, key, session_ids, replays=replays, repeats=repeats)
                for repeats in (False, True)
            ]
    p95 = sorted(warm)[int(0.95 * len(warm))]
    return [
        Figure(name="dry replay, request to end, first one", unit="s", ours=[cold], goal=at_most(10)),
        Figure(
            name="dry replay, request to end, p95 of a run that is up",
            unit="s",
            ours=[p95],
            goal=at_most(1),
            detail={"replays": len(warm), "median": sorted(warm)[len(warm) // 2]},
        ),
        *rates,
    ]


def record_session(client: Client, seed: int) -> str:
    """Record a session of 13 clicks on made-up pages with snapshots, and stop it; return its id."""
    recording = make_session(_EVENTS_EACH)
    session_id: str = client.create_session("approve_invoice", start=True)["id"]
    picture = session_screens(1, seed=seed)[0]
    client.add_frames(
        session_id,
        [
            CapturedFrame.of(picture, t_ms=frame.t_ms, id=frame.frame_id, dom=frame.read_dom())
            for frame in recording.frames
        ],
    )
    client.add_events(session_id, [dict(event) for event in recording.events])
    client.stop(session_id)
    return session_id


def time_replay(client: Client, session_id: str, number: int = 0) -> float:
    """Return the seconds of a replay that must be completed; another number asks for another result.

    Raises:
        RuntimeError: if it ended otherwise.
    """
    began = time.perf_counter()
    replay = client.create_replay(session_id, policy={"thresholds": {"ok": 0.7 + number / 1e6}})
    while (shown := client.get_replay(replay["id"]))["finished_at"] is None:
        time.sleep(0.02)
    if shown["status"] != "completed":
        raise RuntimeError(f"The replay ended {shown['status']}: {shown['error'] or shown['divergence']}")
    return time.perf_counter() - began


def _time_queue(
    settings: Settings, key: str, session_ids: Sequence[str], *, replays: int, repeats: bool
) -> Figure:
    """Return replays per second of a full queue, from the last request to the last end.

    Args:
        settings: settings of the deployment.
        key: key of the requests.
        session_ids: sessions, in turn.
        replays: requests.
        repeats: whether all of them ask for the same results, which are copied then.
    """
    runtime = Runtime.open(settings)
    try:
        with runtime.database.transaction(write=False) as db:
            caller = authenticate_key(db, key, secret=settings.secret)
        origin = Origin.operator(caller.tenant.workspace_id)
        for start in range(0, replays, _QUEUED_AT_ONCE):
            with runtime.database.transaction(write=True) as db:
                for number in range(start, min(start + _QUEUED_AT_ONCE, replays)):
                    # Another threshold, as good as the first, makes each request another one.
                    ok = 0.75 if repeats else 0.75 + number / 1e6
                    policy = ReplayPolicyBody(thresholds=ReplayThresholds(ok=ok))
                    session_id = session_ids[number % _SESSIONS]
                    body = ReplayCreate(session_id=session_id, sandbox="dry", policy=policy)
                    create_replay(db, runtime, caller, body, first_event=EarlierLookup(), origin=origin)
        began, left = time.perf_counter(), _count_open(runtime)
        until = time.monotonic() + _TIMEOUT_S
        while (open_now := _count_open(runtime)) and time.monotonic() < until:
            time.sleep(0.1)
        rate = (left - open_now) / (time.perf_counter() - began)
    finally:
        runtime.close()
    return Figure(
        name=f"dry replays of 13 events in a full queue{', asked for again' if repeats else ''}",
        unit="1/s",
        ours=[rate],
        goal=at_least(100),
        detail={"queued": replays, "open when all were queued": left, "left": open_now},
    )


def _count_open(runtime: Runtime) -> int:
    with runtime.database.transaction(write=False) as db:
        is_open = col(ReplayRow.finished_at).is_(None)
        return db.exec(select(func.count()).select_from(ReplayRow).where(is_open)).one()
