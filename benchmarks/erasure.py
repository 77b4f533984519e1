"""Erasures, hard deletes and ingest during a purge. Spec §4.1, §4.5; contract §7.

Steps of purges wait for readers and late requests, by fixed times. The seconds of an erasure leave these
waits out; those of a hard delete's lake bytes, in a deployment with Dagster, include them.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import update
from sqlmodel import col, select

from benchmarks import lists
from benchmarks.events import event_bodies, event_items
from benchmarks.figure_reports import Figure, at_most
from benchmarks.load import Load, client_name, put_load
from benchmarks.screens import session_screens
from benchmarks.seeds import Target, new_key, new_settings, recording_sessions
from benchmarks.servers import Server, serving
from recorder import clock
from recorder.access.keys import Caller
from recorder.audit.log import Origin
from recorder.client import CapturedFrame, Client
from recorder.governance.erasure_runs import run_erasures
from recorder.governance.erasures import request_erasure
from recorder.governance.purging.purge_rows import request_purge
from recorder.governance.purging.purge_runs import run_purges
from recorder.governance.table_rewrites import rewrite_tables
from recorder.models.governance import ErasureCreate, PurgeRow
from recorder.models.session import SessionRow
from recorder.recording.sessions import hide_session
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.supervisor import run_service
from recorder.tenant import Tenant
from tests.support.purges import make_due, open_purges
from tests.support.sealed_sessions import START, WORKSPACE, Recording, seal

_OWNER = "benchmark"
_SUBJECT = "a person to erase"
_EVENTS_EACH = 100
_SEALED_AT_ONCE = 200
_DATES = 5
_SENT_AT_ONCE = 100
_FRAMES_AT_ONCE = 50
_DONE_WITHIN_S = 300.0


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure seconds of erasures, of their search and of hard deletes; latency of ingest during a purge."""
    return [
        time_erasures(events=100_000 if quick else 2_000_000, rounds=2 if quick else 3),
        time_search(sessions=40_000 if quick else 1_000_000, rounds=2 if quick else 3),
        *time_hard_deletes(rounds=3 if quick else 20),
        ingest_during_purge(megabytes=60 if quick else 1_000, seconds=1.0 if quick else 3.0),
    ]


def time_erasures(*, events: int, rounds: int) -> Figure:
    """Return seconds for 100,000 events of erasures that each touch a tenth of the lake's sessions."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        runtime = Runtime.open(new_settings(Path(folder)))
        try:
            session_ids = _fill_lake(runtime, events)
            touched = len(session_ids) // 10
            seconds = []
            for number in range(rounds):
                subject = f"{_SUBJECT} {number}"
                # Spread over all batches, buckets and dates.
                _name_subject(runtime, subject, session_ids[number::10][:touched])
                seconds.append(_time_erasure(runtime, WORKSPACE, subject))
        finally:
            runtime.close()
    touched_events = touched * _EVENTS_EACH
    return Figure(
        name="erasure, for 100,000 events touched",
        unit="s",
        ours=[each * 100_000 / touched_events for each in seconds],
        goal=at_most(2),
        detail={"events in the lake": events, "events touched": touched_events},
    )


def time_search(*, sessions: int, rounds: int) -> Figure:
    """Return the seconds of the search for a subject that one session names."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        lists.fill(settings, sessions)
        runtime = Runtime.open(settings)
        try:
            with runtime.database.transaction(write=False) as db:
                row = db.exec(select(SessionRow).offset(sessions // 2).limit(1)).one()
            seconds = []
            for number in range(rounds):
                _name_subject(runtime, f"{_SUBJECT} {number}", [row.id])
                _request(runtime, row.workspace_id, f"{_SUBJECT} {number}")
                began = time.perf_counter()
                run_erasures(runtime, _OWNER)
                seconds.append(time.perf_counter() - began)
        finally:
            runtime.close()
    return Figure(
        name="finding a subject, for 1 M sessions",
        unit="s",
        ours=[each * 1_000_000 / sessions for each in seconds],
        goal=at_most(10),
        detail={"sessions": sessions, "s": seconds},
    )


def time_hard_deletes(*, rounds: int, events: int = 10_000, frames: int = 500) -> list[Figure]:
    """Measure seconds of hard deletes of sealed sessions to their answer, and until their files are gone."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        key = new_key(settings)
        with run_service(settings, dagster=True) as service, Client(service.base_url, key) as client:
            session_ids = [_record(client, events, frames, seed=number) for number in range(rounds)]
            client.wait_sealed(session_ids, timeout_s=_DONE_WITHIN_S)
            answered = {}
            answers = []
            for session_id in session_ids:
                began = time.perf_counter()
                client.delete_session(session_id, hard=True)
                answers.append(time.perf_counter() - began)
                answered[session_id] = time.monotonic()
            gone = _wait_files_gone(settings, answered)
    detail = {"sessions": rounds, "events": events, "frames": frames}
    p95 = sorted(gone)[min(int(0.95 * len(gone)), len(gone) - 1)]
    return [
        Figure(name="hard delete to its answer", unit="s", ours=answers, goal=at_most(0.5), detail=detail),
        Figure(
            name="lake bytes of a hard delete gone, p95",
            unit="s",
            ours=[p95],
            goal=at_most(60),
            detail={"all": gone},
        ),
    ]


def ingest_during_purge(*, megabytes: int, seconds: float) -> Figure:
    """Return the p99 of ingest while sessions that were never sealed are purged, by that without a purge.

    Their rows are in the tables that ingest writes. Purges run in another process, as in a deployment.
    """
    bodies = event_bodies(50)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        recording = recording_sessions(settings, sessions=512, keys=16)
        doomed, targets = recording[:256], recording[256:]
        # Requests that take long are warnings, one for each.
        with serving(settings, environment={"RECORDER_LOG_LEVEL": "error"}) as server:
            while (stored := _count_megabytes(settings, doomed)) < megabytes:
                put_load(server, doomed, bodies, seconds=1.0)
            _hide(settings, doomed)
            during, purge_s = _load_during_purge(settings, server, targets, bodies, seconds)
            without = [put_load(server, targets, bodies, seconds=seconds) for _ in during]
    return Figure(
        name="ingest p99 during a purge",
        unit="ms",
        ours=[load.p99_ms for load in during],
        peer=[load.p99_ms for load in without],
        peer_name="without",
        goal=at_most(1.5),
        detail={
            "MB purged": stored,
            "s of the purge": purge_s,
            "requests/s": [load.per_second for load in during],
            "without": [load.per_second for load in without],
            "client": client_name(),
        },
    )


def _fill_lake(runtime: Runtime, events: int) -> list[str]:
    """Seal sessions until the lake holds so many events; return their ids."""
    session_ids: list[str] = []
    kinds = ("click", "scroll", "input", "pointer_move")
    each = [(100 * number, kinds[number % len(kinds)]) for number in range(_EVENTS_EACH)]
    for batch in range(events // _EVENTS_EACH // _SEALED_AT_ONCE):
        sealed_at = START + timedelta(days=batch % _DATES)
        recordings = [
            Recording(events=each, padding=150, sealed_at=sealed_at) for _ in range(_SEALED_AT_ONCE)
        ]
        session_ids += seal(runtime, recordings)
    return session_ids


def _name_subject(runtime: Runtime, subject: str, session_ids: Sequence[str]) -> None:
    with runtime.database.transaction(write=True) as db:
        for start in range(0, len(session_ids), 500):
            wanted = col(SessionRow.id).in_(session_ids[start : start + 500])
            db.connection().execute(update(SessionRow).where(wanted).values(actor_id=subject))


def _request(runtime: Runtime, workspace_id: str, subject: str) -> None:
    caller = Caller(Tenant(workspace_id, "live"), "key")
    body = ErasureCreate(subject=subject, scope="all")
    with runtime.database.transaction(write=True) as db:
        request_erasure(db, runtime.settings.secret, caller, Origin.operator(workspace_id), body)


def _time_erasure(runtime: Runtime, workspace_id: str, subject: str) -> float:
    """Return the seconds of all steps of an erasure; their waits are over at once.

    Raises:
        RuntimeError: if nothing was found to erase, or it does not end.
    """
    _request(runtime, workspace_id, subject)
    began = time.perf_counter()
    run_erasures(runtime, _OWNER)
    if not open_purges(runtime):
        raise RuntimeError("The erasure found no session.")
    while open_purges(runtime):
        make_due(runtime)
        report = run_purges(runtime, _OWNER)
        if report is None or report.failed_steps:
            raise RuntimeError("A step of the purges failed.")
    run_erasures(runtime, _OWNER)
    rewrites = rewrite_tables(runtime, _OWNER)
    if rewrites is None or rewrites.erasures != 1:
        raise RuntimeError("The erasure did not end.")
    return time.perf_counter() - began


def _record(client: Client, events: int, frames: int, *, seed: int) -> str:
    """Record a session and stop it; return its id."""
    session_id: str = client.create_session("approve_invoice", start=True)["id"]
    items = event_items(events, seed=seed)
    screens = session_screens(10, seed=seed)
    step = max(1, int(items[-1]["t_ms"]) // frames)
    pictures = [CapturedFrame.of(screens[n % 10], t_ms=n * step) for n in range(frames)]
    for start in range(0, frames, _FRAMES_AT_ONCE):
        client.add_frames(session_id, pictures[start : start + _FRAMES_AT_ONCE])
    for start in range(0, events, _SENT_AT_ONCE):
        client.add_events(session_id, items[start : start + _SENT_AT_ONCE])
    client.stop(session_id)
    return session_id


def _wait_files_gone(settings: Settings, answered: dict[str, float]) -> list[float]:
    """Return the seconds from each answer until the session's lake files are deleted.

    Raises:
        TimeoutError: if one is not purged in time.
    """
    runtime = Runtime.open(settings)
    until = time.monotonic() + _DONE_WITHIN_S
    gone: dict[str, float] = {}
    steps_with_files = ("content", "lake", "files")
    try:
        while len(gone) < len(answered):
            with runtime.database.transaction(write=False) as db:
                having = select(PurgeRow.session_id).where(col(PurgeRow.step).in_(steps_with_files))
                left = set(db.exec(having))
            now = time.monotonic()
            gone |= {name: now - at for name, at in answered.items() if name not in left | gone.keys()}
            if now > until:
                raise TimeoutError("The lake files of a deleted session are still there.")
            time.sleep(0.2)
    finally:
        runtime.close()
    return list(gone.values())


def _count_megabytes(settings: Settings, targets: Sequence[Target]) -> float:
    runtime = Runtime.open(settings)
    try:
        with runtime.database.transaction(write=False) as db:
            ids = [target.session_id for target in targets]
            return sum(db.exec(select(SessionRow.event_bytes).where(col(SessionRow.id).in_(ids)))) / 1e6
    finally:
        runtime.close()


def _hide(settings: Settings, targets: Sequence[Target]) -> None:
    runtime = Runtime.open(settings)
    try:
        for target in targets:
            with runtime.database.transaction(write=True) as db:
                row = db.get_one(SessionRow, target.session_id)
                hide_session(db, row, at=clock.now())
                request_purge(db, row, "hard_delete", at=clock.now())
    finally:
        runtime.close()


def _load_during_purge(
    settings: Settings, server: Server, targets: Sequence[Target], bodies: Sequence[bytes], seconds: float
) -> tuple[list[Load], float]:
    """Return the loads that ended before the purge did, at least one, and its seconds.

    Raises:
        RuntimeError: if the purge failed.
    """
    put_load(server, targets, bodies, seconds=1.0)
    context = multiprocessing.get_context("spawn")
    began, ended = context.Event(), context.Value("d", 0.0)
    process = context.Process(target=_purge, args=(settings.data_dir, began, ended))
    process.start()
    began.wait()
    loads: list[Load] = []
    while process.is_alive():
        loads.append(put_load(server, targets, bodies, seconds=seconds))
    process.join()
    if process.exitcode:
        raise RuntimeError("The purge failed; its output is above.")
    # The last load went on after the purge.
    return loads[:-1] or loads, ended.value


def _purge(data_dir: Path, began: Any, ended: Any) -> None:
    """Remove the content of all hidden sessions, in a process of its own; note the seconds it took."""
    runtime = Runtime.open(new_settings(data_dir))
    try:
        began.set()
        start = time.perf_counter()
        run_purges(runtime, _OWNER)
        ended.value = time.perf_counter() - start
    finally:
        runtime.close()
