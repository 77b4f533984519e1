"""Exports that are requested and run, for tests that read the files."""

from pathlib import Path
from typing import Any

import orjson
import polars as pl
from sqlmodel import select

from recorder.access.quota import read_quota
from recorder.audit.log import Origin
from recorder.exports.executor import ShardExecutor
from recorder.exports.requests.export_operations import create_export
from recorder.exports.runner.run import run_export
from recorder.models.export import ExportRow
from recorder.models.export_request import ExportCreate
from recorder.models.workspace import UsageRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.sealed_sessions import WORKSPACE


def ask(runtime: Runtime, *, mode: str = "live", **body: Any) -> ExportRow:
    """Queue an export: of `checkout` to the local folder `out` by default."""
    request = {
        "workflow": "checkout",
        "format": "parquet",
        "destination": {"kind": "local", "path": "out"},
    } | body
    wanted, origin = ExportCreate.model_validate(request), Origin.operator(WORKSPACE)
    return create_export(runtime, Tenant(WORKSPACE, mode), wanted, origin=origin)


def export(runtime: Runtime, *, executor: ShardExecutor | None = None, **body: Any) -> Path:
    """Queue an export and run it to the end; gives its folder."""
    row = run_export(runtime, ask(runtime, **body).id, owner="test", executor=executor)
    assert row.status == "completed", row.error
    return folder_of(runtime, row)


def folder_of(runtime: Runtime, row: ExportRow) -> Path:
    """Return the folder of a local or hosted export."""
    if row.destination["kind"] == "local":
        assert runtime.settings.local_export_root is not None
        return runtime.settings.local_export_root / str(row.destination["path"]) / row.id
    return Path(runtime.settings.export_url) / row.workspace_id / row.id


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of an export's folder."""
    manifest: dict[str, Any] = orjson.loads((folder / "manifest.json").read_bytes())
    return manifest


def rows_of(folder: Path, kind: str = "events") -> pl.DataFrame:
    """Return all rows of a kind, in the order of path and file."""
    paths = sorted(folder.glob(f"data/*/{kind}-*.parquet"))
    return pl.concat([pl.read_parquet(path) for path in paths]) if paths else pl.DataFrame()


def hashes_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each shard, by path."""
    return {shard["path"]: shard["sha256"] for shard in manifest_of(folder)["shards"]}


def quota_of(runtime: Runtime) -> tuple[int, int]:
    """Return the rows that the workspace has exported, and the rows that its exports reserve."""
    with runtime.database.transaction(write=False) as db:
        reserved = sum(db.exec(select(UsageRow.reserved_rows)))
        return read_quota(db, Tenant(WORKSPACE, "live")).exported_rows, reserved
