"""kill -9 of Dagster's runs in mid-export: the next run continues each export and completes it.

A real daemon reads the queue and starts the runs. `make test-faults` kills one of them;
`RECORDER_FAULT_EXPORT_RUN_KILLS=10` gives the figure. The moments of the kills follow a seed, which a failure
names.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from sqlmodel import col, select

from recorder.exports.runner.small_exports import list_small_export_writers
from recorder.exports.verify import verify_manifest
from recorder.exports.verify.lake_check import compare_export_with_lake
from recorder.models.export import ExportRow
from recorder.models.operations import LeaseRow
from recorder.runtime import Runtime
from recorder.supervisor.child_commands import make_service_child_environment
from tests.support.deployment_processes import ROOT, left_after
from tests.support.export_runs import ask, folder_of, manifest_of
from tests.support.sealed_sessions import Recording, make_runtime, seal

KILLS = min(100, int(os.environ.get("RECORDER_FAULT_EXPORT_RUN_KILLS", "1")))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FAULT_SEED", "1"))  # noqa: TID251
#: Each workflow is two shards, written in some milliseconds: an export lasts long enough to be hit.
WORKFLOWS = [f"flow_{number}" for number in range(40)]
_FORMATS = ("parquet", "webdataset", "jsonl", "arrow")
_PATIENCE_S = 150.0


@contextmanager
def running_daemon(runtime: Runtime, folder: Path) -> Iterator[dg.DagsterInstance]:
    """Yield Dagster's daemon on this deployment, and its instance; what it started ends with it."""
    variables = make_service_child_environment(runtime.settings, ROOT)
    home, storage = variables["DAGSTER_HOME"], Path(variables["RECORDER_DAGSTER_DIR"])
    storage.mkdir(parents=True, exist_ok=True)
    workspace = folder / "workspace.yaml"
    source = f"{{module_name: tests.faults.quick_exports, working_directory: '{ROOT}'}}"
    workspace.write_text(f"load_from:\n  - python_module: {source}\n")
    command = [sys.executable, "-m", "dagster._daemon", "run", "--workspace", str(workspace)]
    with (folder / "daemon.log").open("w") as log:
        daemon = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("RECORDER_DAGSTER_DIR", str(storage))
                with dg.DagsterInstance.from_config(home) as instance:
                    yield instance
        finally:
            daemon.terminate()
            daemon.wait(20)
            for process in left_after(runtime.settings.data_dir, 5):
                os.kill(process, signal.SIGKILL)


def exports_of(runtime: Runtime) -> list[ExportRow]:
    """Return all exports."""
    with runtime.database.transaction(write=False) as db:
        return list(db.exec(select(ExportRow).order_by(col(ExportRow.id))))


def run_at_work(runtime: Runtime, instance: dg.DagsterInstance, row: ExportRow) -> int | None:
    """Return the process of the run that holds an export's lease, by the run's log."""
    with runtime.database.transaction(write=False) as db:
        lease = db.get(LeaseRow, f"export:{row.id}")
    if lease is None:
        return None
    records = instance.all_logs(lease.owner, of_type=dg.DagsterEventType.ENGINE_EVENT)
    matches = [match for record in records if (match := re.search(r"\(pid: (\d+)\)", record.message))]
    return int(matches[-1][1]) if matches else None


def kill_again_and_again(
    runtime: Runtime, instance: dg.DagsterInstance, chance: random.Random
) -> list[tuple[str, int]]:
    """Kill runs between two shards as often as required; return export and shards done of each."""
    killed: list[tuple[str, int]] = []
    gone: set[int] = set()
    until, wanted = time.monotonic() + _PATIENCE_S, chance.random()
    while len(killed) < KILLS:
        assert time.monotonic() < until, f"seed {SEED}: after {len(killed)} kills no run is in mid-export"
        for row in exports_of(runtime):
            if row.status != "running" or row.shards_total is None:
                continue
            before = max([done for export_id, done in killed if export_id == row.id], default=0)
            if not before + wanted * (row.shards_total - before) * 0.8 <= row.shards_done < row.shards_total:
                continue
            process = run_at_work(runtime, instance, row)
            # One that was killed holds its lease for a while yet.
            if process is not None and process not in gone:
                gone.add(process)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    killed.append((row.id, row.shards_done))
                until, wanted = time.monotonic() + _PATIENCE_S, chance.random()
                break
        time.sleep(0.005)
    return killed


def wait_all_ended(runtime: Runtime, instance: dg.DagsterInstance) -> list[dg.DagsterRunStatus]:
    """Return the statuses of the runs, once no export waits and no run is active.

    The run that writes small exports stays at work.
    """
    until, statuses = time.monotonic() + _PATIENCE_S, [dg.DagsterRunStatus.STARTED]
    while any(row.status in ("queued", "running") for row in exports_of(runtime)) or not all(
        status in FINISHED_STATUSES for status in statuses
    ):
        assert time.monotonic() < until, f"seed {SEED}: nothing goes on"
        time.sleep(0.2)
        with runtime.database.transaction(write=False) as db:
            stays = list_small_export_writers(db)
        runs = [record.dagster_run for record in instance.get_run_records()]
        statuses = [run.status for run in runs if run.run_id not in stays]
    return statuses


def test_every_export_completes_after_its_runs_were_killed(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(workflow=name, frames=[0, 450]) for name in WORKFLOWS])
    # As many as can be killed at once, and a few more times each.
    formats = _FORMATS[: max(1, min(len(_FORMATS), KILLS // 2))]
    for format in formats:
        ask(runtime, workflow=WORKFLOWS, format=format, tag=format, destination={"kind": "signed_url"})
    with running_daemon(runtime, tmp_path) as instance:
        killed = kill_again_and_again(runtime, instance, random.Random(SEED))
        statuses = wait_all_ended(runtime, instance)
    rows = exports_of(runtime)
    print(f"{KILLS} kills, at {sorted(done for _, done in killed)} shards, {len(rows)} exports")
    assert [(row.status, row.error) for row in rows] == [("completed", None)] * len(formats), f"seed {SEED}"
    assert sum(row.attempt for row in rows) >= len(formats) + KILLS
    assert statuses.count(dg.DagsterRunStatus.FAILURE) >= KILLS
    for row in rows:
        folder, manifest = folder_of(runtime, row), manifest_of(folder_of(runtime, row))
        report = verify_manifest(folder)
        assert (report.problems, report.manifest_sha256) == ([], row.manifest_sha256)
        assert compare_export_with_lake(runtime, row).problems == []
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert files == {"manifest.json", "README.md", *(shard["path"] for shard in manifest["shards"])}
    runtime.close()
