"""Power cuts while small batches are sealed: no acknowledged event is lost.

A library that is loaded before all others records which bytes and folder entries are synced. A cut copies the
data folder of a running deployment as it is at that moment, and takes at random what is not synced away:
files are emptied or cut short, new entries vanish. `RECORDER_FAULT_POWER_CUTS` is the number of cuts;
`RECORDER_FAULT_SEED` decides what is lost.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recorder.runtime import Runtime
from recorder.storage.lake_schemas import LakePartition
from tests.faults.power import Disk, Frozen
from tests.faults.results import add_result, count_done
from tests.support.deployment_processes import ROOT
from tests.support.recorded_sessions import assert_sealed_exactly_once, let_lease_run_out, session_row
from tests.support.sealed_sessions import accept_stores, make_settings
from tests.support.sealing import seal_all

CUTS = int(os.environ.get("RECORDER_FAULT_POWER_CUTS", "4"))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FAULT_SEED", "1"))  # noqa: TID251
#: Then a deployment begins with an empty folder, so that a cut stays cheap.
_CUTS_OF_ONE = 20
_PATIENCE_S = 120.0


@contextmanager
def worker(folder: Path, *options: str) -> Iterator[tuple[Disk, Path, "subprocess.Popen[str]"]]:
    """Yield a deployment in a process whose writes and syncs are recorded."""
    data = folder / "data"
    make_settings(data)
    disk, acknowledged = Disk.watch(data, folder), folder / "acknowledged"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.power_worker", str(data), str(acknowledged), *options],
        cwd=ROOT,
        env={**os.environ, **disk.environment()},  # noqa: TID251
        text=True,
    )
    try:
        yield disk, acknowledged, process
    finally:
        process.kill()
        process.wait()


def await_line(acknowledged: Path, wanted: str, process: "subprocess.Popen[str]") -> None:
    """Wait until the worker has reported something."""
    deadline = time.monotonic() + _PATIENCE_S
    while not acknowledged.exists() or wanted not in acknowledged.read_text():
        assert process.poll() is None and time.monotonic() < deadline, "The worker did not seal."
        time.sleep(0.02)


def recorded(acknowledged: Path) -> dict[str, int]:
    """Return events of each session that was acknowledged."""
    lines = [line.split() for line in acknowledged.read_text().splitlines()]
    return {words[0]: int(words[2]) for words in lines if len(words) == 3}


def is_over(runtime: Runtime, session_id: str) -> bool:
    """Return whether a session was stopped."""
    return session_row(runtime, session_id).status in ("stopped", "sealed")


def find_lost(data: Path, sessions: dict[str, int]) -> list[str]:
    """Return what of the acknowledged sessions a folder has lost, before and after a run seals the rest."""
    runtime = Runtime.open(make_settings(data))
    try:
        lost = [key for key, count in sessions.items() if session_row(runtime, key).event_count != count]
        rows = [session_row(runtime, key) for key in sessions]
        for row in rows:
            if row.status == "sealed":
                counts = runtime.lake.count_session_rows(
                    "events",
                    row.tenant,
                    partitions=[LakePartition(row.workflow, row.lake_date or "")],
                    session_ids=[row.id],
                )
                if counts[row.id] != row.event_count:
                    lost.append(row.id)
        let_lease_run_out(runtime)
        seal_all(runtime, owner="next")
        if not lost:
            for workspace_id in {row.workspace_id for row in rows}:
                ids = [row.id for row in rows if row.workspace_id == workspace_id]
                assert_sealed_exactly_once(runtime, [key for key in ids if is_over(runtime, key)])
        return lost
    finally:
        runtime.close()


def test_power_cuts_lose_no_acknowledged_event(tmp_path: Path) -> None:
    name = "power cuts"
    done = count_done(name)
    missing = max(CUTS - done, 0)
    choose = random.Random(SEED + done)
    print(f"\n{missing} power cuts, seed {SEED}, {done} done before")
    changed = checked = cuts = 0
    while cuts < missing:
        folder = tmp_path / str(cuts)
        folder.mkdir()
        with worker(folder) as (disk, acknowledged, process):
            await_line(acknowledged, "sealed", process)
            for _ in range(min(_CUTS_OF_ONE, missing - cuts)):
                time.sleep(choose.uniform(0.0, 0.5))
                with Frozen(process):
                    sessions = recorded(acknowledged)
                    after = folder / "after"
                    damaged = disk.cut(after, choose)
                assert process.poll() is None, "The worker ended."
                lost = find_lost(after, sessions)
                assert not lost, f"seed {SEED}, cut {done + cuts}: lost {lost}; cut: {damaged}"
                shutil.rmtree(after)
                cuts += 1
                changed, checked = changed + len(damaged), checked + len(sessions)
                add_result(name, 1, seed=SEED, damaged=len(damaged), sessions=len(sessions), lost=0)
        shutil.rmtree(folder)
    if missing:
        print(f"{cuts} cuts, {changed} files damaged or gone, {checked} sessions whole, 0 lost")
        assert changed


def test_the_simulator_loses_what_is_not_synced(tmp_path: Path) -> None:
    with worker(tmp_path, "once", "no-sync") as (disk, acknowledged, process):
        assert process.wait(timeout=_PATIENCE_S) == 0
        disk.cut(tmp_path / "after", None)
    # The marks of the stores are lost too, and a start is refused without them.
    accept_stores(make_settings(tmp_path / "after"))
    assert find_lost(tmp_path / "after", recorded(acknowledged))


def test_nothing_of_the_lake_is_left_unsynced_when_a_batch_is_sealed(tmp_path: Path) -> None:
    with worker(tmp_path, "once") as (disk, _, process):
        assert process.wait(timeout=_PATIENCE_S) == 0
        state = disk.state()
    lake = next(path for path in disk.root.rglob("_delta_log")).parents[3]
    files = [path for path in lake.rglob("*") if path.is_file()]
    assert any(path.suffix == ".parquet" for path in files)
    assert not [path for path in files if path.stat().st_ino in state.dirty]
    assert not [path for path in lake.rglob("*") if str(path) in state.pending]


def test_a_power_cut_leaves_the_secret_that_was_used_first(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    disk = Disk.watch(data, tmp_path)
    program = (
        "import pathlib, sys; from recorder.settings import Settings\n"
        "print(Settings.from_env({}, data_dir=pathlib.Path(sys.argv[1])).secret.decode())"
    )
    variables = {**os.environ, **disk.environment()}  # noqa: TID251
    done = subprocess.run(
        [sys.executable, "-c", program, str(data)], cwd=ROOT, env=variables, text=True, capture_output=True
    )
    disk.cut(tmp_path / "after", None)
    assert (tmp_path / "after" / "secret").read_text() == done.stdout.strip()
