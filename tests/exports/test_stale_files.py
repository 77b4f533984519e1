"""Files of deleted sessions whose removal fails once: the next run removes them. Spec §3.2."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recorder.audit.log import Origin
from recorder.errors import Unavailable
from recorder.exports.runner.finalize import cancel_tenant_export
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from recorder.tenant import Tenant
from tests.support.executors import Failing
from tests.support.export_runs import ask, folder_of
from tests.support.sealed_sessions import WORKSPACE, Recording, delete, make_runtime, seal

_STALE = "data/workflow=refund/events-00000-of-00001.parquet"


class Stopped(BaseException):
    """Error that Dagster raises in a cancelled run."""


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return make_runtime(tmp_path)


@pytest.fixture(params=["local", "hosted"])
def interrupted(runtime: Runtime, request: pytest.FixtureRequest) -> ExportRow:
    """Return an export whose only session of `refund` was deleted, and whose file could not be removed."""
    deleted = seal(runtime, [Recording(workflow="refund")])[0]
    seal(runtime, [Recording(), Recording(workflow="zeta")])
    destination = {"local": {"kind": "local", "path": "out"}, "hosted": {"kind": "signed_url"}}[request.param]
    row = ask(runtime, workflow=["checkout", "refund", "zeta"], destination=destination)
    with pytest.raises(Stopped):
        run_export(runtime, row.id, owner="test", executor=Failing(Stopped(), after=2))
    delete(runtime, deleted)
    with unremovable(folder_of(runtime, row) / _STALE), pytest.raises(Unavailable):
        run_export(runtime, row.id, owner="test")
    return row


@contextmanager
def unremovable(path: Path) -> Iterator[None]:
    """Put a folder in the place of a file during the block: removing the file fails."""
    aside = path.rename(path.with_suffix(".aside"))
    path.mkdir()
    yield
    path.rmdir()
    aside.rename(path)


def test_the_next_run_removes_a_file_that_could_not_be_removed(
    runtime: Runtime, interrupted: ExportRow
) -> None:
    done = run_export(runtime, interrupted.id, owner="test")
    folder = folder_of(runtime, done)
    assert (done.status, done.shards) == ("completed", 2)
    assert verify_manifest(folder).is_valid
    assert not (folder / _STALE).exists()


def cancel(runtime: Runtime, row: ExportRow) -> None:
    with runtime.database.transaction(write=True) as db:
        origin, tenant = Origin.operator(WORKSPACE), Tenant(WORKSPACE, "live")
        cancel_tenant_export(db, runtime.settings, tenant, row.id, origin=origin)


def test_a_cancel_removes_a_file_that_could_not_be_removed(runtime: Runtime, interrupted: ExportRow) -> None:
    cancel(runtime, interrupted)
    cancelled = run_export(runtime, interrupted.id, owner="test")
    assert not cancelled.files_left
    assert [path for path in folder_of(runtime, cancelled).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_no_plan_that_names_a_dropped_session_is_left(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    deleted, *_ = seal(runtime, [Recording(), Recording()])
    row = ask(runtime)
    with pytest.raises(Stopped):
        run_export(runtime, row.id, owner="test", executor=Failing(Stopped(), after=0))
    delete(runtime, deleted)

    def _end_run(*_: object) -> None:
        """Stop between storing the shorter plan and deleting the one before."""
        raise Stopped

    monkeypatch.setattr(Blobs, "delete", _end_run)
    with pytest.raises(Stopped):
        run_export(runtime, row.id, owner="test")
    monkeypatch.undo()
    if is_cancelled:
        cancel(runtime, row)
    ended = run_export(runtime, row.id, owner="test")
    plans = list(runtime.blobs.keys(f"exports/{WORKSPACE}/{row.id}/"))
    assert (ended.status, plans) == (("failed", []) if is_cancelled else ("completed", [ended.plan_key]))
