"""Backup and restore of a deployment with much content, in MB/s against `cp` of the same files."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Figure, at_least
from recorder.governance.backup.backup_store import BackupStore
from recorder.governance.backup.create import create_backup
from recorder.governance.backup.restore import restore_backup, stage_settings
from recorder.runtime import Runtime
from recorder.settings import Settings
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, seal

_OBJECT_BYTES = 4_000_000


def measure(*, quick: bool = False) -> list[Figure]:
    """MB/s of a first backup and a restore against `cp -r`, taken in turn; seconds of a second backup."""
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
    ]


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
