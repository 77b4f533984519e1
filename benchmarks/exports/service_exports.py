"""Exports of this service: whole exports, their shards alone, and the read of the lake as a floor."""

import shutil
from collections.abc import Callable, Generator, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import polars as pl
import zstandard

from benchmarks.exports.lake import WORKFLOW, WORKSPACE
from benchmarks.exports.writer_processes import answer, timed
from recorder.audit.log import Origin
from recorder.exports.executor import InProcess
from recorder.exports.planning.plan import Plan
from recorder.exports.planning.selection import plan_selected_sessions
from recorder.exports.planning.sharding import plan_shards
from recorder.exports.requests.export_operations import create_export
from recorder.exports.runner.run import run_export
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.models.export import ExportRow
from recorder.models.export_request import ExportCreate
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.tenant import Tenant


class Timed:
    """Writes shards in this process, and notes how long that takes without what the run does around it."""

    def __init__(self) -> None:
        self.seconds = self.cpu_s = 0.0

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        """Write the shards and give each result as it comes."""
        shards = iter(InProcess().run(tasks))
        while True:
            began, cpu_began = perf_counter(), process_time()
            shard = next(shards, None)
            self.seconds += perf_counter() - began
            self.cpu_s += process_time() - cpu_began
            if shard is None:
                return
            yield shard


def export(data: str, format: str, keep: bool = False) -> dict[str, Any]:
    """Run an export of all there is, every frame included, to the deployment's local folder.

    Args:
        keep: leave the files there, for others to read.

    Returns:
        `seconds` of the whole run, `shard_seconds` of its shards, `rows`, `frames`, `bytes` and `folder`.
    """
    runtime = _open(data)
    export_id = _queue(runtime, format)
    executor = Timed()
    values: dict[str, Any] = {}
    with timed(values):
        row = run_export(runtime, export_id, owner="benchmark", executor=executor)
    if row.status != "completed":
        raise RuntimeError(f"The export failed: {row.error}")
    assert runtime.settings.local_export_root is not None
    folder = runtime.settings.local_export_root / "out" / export_id
    files = [path for path in folder.glob("data/**/*") if path.is_file()]
    values |= {
        "shard_seconds": executor.seconds,
        "shard_cpu_s": executor.cpu_s,
        "rows": row.rows,
        "frames": row.frames,
        "shards": row.shards,
        "bytes": sum(path.stat().st_size for path in files),
        "folder": str(folder),
    }
    if not keep:
        shutil.rmtree(folder)
    return values


def read_sorted(data: str) -> dict[str, Any]:
    """Read all events of the newest version from the lake, all columns, sorted by session, time and id."""
    runtime = _open(data)
    version = runtime.lake.version("events", Tenant(WORKSPACE, "live"))
    values: dict[str, Any] = {}
    with timed(values):
        table = runtime.lake.scan("events", Tenant(WORKSPACE, "live"), version=version)
        rows = table.sort("session_id", "t_ms", "event_id").collect()
    return values | {"rows": rows.height}


def tables(data: str, folder: str) -> dict[str, Any]:
    """Write frames with their places and the events bound to them, as Parquet, for writers of archives."""
    lake = _open(data).lake
    order = ("session_id", "seq")
    frames = lake.scan("frames", Tenant(WORKSPACE, "live")).sort(order).drop("state_tokens").collect()
    events = (
        lake.scan("events", Tenant(WORKSPACE, "live")).filter(pl.col("frame_seq").is_not_null()).sort(order)
    )
    frames.write_parquet(Path(folder, "frames.parquet"))
    events.collect().write_parquet(Path(folder, "events.parquet"))
    return {"rows": frames.height}


def plan(data: str, format: str) -> dict[str, Any]:
    """Make a plan of all there is and what is stored of it, in the steps of a run.

    Returns:
        `seconds` of all, `parts` with those of each step, `bytes` as stored.
    """
    runtime = _open(data)
    export_id = _queue(runtime, format)
    with runtime.database.transaction(write=False) as db:
        row = db.get_one(ExportRow, export_id)
    values: dict[str, Any] = {}
    parts: dict[str, float] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        began = perf_counter()
        result = work()
        parts[name] = perf_counter() - began
        return result

    with timed(values):
        made = step("read", lambda: plan_selected_sessions(runtime.database, runtime.lake, row))
        step("shards", lambda: plan_shards(made))
        text = step("JSON", made.to_json)
        stored = step("compress", lambda: zstandard.compress(text, 3))
        step("load", lambda: Plan.from_json(text))
        step("row_set_sha256", made.row_set_sha256)
    return values | {"parts": parts, "bytes": len(stored), "sessions": made.sessions.height}


def idle() -> dict[str, Any]:
    """Return an idle report: what every process of ours holds without work."""
    return {}


def _queue(runtime: Runtime, format: str) -> str:
    request = {
        "workflow": WORKFLOW,
        "format": format,
        "frame_sampling": {"mode": "all"},
        "destination": {"kind": "local", "path": "out"},
    }
    body, origin = ExportCreate.model_validate(request), Origin.operator(WORKSPACE)
    return create_export(runtime, Tenant(WORKSPACE, "live"), body, origin=origin).id


@cache
def _open(data: str) -> Runtime:
    folder = Path(data)
    environment = {"RECORDER_LOCAL_EXPORT_ROOT": str(folder / "local")}
    return Runtime.open(Settings.from_env(environment, data_dir=folder))


if __name__ == "__main__":
    answer({call.__name__: call for call in (export, read_sorted, tables, plan, idle)})
