"""Checks of datasets, by their runs and by hand; files that are spoiled, lost or expired. Spec §4.3."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipelines.dataset_checks import check_dataset_against_lake, check_dataset_files, dataset_checks
from pipelines.exports import datasets
from recorder import clock
from recorder.exports.verify.manifest_check import ANOTHER_MANIFEST
from recorder.governance.retention import run_retention
from recorder.models.export import ExportRow
from tests.support.dagster_deployment import Deployment


def test_the_files_are_checked_against_their_manifest(deployment: Deployment) -> None:
    result = deployment.materialize("checkout", {"workspace": "acme", "workflow": ["checkout"]})
    files, lake = result.get_asset_check_evaluations()
    assert (files.check_name, files.passed) == ("files_match_manifest", True)
    assert files.metadata["counted"].value == "6 rows and 2 frames in 2 files"
    # Dagster plots numbers, which would join those of different datasets.
    numbers = (dg.IntMetadataValue, dg.FloatMetadataValue)
    assert not [
        value for check in (files, lake) for value in check.metadata.values() if isinstance(value, numbers)
    ]
    assert (lake.check_name, lake.passed, lake.metadata["rows"].value) == (
        "rows_match_lake",
        True,
        {"checkout": 6},
    )
    assert str(lake.metadata["hashed"].value).startswith(
        "8 rows of 2 sessions, in 2 of 2 files, drawn with the seed"
    )


def test_a_spoiled_file_fails_the_check(deployment: Deployment) -> None:
    row = deployment.queue()
    (request,) = deployment.tick()
    deployment.run(request)
    folder = Path(deployment.runtime.settings.export_url) / deployment.workspace_id / row.id
    next(folder.rglob("*.parquet")).write_bytes(b"spoiled")
    files, lake = deployment.run(request).get_asset_check_evaluations()
    assert (files.passed, lake.passed) == (False, False)
    assert "another SHA-256" in str(files.metadata["problems"].value)
    assert "another SHA-256" in str(files.description)
    assert "cannot be read" in str(lake.metadata["problems"].value)
    (folder / "manifest.json").write_bytes(b"{}")
    with deployment.runtime.database.transaction(write=False) as db:
        again = db.get_one(ExportRow, row.id)
    for check in (
        check_dataset_files(again, deployment.runtime.settings),
        check_dataset_against_lake(deployment.runtime, again),
    ):
        assert (check.passed, ANOTHER_MANIFEST in str(check.metadata["problems"].value)) == (False, True)


def rerun_checks(deployment: Deployment, **config: Any) -> list[dg.AssetCheckEvaluation]:
    """Run the checks alone, as the button on Dagster's page does; return their results."""
    result = dg.materialize(
        [datasets, dataset_checks],
        selection=dg.AssetSelection.checks(dataset_checks),
        instance=deployment.instance,
        resources={"recorder": deployment.recorder},
        run_config={"ops": {"dataset_checks": {"config": config}}},
    )
    assert result.success
    return result.get_asset_check_evaluations()


def expire_files_of_an_export(deployment: Deployment) -> ExportRow:
    """Delete the files of a completed export of `login` by retention; return the export."""
    row = deployment.queue(workflow="login")
    (request,) = deployment.tick()
    deployment.run(request)
    later = clock.now() + timedelta(days=31)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: later)
        patch.setattr(clock, "now_ms", lambda: clock.to_ms(later))
        run_retention(deployment.runtime, "retention")
    assert deployment.exports()[0].expired_at is not None
    return row


def test_the_checks_run_again_by_hand_look_at_the_newest_export_of_each_dataset(
    deployment: Deployment,
) -> None:
    config = {"workspace": "acme", "workflow": ["checkout"]}
    for partition in ("old", "new", "new"):
        deployment.materialize(partition, config)
    newest, before, old = deployment.exports()
    for files in rerun_checks(deployment):
        assert files.passed
        shown = [record.data for record in files.metadata["checked"].value.records]
        assert [(item["dataset"], item["export_id"]) for item in shown] == [
            ("new", newest.id),
            ("old", old.id),
        ]
    folder = Path(deployment.runtime.settings.export_url) / deployment.workspace_id / old.id
    next(folder.rglob("*.parquet")).write_bytes(b"spoiled")
    files, lake = rerun_checks(deployment)
    assert (files.passed, lake.passed) == (False, False)
    assert f"old, {old.id}: " in str(files.metadata["problems"].value)
    assert all(check.passed for check in rerun_checks(deployment, datasets=1))
    (first, _) = rerun_checks(deployment, export_id=before.id)
    assert (first.passed, first.metadata["export_id"].value) == (True, before.id)


def test_a_partition_is_checked_by_its_own_export_though_another_dataset_has_a_newer_one(
    deployment: Deployment,
) -> None:
    row = deployment.queue()
    (request,) = deployment.tick()
    deployment.run(request)
    deployment.materialize("new", {"workspace": "acme", "workflow": ["checkout"]})
    again = dg.materialize(
        [datasets, dataset_checks],
        selection=dg.AssetSelection.checks(dataset_checks),
        tags={"dagster/partition": str(request.partition_key)},
        instance=deployment.instance,
        resources={"recorder": deployment.recorder},
    )
    assert [check.metadata["export_id"].value for check in again.get_asset_check_evaluations()] == [
        row.id
    ] * 2


def test_checks_without_any_dataset_pass(deployment: Deployment) -> None:
    assert [check.passed for check in rerun_checks(deployment)] == [True, True]


def test_a_dataset_without_manifest_fails_its_checks_and_others_are_checked(deployment: Deployment) -> None:
    config = {"workspace": "acme", "workflow": ["checkout"]}
    for partition in ("lost", "kept"):
        deployment.materialize(partition, config)
    kept, lost = deployment.exports()
    shutil.rmtree(Path(deployment.runtime.settings.export_url) / deployment.workspace_id / lost.id)
    for check in rerun_checks(deployment):
        assert not check.passed
        assert {
            record.data["export_id"]: record.data["result"]
            for record in check.metadata["checked"].value.records
        } == {
            kept.id: "passed",
            lost.id: "failed",
        }
        assert f"lost, {lost.id}: The check ended with an error: " in str(check.metadata["problems"].value)
    for check in rerun_checks(deployment, export_id=lost.id):
        assert (check.passed, check.metadata["export_id"].value) == (False, lost.id)
        assert check.metadata["dataset"].value == "lost"


def test_an_export_whose_files_expired_is_not_checked(deployment: Deployment) -> None:
    expired = expire_files_of_an_export(deployment)
    deployment.materialize("kept", {"workspace": "acme", "workflow": ["checkout"]})
    (kept, _) = deployment.exports()
    for check in rerun_checks(deployment):
        assert (check.passed, check.metadata["export_id"].value) == (True, kept.id)
    with pytest.raises(dg.Failure, match="deleted after their 30 days"):
        rerun_checks(deployment, export_id=expired.id)
    with pytest.raises(dg.Failure, match="No export exp_unknown is completed"):
        rerun_checks(deployment, export_id="exp_unknown")


def test_a_run_again_of_an_export_whose_files_expired_says_so(deployment: Deployment) -> None:
    expired = expire_files_of_an_export(deployment)
    config = {"workspace": "acme", "workflow": ["login"], "export_id": expired.id}
    with pytest.raises(dg.Failure, match="deleted after their 30 days"):
        deployment.materialize("login", config)
