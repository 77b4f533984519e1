"""Sealing runs side by side: their pace, and quiet workspaces beside one that floods. Design §3.

The runs are processes that seal as Dagster's drain runs do. Sessions are recorded in this process, without
HTTP.
"""

import io
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from PIL import Image
from sqlalchemy import func
from sqlmodel import col, select

from benchmarks.events import event_items
from benchmarks.figure_reports import Figure, at_least, at_most
from benchmarks.screens import session_screens
from recorder.ids import new_id
from recorder.models.session import SessionRow
from recorder.recording.session_stops import stop_session
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.tenant import Tenant
from tests.faults.sealing_runs import SealingRun
from tests.support.recorded_sessions import Desk, open_desk, png_item

_EVENTS = 100
_WORKSPACES = 8
_WAYS = 10
_QUIET = 20
# Each quiet workspace records a session every 20 seconds.
_QUIET_EVERY_S = 1.0
_PATIENCE_S = 600.0


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the pace of one run and of two, CPU of a session, and lags beside a flood."""
    sessions, rounds = (160, 1) if quick else (480, 3)
    pace: dict[int, list[float]] = {1: [], 2: []}
    cpu: list[float] = []
    cpu_new: list[float] = []
    pictures: dict[int, list[float]] = {1: [], 2: []}
    for number in range(rounds):
        for runs in (1, 2) if number % 2 else (2, 1):
            seconds, _ = _seal_backlog(sessions, runs=runs, frames=0)
            pace[runs].append(sessions / seconds)
            seconds, _ = _seal_backlog(sessions // 8, runs=runs, frames=10)
            pictures[runs].append(sessions / 8 / seconds)
        for ways, figures in ((_WAYS, cpu), (sessions, cpu_new)):
            _, spent = _seal_backlog(sessions, runs=1, frames=0, ways=ways, workspaces=1)
            figures.append(1000 * spent / sessions)
    lags, peak_mb = _flood(seconds=20 if quick else 60, events=100_000 if quick else 1_000_000)
    return [
        Figure(
            name="sealing, two runs ÷ one, 8 workspaces, no pictures",
            unit="sessions/s",
            ours=pace[2],
            peer=pace[1],
            peer_name="one run",
            goal=at_least(1.5),
        ),
        Figure(
            name="sealing, two runs ÷ one, ten new pictures a session",
            unit="sessions/s",
            ours=pictures[2],
            peer=pictures[1],
            peer_name="one run",
        ),
        Figure(
            name="CPU of a session of 100 events without pictures, of work that repeats, full batches",
            unit="ms",
            ours=cpu,
            goal=at_most(5),
        ),
        Figure(name="the same, every step new to the memory graph", unit="ms", ours=cpu_new),
        Figure(
            name="stopped → sealed of 20 quiet workspaces beside a flood, p95",
            unit="s",
            ours=[sorted(lags)[int(0.95 * len(lags))]],
            goal=at_most(3),
            detail={"sessions": len(lags), "median": statistics.median(lags), "longest": max(lags)},
        ),
        Figure(
            name="memory of the largest sealing process beside a flood",
            unit="MB",
            ours=[peak_mb],
            goal=at_most(800),
        ),
    ]


@contextmanager
def _deployment() -> Iterator[tuple[Runtime, Path]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        runtime = Runtime.open(Settings.from_env({}, data_dir=Path(folder)))
        try:
            yield runtime, Path(folder)
        finally:
            runtime.close()


def _seal_backlog(
    sessions: int, *, runs: int, frames: int, ways: int = _WAYS, workspaces: int = _WORKSPACES
) -> tuple[float, float]:
    """Let so many runs seal sessions that wait; return the seconds, and the CPU seconds of all processes.

    Args:
        ways: in how many ways the work is done; sessions of one way have the same events.
    """
    with _deployment() as (runtime, folder):
        for index in range(workspaces):
            with open_desk(runtime, workspace_id=new_id("wsp")) as desk:
                for seed in range(sessions // workspaces):
                    _record(desk, seed=index * sessions + seed, frames=frames, ways=ways)
        workers = [SealingRun(folder, runtime.database.url, n, lease_s=30, runs=2) for n in range(runs)]
        first = time.monotonic()
        for worker in workers:
            worker.start()
        spent: dict[int, float] = {}
        until = first + _PATIENCE_S
        began = 0.0
        while (waiting := _count_waiting(runtime)) and time.monotonic() < until:
            if not began and waiting < sessions - 5:
                # The imports of the processes are not what is measured.
                began, sessions_left = time.monotonic(), waiting
                before = sum(_cpu_of(worker.pid, spent) for worker in workers)
            _note_cpu(workers, spent)
            time.sleep(0.02)
        seconds = time.monotonic() - began
        after = sum(_cpu_of(worker.pid, spent) for worker in workers)
        for worker in workers:
            worker.stop()
    share = sessions / sessions_left
    return seconds * share, (after - before) * share


def _record(desk: Desk, *, seed: int, frames: int = 0, ways: int = _WAYS) -> str:
    screens = (
        [png_item(n, data) for n, data in enumerate(session_screens(frames, seed=seed))] if frames else []
    )
    for screen in screens:
        screen["content_type"] = "image/webp"
    return desk.record(
        workflow="approve_invoice", events=event_items(_EVENTS, seed=seed % ways), frames=screens
    )


def _count_waiting(runtime: Runtime) -> int:
    with runtime.database.transaction(write=False) as db:
        waiting = select(func.count()).where(col(SessionRow.waiting_since).is_not(None))
        return db.exec(waiting).one()


def _note_cpu(workers: Sequence[SealingRun], spent: dict[int, float]) -> None:
    for worker in workers:
        with suppress(psutil.Error):
            for process in psutil.Process(worker.pid).children(recursive=True):
                times = process.cpu_times()
                spent[process.pid] = times.user + times.system


def _cpu_of(pid: int, spent: dict[int, float]) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system + times.children_user + times.children_system + sum(spent.values())


def _flood(*, seconds: float, events: int) -> tuple[list[float], float]:
    """Record in 20 quiet workspaces while one floods; return their lags, and the largest process in MB.

    The flood is a session of many events, and frames of 49 megapixels in 16 workflows.
    """
    picture = io.BytesIO()
    Image.radial_gradient("L").resize((7_000, 7_000)).convert("RGBA").save(picture, "PNG")
    with _deployment() as (runtime, folder):
        workers = [SealingRun(folder, runtime.database.url, n, lease_s=30, runs=2) for n in range(2)]
        for worker in workers:
            worker.start()
        with open_desk(runtime, workspace_id=new_id("wsp")) as desk:
            large = desk.record(workflow="large", events=[], is_stopped=False)
            for batch in range(events // _EVENTS):
                desk.add_events(large, *event_items(_EVENTS, seed=batch % 50))
            _wait(runtime, [_record(desk, seed=1)])
            with runtime.database.transaction(write=True) as db:
                stop_session(db, Tenant(desk.caller.workspace_id, "live"), large)
        ended = threading.Event()
        flood = threading.Thread(
            target=_record_flood, args=(runtime, desk.caller.workspace_id, picture.getvalue(), ended)
        )
        watch = _MemoryWatch(workers)
        flood.start()
        watch.start()
        quiet: list[str] = []
        workspaces = [new_id("wsp") for _ in range(_QUIET)]
        began, turn = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            with open_desk(runtime, workspace_id=workspaces[turn % _QUIET]) as desk:
                quiet.append(_record(desk, seed=turn))
            turn += 1
            time.sleep(_QUIET_EVERY_S)
        _wait(runtime, quiet)
        ended.set()
        flood.join()
        watch.ended.set()
        watch.join()
        for worker in workers:
            worker.stop()
        with runtime.database.transaction(write=False) as db:
            rows = db.exec(select(SessionRow).where(col(SessionRow.id).in_(quiet))).all()
    lags = [
        (row.sealed_at - row.stopped_at).total_seconds() for row in rows if row.sealed_at and row.stopped_at
    ]
    return lags, watch.peak_mb


def _record_flood(runtime: Runtime, workspace_id: str, picture: bytes, ended: threading.Event) -> None:
    with open_desk(runtime, workspace_id=workspace_id) as desk:
        for number in range(2_000):
            frames = [png_item(n, _with_text(picture, f"{number} {n}")) for n in range(2)]
            desk.record(workflow=f"flood_{number % 16}", frames=frames)
            if ended.wait(1.0):
                return


def _with_text(picture: bytes, text: str) -> bytes:
    """Return a PNG with a comment before its end: a picture that was not seen before."""
    chunk = b"tEXtComment\0" + text.encode()
    length, checksum = len(chunk) - 4, zlib.crc32(chunk)
    return picture[:-12] + length.to_bytes(4, "big") + chunk + checksum.to_bytes(4, "big") + picture[-12:]


class _MemoryWatch(threading.Thread):
    """Notes the largest resident size of any sealing process."""

    def __init__(self, workers: Sequence[SealingRun]) -> None:
        super().__init__()
        self.ended = threading.Event()
        self.peak_mb = 0.0
        self._workers = workers

    def run(self) -> None:
        """Measure all processes again and again until `ended` is set."""
        while not self.ended.wait(0.05):
            for worker in self._workers:
                with suppress(psutil.Error):
                    process = psutil.Process(worker.pid)
                    for member in [process, *process.children(recursive=True)]:
                        with suppress(psutil.Error):
                            self.peak_mb = max(self.peak_mb, member.memory_info().rss / 1e6)


def _wait(runtime: Runtime, session_ids: Sequence[str]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        with runtime.database.transaction(write=False) as db:
            left = select(func.count()).where(
                col(SessionRow.id).in_(session_ids), col(SessionRow.status) != "sealed"
            )
            if not db.exec(left).one():
                return
        time.sleep(0.1)
    raise TimeoutError("Sessions were not sealed in time.")
