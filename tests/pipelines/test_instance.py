"""The Dagster instance of `dagster_home/dagster.yaml`: where it writes, what it keeps, what it limits."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.instance.config import PoolGranularity

from tests.support.databases import create_empty_database

ROOT = Path(__file__).parents[2]
HOME = ROOT / "dagster_home"


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """Yield the instance with its folder in a temporary place."""
    monkeypatch.setenv("RECORDER_DAGSTER_DIR", str(tmp_path / "dagster"))
    with dg.DagsterInstance.from_config(str(HOME)) as instance:
        yield instance


def test_it_writes_below_its_folder_only(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    before = set(HOME.iterdir())
    instance.get_run_records()
    assert Path(instance.storage_directory()).is_relative_to(tmp_path)
    assert (tmp_path / "dagster" / "history" / "runs.db").exists()
    assert set(HOME.iterdir()) == before


def test_it_tells_nobody_about_itself(instance: dg.DagsterInstance) -> None:
    assert not instance.telemetry_enabled
    assert not instance.nux_enabled


_READ_SYNCS = """
import dagster as dg
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import SqliteScheduleStorage, sqlite_schedule_storage
from sqlalchemy import text
from pipelines.daemon import reduce_daemon_sqlite_work

# What it replaces is there.
assert callable(SqliteScheduleStorage._has_instigators_table)
assert all(callable(each.create_engine) for each in (sqlite_run_storage, sqlite_schedule_storage))
reduce_daemon_sqlite_work()
with dg.DagsterInstance.get() as instance:
    assert instance.all_instigator_state() == []
    for storage in (instance.schedule_storage, instance.run_storage):
        with storage.connect() as first:
            print(first.scalar(text("PRAGMA synchronous")), first.scalar(text("PRAGMA journal_mode")))
        with storage.connect() as second:
            assert second.engine is first.engine
"""


def test_the_daemon_syncs_runs_but_no_ticks_and_keeps_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(HOME))
    monkeypatch.setenv("RECORDER_DAGSTER_DIR", str(tmp_path))
    command = [sys.executable, "-c", _READ_SYNCS]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.stdout.split(), result.returncode) == (["1", "wal", "2", "wal"], 0), result.stderr


def test_runs_of_each_kind_are_limited(instance: dg.DagsterInstance) -> None:
    settings = instance.get_concurrency_config()
    queue, pools = settings.run_queue_config, settings.pool_config
    assert queue is not None
    limits = {limit["value"]: limit["limit"] for limit in queue.tag_concurrency_limits}
    assert limits == {"sealing": 8, "live_replays": 8}
    assert (pools.pool_granularity, pools.default_pool_limit) == (PoolGranularity.RUN, 2)


@pytest.mark.parametrize("kind", ["sensor", "schedule", "auto_materialize"])
def test_no_tick_is_kept_forever(kind: str) -> None:
    days: dict[str, int] = _settings()["retention"][kind]["purge_after_days"]
    assert set(days) == {"skipped", "started", "success", "failure"}
    assert all(value > 0 for value in days.values())


def test_the_variant_for_several_machines_works_as_written(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, address = create_empty_database(postgres).partition("://")
    lines = (HOME / "dagster.yaml").read_text().splitlines()
    commented = [line.removeprefix("#   ") for line in lines if line.startswith("#   ")]
    settings = _settings() | yaml.safe_load("\n".join(commented))
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("RECORDER_DAGSTER_DIR", str(tmp_path / "dagster"))
    monkeypatch.setenv("RECORDER_DAGSTER_POSTGRES_URL", f"postgresql+psycopg2://{address}")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert "postgres" in type(instance.run_storage).__name__.lower()
        assert instance.get_run_records() == []
        # With the driver that SQLAlchemy takes for `postgresql://`, no event can be stored.
        instance.report_runless_asset_event(dg.AssetMaterialization("stored"))
        assert instance.get_latest_materialization_event(dg.AssetKey("stored")) is not None


def test_no_absolute_path_is_written_down() -> None:
    texts = [(HOME / "dagster.yaml").read_text(), (ROOT / "workspace.yaml").read_text()]
    words = [word for text in texts for word in text.split()]
    assert [word for word in words if word.startswith("/")] == []


def _settings() -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load((HOME / "dagster.yaml").read_text())
    return settings
