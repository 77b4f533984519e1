"""Charges of exports that end early in a client's store: the shards that were finished. Contract §5."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlmodel import select

from recorder.audit.log import Origin
from recorder.errors import RecorderError
from recorder.exports.executor import InProcess
from recorder.exports.runner.finalize import cancel_tenant_export
from recorder.exports.runner.run import run_export
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.ids import new_id
from recorder.models.export import ExportRow, ExportShardRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.export_runs import ask, quota_of
from tests.support.object_stores import EmulatedS3
from tests.support.sealed_sessions import WORKSPACE, Recording, open_on_either_engine, seal

FINISHED = 5


@pytest.fixture(params=["sqlite", "postgresql"])
def runtime(
    request: pytest.FixtureRequest, tmp_path: Path, s3: EmulatedS3, many_buckets: None
) -> Iterator[Runtime]:
    """Yield a deployment on either engine that writes to S3, with small shards."""
    yield from open_on_either_engine(request, tmp_path, tier="default", **s3.chosen())


@dataclass
class Ending:
    """An executor that cancels the export, or raises an error, before the sixth shard is reported."""

    runtime: Runtime
    export_id: str
    error: BaseException | None

    def run(self, tasks: Sequence[ShardTask]) -> Generator[WrittenShard, None, None]:
        for number, shard in enumerate(InProcess().run(tasks)):
            if number == FINISHED:
                if self.error is not None:
                    raise self.error
                cancel_as_route(self.runtime, self.export_id)
            yield shard


def cancel_as_route(runtime: Runtime, export_id: str) -> None:
    with runtime.database.transaction(write=True) as db:
        tenant, origin = Tenant(WORKSPACE, "live"), Origin.operator(WORKSPACE)
        cancel_tenant_export(db, runtime.settings, tenant, export_id, origin=origin)


def finished_rows(runtime: Runtime, row: ExportRow) -> int:
    """Return the events in the shards that are stored as finished."""
    with runtime.database.transaction(write=False) as db:
        shards = db.exec(select(ExportShardRow).where(ExportShardRow.export_id == row.id)).all()
    assert sum(shard.is_done for shard in shards) == FINISHED < len(shards)
    return sum(shard.rows for shard in shards if shard.is_done and shard.kind == "events")


class Killed(BaseException):
    """Error that ends a run at once."""


@pytest.mark.parametrize("error", [None, RecorderError("no")], ids=["cancelled", "failed"])
def test_finished_shards_in_a_client_bucket_are_charged_once(
    runtime: Runtime, s3: EmulatedS3, error: BaseException | None
) -> None:
    seal(runtime, [Recording(frames=[0]) for _ in range(20)])
    prefix = new_id("req")
    row = ask(runtime, destination=s3.destination(prefix))
    ended = run_export(runtime, row.id, owner="first", executor=Ending(runtime, row.id, error))
    assert ended.status == "failed"
    charged = finished_rows(runtime, row)
    assert 0 < charged < 60
    assert quota_of(runtime) == (charged, 0)
    assert s3.objects(prefix) == {}
    run_export(runtime, row.id, owner="second")
    if error is None:
        cancel_as_route(runtime, row.id)
    assert quota_of(runtime) == (charged, 0)


def test_a_killed_run_is_charged_when_the_export_is_cancelled(runtime: Runtime, s3: EmulatedS3) -> None:
    seal(runtime, [Recording(frames=[0]) for _ in range(20)])
    row = ask(runtime, destination=s3.destination(new_id("req")))
    with pytest.raises(Killed):
        run_export(runtime, row.id, owner="first", executor=Ending(runtime, row.id, Killed()))
    assert quota_of(runtime) == (0, 60)
    cancel_as_route(runtime, row.id)
    charged = finished_rows(runtime, row)
    assert charged > 0 and quota_of(runtime) == (charged, 0)
    run_export(runtime, row.id, owner="second")
    assert quota_of(runtime) == (charged, 0)


@pytest.mark.parametrize("destination", [{"kind": "local", "path": "out"}, {"kind": "signed_url"}])
def test_finished_shards_in_our_own_place_are_free(runtime: Runtime, destination: dict[str, str]) -> None:
    seal(runtime, [Recording(frames=[0]) for _ in range(20)])
    row = ask(runtime, destination=destination)
    run_export(runtime, row.id, owner="first", executor=Ending(runtime, row.id, None))
    assert finished_rows(runtime, row) > 0
    assert quota_of(runtime) == (0, 0)
