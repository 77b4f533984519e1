"""Dry replays and replayability of a quiet workspace beside workspaces with hostile recordings."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figure_reports import Figure, at_most
from benchmarks.replay_drain import record_session, time_replay
from benchmarks.screens import session_screens
from benchmarks.seeds import new_key, new_settings
from recorder import limits
from recorder.client import CapturedFrame, Client
from recorder.supervisor import run_service

#: Workspaces with hostile recordings, each with so many replays of them.
_HOSTILE, _REPLAYS_EACH = 4, 50
#: Elements of a hostile page, and steps on three such pages in turn: each step reads its page again.
_ELEMENTS, _STEPS = 90_000, 5_000
_QUIET_SESSIONS = 10
_TIMEOUT_S = 600.0


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure seconds to the end of a quiet replay, and to a session's replayability, beside an attack."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        with (
            run_service(settings, dagster=True) as service,
            Client(service.base_url, new_key(settings)) as quiet,
        ):
            session_ids = [record_session(quiet, number) for number in range(_QUIET_SESSIONS)]
            quiet.wait_sealed(session_ids, timeout_s=_TIMEOUT_S)
            _time_replays(quiet, session_ids, count=1)
            alone = _time_replays(quiet, session_ids, count=20, first=1)
            for number in range(_HOSTILE):
                with Client(service.base_url, new_key(settings, f"hostile {number}")) as client:
                    hostile = record_hostile_session(client)
                    client.wait_sealed([hostile], timeout_s=_TIMEOUT_S)
                    _ask_for_replays(client, hostile, _REPLAYS_EACH)
            beside = _time_replays(quiet, session_ids, count=30 if quick else 200, first=100)
            hostile = record_hostile_session(quiet)
            quiet.wait_sealed([hostile], timeout_s=_TIMEOUT_S)
            _ask_for_replays(quiet, hostile, 3)
            inside = _time_replays(quiet, session_ids, count=20 if quick else 100, first=1_000)
            lags = _time_values(quiet, count=10 if quick else 20)
    detail = {"hostile workspaces": _HOSTILE, "hostile replays each": _REPLAYS_EACH}
    return [
        Figure(
            name="dry replay beside hostile recordings, p95",
            unit="s",
            ours=[_find_p95(beside)],
            goal=at_most(1),
            detail={
                **detail,
                "replays": len(beside),
                "median": _find_median(beside),
                "longest": max(beside),
                "p95 without": _find_p95(alone),
            },
        ),
        Figure(
            name="dry replay beside hostile recordings of its own workspace too, p95",
            unit="s",
            ours=[_find_p95(inside)],
            goal=at_most(1),
            detail={"replays": len(inside), "median": _find_median(inside), "longest": max(inside)},
        ),
        Figure(
            name="stopped → replayability beside hostile recordings, p95",
            unit="s",
            ours=[_find_p95(lags)],
            goal=at_most(60),
            detail={"sessions": len(lags), "median": _find_median(lags)},
        ),
    ]


def record_hostile_session(client: Client) -> str:
    """Record and stop a session whose dry replay takes all of its time; return its id."""
    session_id: str = client.create_session("approve_invoice", start=True)["id"]
    page = {"v": 1, "format": "nodes", "html": ["html", {}, ["body", {}, *[["p"]] * _ELEMENTS]]}
    picture = session_screens(1, seed=0)[0]
    for number in range(3):
        client.add_frames(session_id, [CapturedFrame.of(picture, t_ms=number, id=f"frm_{number}", dom=page)])
    target = {"role": "button", "name": "None", "selectors": [["#none"], ["aria/None"]]}
    events = [
        {"t_ms": 10 + number, "type": "click", "frame_id": f"frm_{number % 3}", "target": target}
        for number in range(_STEPS)
    ]
    for start in range(0, _STEPS, limits.EVENTS_PER_BATCH):
        client.add_events(session_id, events[start : start + limits.EVENTS_PER_BATCH])
    client.stop(session_id)
    return session_id


def _ask_for_replays(client: Client, session_id: str, count: int) -> None:
    """Ask for replays of a hostile session, each for another result."""
    for number in range(count):
        policy = {"on_divergence": "skip", "thresholds": {"ok": 0.7 + number / 1e6}}
        client.create_replay(session_id, policy=policy)


def _time_replays(client: Client, session_ids: Sequence[str], *, count: int, first: int = 0) -> list[float]:
    """Return the seconds of replays one after the other; numbers from `first` on make each another one."""
    return [
        time_replay(client, session_ids[number % len(session_ids)], number)
        for number in range(first, first + count)
    ]


def _time_values(client: Client, *, count: int) -> list[float]:
    """Return the seconds from the stop to the replayability of sessions, recorded one after the other."""
    lags = []
    for number in range(count):
        session_id = record_session(client, 1_000 + number)
        began = time.monotonic()
        while client.get_session(session_id)["replayability"] is None:
            if time.monotonic() > began + _TIMEOUT_S:
                raise TimeoutError("A session has no replayability.")
            time.sleep(0.05)
        lags.append(time.monotonic() - began)
    return lags


def _find_p95(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(0.95 * len(seconds))]


def _find_median(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]
