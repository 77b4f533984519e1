"""Datasets that keep their partition in Dagster, on both engines. Spec §4.3."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from recorder import clock, limits
from recorder.exports.results.kept_datasets import KeptDatasets
from recorder.ids import new_id
from recorder.models.export import ExportRow, RecipeRow
from recorder.runtime import Runtime
from tests.support.query_plans import noted_statements, plan_of

_NAMES = ("files", "expired", "failed", "queued", "running", "nightly", "other", "unheard of")


def add_export(runtime: Runtime, dataset: str, status: str, **values: Any) -> None:
    """Store an export of a dataset."""
    columns = {
        "workspace_id": "wsp_a",
        "mode": "live",
        "format": "parquet",
        "spec": {},
        "destination": {"kind": "s3"},
        "completed_at": clock.now() if status in ("completed", "failed") else None,
        "created_at": clock.now(),
    }
    with runtime.database.transaction(write=True) as db:
        db.add(ExportRow(id=new_id("exp"), dataset=dataset, status=status, **(columns | values)))


@pytest.fixture
def runtime(on_either_engine: Runtime) -> Runtime:
    """Return a deployment with exports in every state, and a recipe without one."""
    add_export(on_either_engine, "queued", "queued")
    add_export(on_either_engine, "running", "running")
    add_export(on_either_engine, "expired", "completed", expired_at=clock.now())
    add_export(on_either_engine, "other", "completed", workspace_id="wsp_b")
    add_export(on_either_engine, "files", "completed")
    add_export(on_either_engine, "failed", "failed")
    add_export(on_either_engine, "failed", "completed", expired_at=clock.now())
    now = clock.now()
    with on_either_engine.database.transaction(write=True) as db:
        db.add(
            RecipeRow(
                workspace_id="wsp_a",
                mode="live",
                name="nightly",
                body={},
                cron="0 0 * * *",
                timezone="UTC",
                next_at=now,
                created_at=now,
            )
        )
    return on_either_engine


def select_kept(runtime: Runtime) -> set[str]:
    with runtime.database.transaction(write=False) as db:
        return KeptDatasets().select_kept(db, _NAMES)


def test_a_dataset_is_kept_while_it_has_a_recipe_files_or_an_open_export(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"files", "failed", "queued", "running", "nightly", "other"}
    assert select_kept(runtime) == kept
    later: datetime = clock.now() + timedelta(days=limits.DAGSTER_DAYS, seconds=1)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert select_kept(runtime) == kept - {"failed"}


def test_of_a_workspace_and_mode_the_newest_exports_count_and_those_that_are_open(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DATASET_EXPORTS", 2)
    assert select_kept(runtime) == {"failed", "queued", "running", "nightly", "other"}
    # Another mode has as many of its own.
    add_export(runtime, "files", "completed", mode="test")
    assert select_kept(runtime) == {"files", "failed", "queued", "running", "nightly", "other"}


def test_datasets_are_found_by_an_index(runtime: Runtime) -> None:
    with noted_statements() as noted:
        select_kept(runtime)
    plans = [plan_of(runtime.database, *each) for each in noted if "FROM exports" in each[0]]
    assert "ix_exports_dataset" in plans[0]
    assert plans[1:] and all("ix_exports_list" in plan for plan in plans[1:])
