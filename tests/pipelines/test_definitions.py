"""Definitions that Dagster loads: every name is part of the interface, since people configure it."""

from pathlib import Path

import dagster as dg
import pytest

from pipelines.definitions import defs
from tests.support.sealed_sessions import make_runtime

NAMES = {
    "assets": {
        "dagster_records",
        "datasets",
        "drift_alarms",
        "expired_records",
        "lake_tables",
        "live_replays",
        "memory_graphs",
        "purged_sessions",
        "rebuilt_memory_graphs",
        "replays",
        "rewritten_tables",
        "sealed_sessions",
        "session_events",
        "session_frames",
    },
    "checks": {
        "datasets:files_match_manifest",
        "datasets:rows_match_lake",
        "memory_graphs:counters_equal_sessions",
        "memory_graphs:every_session_on_one_path",
        "memory_graphs:fractions_sum_to_one",
        "session_events:all_events_arrived",
        "session_frames:all_frames_arrived",
    },
    "jobs": {
        "check_arrivals",
        "check_memory_graphs",
        "drift",
        "export_datasets",
        "maintain_lake",
        "purge_sessions",
        "rebuild_memory_graphs",
        "remove_dagster_records",
        "remove_expired",
        "replay_live",
        "replay_sessions",
        "rewrite_tables",
        "seal_stopped_sessions",
        "write_small_exports",
    },
    "sensors": {
        "open_purges",
        "orchestration_status",
        "queued_exports",
        "queued_live_replays",
        "queued_replays",
        "scheduled_recipes",
        "stopped_sessions",
        "waiting_erasures",
    },
    "schedules": {
        "daily_arrivals",
        "daily_dagster_records",
        "daily_graph_check",
        "daily_lake_maintenance",
        "daily_retention",
        "hourly_drift",
        "nightly_rebuild",
    },
}


def test_the_names_are_these() -> None:
    graph = defs.resolve_asset_graph()
    values = {
        "assets": {key.to_user_string() for key in graph.get_all_asset_keys()},
        "checks": {f"{key.asset_key.to_user_string()}:{key.name}" for key in graph.asset_check_keys},
        "jobs": {job.name for job in defs.jobs or []},
        "sensors": {sensor.name for sensor in defs.sensors or []},
        "schedules": {schedule.name for schedule in defs.schedules or []},
    }
    assert values == NAMES


def test_everything_loads() -> None:
    dg.Definitions.validate_loadable(defs)


def test_sensors_and_schedules_run_without_being_switched_on() -> None:
    instigators = [*(defs.sensors or []), *(defs.schedules or [])]
    assert {item.default_status.value for item in instigators} == {"RUNNING"}  # type: ignore[union-attr]


def test_every_asset_says_what_a_row_of_it_is() -> None:
    specs = defs.resolve_all_asset_specs()
    assert [spec.key for spec in specs if not spec.description or not spec.group_name] == []


def test_every_sensor_and_schedule_says_what_it_does() -> None:
    instigators = [*(defs.sensors or []), *(defs.schedules or [])]
    assert [item.name for item in instigators if not item.description] == []  # type: ignore[union-attr]


def test_launch_forms_show_nothing_of_the_deployment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in defs.get_repository_def().job_names:
        members = defs.get_repository_def().get_job(name).run_config_schema.config_type.fields["resources"]
        assert members.default_value["recorder"] == {}, name
    make_runtime(tmp_path).close()
    monkeypatch.setenv("RECORDER_DATA_DIR", str(tmp_path))
    assert defs.resolve_job_def("remove_expired").execute_in_process().success
