"""Maintenance of the lake in Dagster: the asset shows what a pass did to each table."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import orjson
import pytest
from typer.testing import CliRunner

from pipelines.definitions import defs
from pipelines.lake import lake_tables
from pipelines.resources import RecorderResource
from recorder import clock
from recorder.cli import app
from recorder.runtime import Runtime
from recorder.sealing import Sealer
from tests.support.recorded_sessions import WORKSPACE, open_desk
from tests.support.sealing import seal_waiting


def seal_sessions(runtime: Runtime, count: int) -> None:
    """Seal sessions one after the other, each into a file of its own."""
    sealer = Sealer(runtime, owner="test")
    assert sealer.take()
    with open_desk(runtime) as desk:
        for _ in range(count):
            desk.record()
            seal_waiting(sealer)
    sealer.release()


def test_the_asset_shows_each_table(recorder: RecorderResource) -> None:
    seal_sessions(recorder.runtime, 1)
    result = dg.materialize([lake_tables], resources={"recorder": recorder})
    metadata = result.asset_materializations_for_node("lake_tables")[0].metadata
    assert metadata["failed_tables"].value == 0 and metadata["tables"].value == 4
    table = metadata["by_table"]
    assert isinstance(table, dg.TableMetadataValue)
    rows = {record.data["kind"]: record.data for record in table.records}
    assert rows["events"]["workspace_id"] == WORKSPACE and rows["events"]["files_after"] == 1


def test_a_table_that_cannot_be_read_fails_the_run_and_the_others_are_shown(
    recorder: RecorderResource,
) -> None:
    seal_sessions(recorder.runtime, 1)
    lake = Path(recorder.data_dir or "") / "lake"
    entries = list((lake / WORKSPACE / "live" / "events" / "_delta_log").glob("*.json"))
    max(entries).write_bytes(b'{"add":{"path":5}}\n')
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [lake_tables], instance=instance, resources={"recorder": recorder}, raise_on_error=False
        )
        event = instance.get_latest_materialization_event(lake_tables.key)
    assert not result.success
    assert event is not None and event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    assert (metadata["failed_tables"].value, metadata["tables"].value) == (1, 3)


def test_the_command_maintains_the_lake(recorder: RecorderResource, monkeypatch: pytest.MonkeyPatch) -> None:
    seal_sessions(recorder.runtime, 3)
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + timedelta(days=2))
    arguments = ["retention", "run", "--data", recorder.data_dir or "", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lake = {row["kind"]: row for row in orjson.loads(result.stdout)["lake"]}
    assert lake["events"]["files_before"] == 3 and lake["events"]["files_after"] == 1
    assert lake["events"]["deleted_files"] == 3 and lake["events"]["deleted_bytes"] > 0


def test_a_schedule_starts_it_daily() -> None:
    [schedule] = [item for item in defs.schedules or [] if item.name == "daily_lake_maintenance"]
    assert isinstance(schedule, dg.ScheduleDefinition) and schedule.job_name == "maintain_lake"
