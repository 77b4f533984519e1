"""Ends of partitions of the `datasets` asset, through a real Dagster instance. Spec §4.3."""

import dagster as dg
import pytest
from sqlmodel import select

from pipelines import dataset_partitions
from pipelines.dagster_record_job import dagster_records
from pipelines.dataset_partitions import (
    PARTITIONS,
    register_dataset_partition,
    remove_ended_dataset_partitions,
)
from recorder import clock
from recorder.models.export import ExportRow
from tests.support.dagster_deployment import Deployment

CONFIG = {"workspace": "acme", "workflow": ["checkout"]}


def list_partitions(deployment: Deployment) -> set[str]:
    return set(deployment.instance.get_dynamic_partitions(PARTITIONS.name))


def remove(deployment: Deployment) -> int:
    database = deployment.runtime.database
    return remove_ended_dataset_partitions(deployment.instance, database, longest_s=60.0)


def expire(deployment: Deployment, dataset: str) -> None:
    """Let the files of the exports of a dataset be deleted."""
    with deployment.runtime.database.transaction(write=True) as db:
        for row in db.exec(select(ExportRow).where(ExportRow.dataset == dataset)):
            row.expired_at = clock.now()
            db.add(row)


def test_only_partitions_of_datasets_without_a_kept_export_are_removed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("made", "gone"):
        deployment.materialize(name, CONFIG)
    expire(deployment, "gone")
    deployment.queue(tag="queued")
    never = [f"never {number}" for number in range(5)]
    deployment.instance.add_dynamic_partitions(PARTITIONS.name, [*never, "queued"])
    deployment.instance.add_dynamic_partitions("workflows", ["another kind"])
    monkeypatch.setattr(dataset_partitions, "CHUNK", 2)
    assert remove(deployment) == 6
    assert list_partitions(deployment) == {"made", "queued"}
    assert remove(deployment) == 0
    assert deployment.instance.get_dynamic_partitions("workflows") == ["another kind"]


def test_the_next_export_of_a_dataset_registers_its_partition_again(deployment: Deployment) -> None:
    deployment.materialize("again", CONFIG)
    expire(deployment, "again")
    assert remove(deployment) == 1 and list_partitions(deployment) == set()
    deployment.queue(tag="again")
    (request,) = deployment.tick()
    assert list_partitions(deployment) == {"again"}
    assert deployment.run(request).success
    assert remove(deployment) == 0 and list_partitions(deployment) == {"again"}


def test_a_partition_that_is_registered_between_check_and_removal_stays(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.instance.add_dynamic_partitions(PARTITIONS.name, ["late", "gone"])
    delete_partition = deployment.instance.delete_dynamic_partition

    def export_and_delete(definition: str, key: str) -> None:
        if key == "late":
            deployment.queue(tag="late")
            register_dataset_partition(deployment.instance, "late")
        delete_partition(definition, key)

    monkeypatch.setattr(deployment.instance, "delete_dynamic_partition", export_and_delete)
    assert remove(deployment) == 1
    assert list_partitions(deployment) == {"late"}


def test_a_removal_without_time_leaves_the_rest_to_the_next_day(deployment: Deployment) -> None:
    deployment.instance.add_dynamic_partitions(PARTITIONS.name, ["gone"])
    database = deployment.runtime.database
    assert remove_ended_dataset_partitions(deployment.instance, database, longest_s=-1.0) == 0
    assert list_partitions(deployment) == {"gone"}


def test_the_daily_job_removes_partitions_and_shows_how_many(deployment: Deployment) -> None:
    deployment.instance.add_dynamic_partitions(PARTITIONS.name, ["gone", "gone too"])
    done = dg.materialize(
        [dagster_records], instance=deployment.instance, resources={"recorder": deployment.recorder}
    )
    (event,) = done.asset_materializations_for_node("dagster_records")
    assert event.metadata["partitions"].value == 2 and list_partitions(deployment) == set()
