"""Backup and restore of a deployment with much content, in MB/s against `cp` of the same files.

Then the same under load: 100 batches a second are sent while a backup is made every few seconds, and the
last one is restored.
"""

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import uvloop

from benchmarks.figure_reports import Figure, at_least, quantile
from benchmarks.neighbours import create_workspace_sessions, make_request, send_on_schedule
from benchmarks.seeds import Target
from benchmarks.servers import Server, serving
from recorder.governance.backup.backup_store import BackupStore
from recorder.governance.backup.create import create_backup
from recorder.governance.backup.restore import restore_backup, stage_settings
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.settings import Settings
from tests.support.backups import problems
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, seal

_OBJECT_BYTES = 4_000_000
_BATCHES_PER_SECOND, _EVENTS_PER_BATCH = 100, 20
#: Between two backups under load.
_PAUSE_S = 2.0


class RestoredWrong(RuntimeError):
    """A restored deployment lacks a part of a batch, or a check of it has findings."""


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure the MB/s of a first backup and a restore against `cp -r`, and the seconds of a second backup.

    Raises:
        RestoredWrong: if what was backed up under load is not restored whole.
    """
    rounds, objects = (2, 50) if quick else (5, 250)
    first: list[float] = []
    second: list[float] = []
    restored: list[float] = []
    copied: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = Path(folder)
        runtime = _make_deployment(root / "data", objects)
        try:
            megabytes = _count_megabytes(root / "data")
            for number in range(rounds):
                for work in ("ours", "cp") if number % 2 else ("cp", "ours"):
                    if work == "cp":
                        copied.append(megabytes / _time_copy(root / "data", root / "copied"))
                        continue
                    to = root / "backups"
                    report = create_backup(runtime, str(to))
                    first.append(report.bytes / 1e6 / report.seconds)
                    second.append(create_backup(runtime, str(to)).seconds)
                    restored.append(report.bytes / 1e6 / _time_restore(runtime.settings, to, root / "new"))
                    shutil.rmtree(to)
                    shutil.rmtree(root / "new")
        finally:
            runtime.close()
    detail = {"MB": round(megabytes), "objects": objects}
    return [
        Figure(
            name="backup ÷ cp -r and sync",
            unit="MB/s",
            ours=first,
            peer=copied,
            peer_name="cp",
            goal=at_least(0.5),
            detail=detail,
        ),
        Figure(
            name="restore, checked ÷ cp -r and sync", unit="MB/s", ours=restored, peer=copied, peer_name="cp"
        ),
        Figure(name="second backup without changes", unit="s", ours=second, detail=detail),
        _measure_under_load(objects, seconds=10.0 if quick else 40.0),
    ]


def _measure_under_load(objects: int, seconds: float) -> Figure:
    """Return the latency of batches while backups are made, next to that without; restore the last one."""
    rates: list[float] = []
    is_over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = Path(folder)
        runtime = _make_deployment(root / "data", objects)
        target = create_workspace_sessions(runtime.settings, "load")[0]

        def back_up() -> None:
            while not is_over.is_set():
                report = create_backup(runtime, str(root / "backups"))
                rates.append(report.bytes / 1e6 / report.seconds)
                is_over.wait(_PAUSE_S)

        try:
            with serving(runtime.settings) as server:
                quiet = _send_batches(server, target, seconds / 4)
                backups = threading.Thread(target=back_up)
                backups.start()
                beside = _send_batches(server, target, seconds)
                is_over.set()
                backups.join()
            _time_restore(runtime.settings, root / "backups", root / "new")
            restored = _count_restored_events(runtime.settings, root / "new", target)
        finally:
            runtime.close()
    sent = (len(quiet) + len(beside)) * _EVENTS_PER_BATCH
    if restored % _EVENTS_PER_BATCH or not len(quiet) * _EVENTS_PER_BATCH <= restored <= sent:
        raise RestoredWrong(f"Of {sent} events, {restored} were restored.")
    return Figure(
        name="p99 of a batch, 100 batches a second, while backups are made",
        unit="ms",
        ours=[quantile(beside, 0.99)],
        peer=[quantile(quiet, 0.99)],
        peer_name="without",
        detail={
            "p50, ms": [quantile(values, 0.5) for values in (quiet, beside)],
            "batches a second": len(beside) / seconds,
            "backups": len(rates),
            "MB/s of the first": rates[0],
            "events sent, restored": [sent, restored],
        },
    )


def _send_batches(server: Server, target: Target, seconds: float) -> list[float]:
    events = [{"type": "ui.click", "t_ms": n, "title": "Save"} for n in range(_EVENTS_PER_BATCH)]
    request = make_request(target, "events", "application/json", json.dumps({"events": events}).encode())
    return uvloop.run(send_on_schedule(server, request, "202", seconds, per_second=_BATCHES_PER_SECOND))


def _count_restored_events(settings: Settings, data: Path, target: Target) -> int:
    """Return how many events of a session were restored into a folder.

    Raises:
        RestoredWrong: if the check of the deployment has findings.
    """
    wanted = Settings.from_env({"RECORDER_SECRET": settings.secret.decode()}, data_dir=data)
    if findings := problems(wanted):
        raise RestoredWrong(f"The restored deployment has findings: {findings}")
    runtime = Runtime.open(wanted)
    try:
        with runtime.database.transaction(write=False) as db:
            return db.get_one(SessionRow, target.session_id).event_count
    finally:
        runtime.close()


def _make_deployment(data: Path, objects: int) -> Runtime:
    """Make a deployment with sealed sessions, and objects of frames of theirs."""
    runtime = make_runtime(data)
    session_ids = seal(runtime, [Recording(frames=[0, 500], padding=1_000) for _ in range(200)])
    for number in range(objects):
        key = f"frames/{WORKSPACE}/{session_ids[number % len(session_ids)]}/more-{number}.pack"
        runtime.blobs.put(key, os.urandom(_OBJECT_BYTES))
    return runtime


def _count_megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def _time_copy(source: Path, target: Path) -> float:
    began = time.perf_counter()
    subprocess.run(["cp", "-r", source, target], check=True)
    # A backup is on the disk when it ends.
    subprocess.run(["sync", "-f", target], check=True)
    seconds = time.perf_counter() - began
    shutil.rmtree(target)
    return seconds


def _time_restore(settings: Settings, to: Path, data: Path) -> float:
    wanted = Settings.from_env({"RECORDER_SECRET": settings.secret.decode()}, data_dir=data, create=False)
    began = time.perf_counter()
    restore_backup(BackupStore(str(to)), wanted, stage_settings(wanted))
    return time.perf_counter() - began
