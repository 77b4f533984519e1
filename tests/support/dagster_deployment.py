"""A deployment under Dagster: exports are queued, sensors tick, datasets are materialized."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from pipelines.dataset_checks import EXPORT_TAG, dataset_checks
from pipelines.dataset_config import make_dataset_config
from pipelines.dataset_partitions import PARTITIONS
from pipelines.export_queue import take_up_exports
from pipelines.exports import datasets, make_due_recipe_exports
from pipelines.resources import RecorderResource, close_shared_runtimes
from recorder.access.workspaces import create_workspace
from recorder.audit.log import Origin
from recorder.exports.requests.export_operations import create_export, list_exports
from recorder.models.export import ExportRow
from recorder.models.export_request import ExportCreate
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.sealed_sessions import Recording, make_runtime, seal

BODY = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}


@dataclass
class Deployment:
    """A data folder with one workspace, and a Dagster instance of its own."""

    recorder: RecorderResource
    runtime: Runtime
    workspace_id: str
    instance: dg.DagsterInstance

    def queue(self, **body: Any) -> ExportRow:
        request, origin = ExportCreate.model_validate(BODY | body), Origin.operator(self.workspace_id)
        return create_export(self.runtime, Tenant(self.workspace_id, "live"), request, origin=origin)

    def tick(self) -> list[dg.RunRequest]:
        """Return the requests of the sensor for runs of single exports."""
        result = take_up_exports(lambda: self.instance, self.recorder)
        if isinstance(result, dg.SkipReason):
            return []
        for request in result.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions(PARTITIONS.name, request.partition_keys)
        return [request for request in result.run_requests or [] if request.job_name == "export_datasets"]

    def follow_recipes(self) -> str:
        """Return the result of a tick of the sensor of recipes."""
        result = make_due_recipe_exports(lambda: self.instance, self.recorder, logging.getLogger("tests"))
        assert isinstance(result, dg.SensorResult) and not result.run_requests
        for request in result.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions(PARTITIONS.name, request.partition_keys)
        return str(getattr(result.skip_reason, "skip_message", result.skip_reason))

    def materialize(self, partition: str, config: dict[str, Any], **more: Any) -> dg.ExecuteInProcessResult:
        self.instance.add_dynamic_partitions(PARTITIONS.name, [partition])
        return dg.materialize(
            [datasets, dataset_checks],
            partition_key=partition,
            instance=self.instance,
            resources={"recorder": self.recorder},
            run_config={"ops": {"datasets": {"config": config}}},
            **more,
        )

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        assert request.partition_key is not None
        config = request.run_config["ops"]["datasets"]["config"]
        return self.materialize(request.partition_key, config, tags=dict(request.tags))

    def add_run(
        self, row: ExportRow, status: dg.DagsterRunStatus, tags: Mapping[str, str] | None = None
    ) -> dg.DagsterRun:
        """Return a record of a run of this export in this state."""
        job = dg.Definitions(
            [datasets], resources={"recorder": self.recorder}
        ).resolve_implicit_global_asset_job_def()
        config = {"ops": {"datasets": {"config": make_dataset_config(row)}}}
        # A queued run must say where its code is; there is no public way to make one.
        repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("recorder"), "__repository__")
        return self.instance.create_run_for_job(
            job,
            tags={EXPORT_TAG: row.id, **(tags or {})},
            status=status,
            run_config=config,
            remote_job_origin=repository.get_job_origin(job.name),
        )

    def exports(self) -> list[ExportRow]:
        with self.runtime.database.transaction(write=False) as db:
            rows, _ = list_exports(
                db, Tenant(self.workspace_id, "live"), workflows=(), status=None, before_id=None, limit=9
            )
        return rows


def another_workspace(deployment: Deployment, name: str) -> Deployment:
    """Return the same deployment, as a second workspace sees it."""
    runtime = deployment.runtime
    with runtime.database.transaction(write=True) as db:
        key = create_workspace(db, name, region="us", secret=runtime.settings.secret, tier="unlimited")
    seal(runtime, [Recording()], workspace_id=key.workspace_id)
    return Deployment(deployment.recorder, runtime, key.workspace_id, deployment.instance)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Yield a deployment whose workspace has sealed sessions of two workflows."""
    make_runtime(tmp_path).close()
    # No run writes small exports here: each gets a run of its own at once.
    recorder = RecorderResource(data_dir=str(tmp_path), small_export_patience_s=-1)
    runtime = recorder.runtime
    with runtime.database.transaction(write=True) as db:
        key = create_workspace(db, "acme", region="us", secret=runtime.settings.secret, tier="unlimited")
    recordings = [Recording(frames=[0, 600]), Recording(outcome=None), Recording(workflow="login")]
    seal(runtime, recordings, workspace_id=key.workspace_id)
    with dg.DagsterInstance.ephemeral() as instance:
        yield Deployment(recorder, runtime, key.workspace_id, instance)
    close_shared_runtimes()


def split_by_partition(
    materializations: Sequence[dg.AssetMaterialization],
) -> tuple[dg.AssetMaterialization, list[dg.AssetMaterialization]]:
    """Return the materialization of a whole run, and those of its partitions."""
    (whole,) = [event for event in materializations if event.partition is None]
    return whole, [event for event in materializations if event.partition is not None]
