"""Runs of datasets from Dagster's pages that are terminated, and run again. Spec §4.3."""

import os
import signal
from typing import Any

import dagster as dg
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

from pipelines.configured_export import DATASET_TAG
from pipelines.dataset_checks import EXPORT_TAG
from tests.support.dagster_deployment import Deployment
from tests.support.statements import before_each_statement

CONFIG = {"workspace": "acme", "workflow": ["checkout"]}


def terminate_while_writing(deployment: Deployment, *, is_cancelled: bool = True) -> dg.DagsterRun:
    """Start a run from Dagster's pages that is terminated once its files are planned, or orphaned."""
    is_sent = False

    def terminate(statement: str) -> None:
        nonlocal is_sent
        if "export_shards" in statement and not is_sent:
            is_sent = True
            if is_cancelled:
                deployment.instance.report_run_canceling(deployment.instance.get_runs()[0])
            os.kill(os.getpid(), signal.SIGINT)

    with before_each_statement(terminate), pytest.raises(DagsterExecutionInterruptedError):
        deployment.materialize("checkout", CONFIG)
    return deployment.instance.get_runs()[0]


def run_again(
    deployment: Deployment, run: dg.DagsterRun, config: dict[str, Any]
) -> dg.ExecuteInProcessResult:
    """Execute a run again as Dagster's pages do it: with its tags."""
    tags = {**run.tags, "dagster/parent_run_id": run.run_id, "dagster/root_run_id": run.run_id}
    return deployment.materialize("checkout", config, tags=tags)


def read_statuses(deployment: Deployment) -> list[tuple[str, str | None]]:
    """Return the statuses and error codes of the exports, the newest first."""
    return [(row.status, (row.error or {}).get("code")) for row in deployment.exports()]


def test_a_run_from_the_pages_carries_the_tags_of_its_export(deployment: Deployment) -> None:
    result = deployment.materialize("checkout", CONFIG)
    (row,) = deployment.exports()
    run = deployment.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert (run.tags[EXPORT_TAG], run.tags[DATASET_TAG]) == (row.id, "checkout")


def test_the_export_of_a_terminated_run_is_cancelled(deployment: Deployment) -> None:
    run = terminate_while_writing(deployment)
    assert run.status == dg.DagsterRunStatus.CANCELED
    assert deployment.tick() == []
    assert read_statuses(deployment) == [("failed", "cancelled")]


def test_a_run_again_continues_the_unfinished_export(deployment: Deployment) -> None:
    run = terminate_while_writing(deployment, is_cancelled=False)
    again = run_again(deployment, run, CONFIG)
    (row,) = deployment.exports()
    assert (row.status, row.rows, row.attempt) == ("completed", 6, 2)
    assert [check.metadata["export_id"].value for check in again.get_asset_check_evaluations()] == [
        row.id
    ] * 2
    assert deployment.tick() == []


def test_a_run_again_after_its_export_was_cancelled_makes_another_one(deployment: Deployment) -> None:
    run = terminate_while_writing(deployment)
    deployment.tick()
    again = run_again(deployment, run, CONFIG)
    newest = deployment.exports()[0]
    assert read_statuses(deployment) == [("completed", None), ("failed", "cancelled")]
    # The run had the tag of the cancelled export.
    checked = [check.metadata["export_id"].value for check in again.get_asset_check_evaluations()]
    assert checked == [newest.id] * 2


def test_a_run_again_with_another_configuration_makes_an_export_of_its_own(deployment: Deployment) -> None:
    run = terminate_while_writing(deployment, is_cancelled=False)
    run_again(deployment, run, CONFIG | {"format": "jsonl"})
    assert [row.format for row in deployment.exports()] == ["jsonl", "parquet"]
