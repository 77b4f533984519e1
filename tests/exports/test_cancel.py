"""Calling an export off: at once for whoever asks, within a shard for the run. Contract §5."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlmodel import select

from recorder.audit.log import Origin
from recorder.errors import InvalidState
from recorder.exports.executor import InProcess
from recorder.exports.runner.export_lease import list_due_exports
from recorder.exports.runner.finalize import cancel_tenant_export, fail_export_of_cancelled_run
from recorder.exports.runner.run import run_export
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.models.export import ExportRow
from recorder.models.operations import AuditRow, OutboxRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.export_runs import ask, folder_of, quota_of
from tests.support.sealed_sessions import WORKSPACE, Recording, seal


@pytest.fixture
def runtime(on_either_engine: Runtime, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """Return a deployment on either engine, with small shards."""
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 4_000)
    return on_either_engine


@dataclass
class Interrupted:
    """An executor that does something before the shard of this number is written."""

    act: Callable[[], object]
    before: int
    written: int = 0

    def run(self, tasks: Sequence[ShardTask]) -> Iterator[WrittenShard]:
        for shard in InProcess().run(tasks):
            if self.written == self.before:
                self.act()
            self.written += 1
            yield shard


class Killed(BaseException):
    """Error that ends a run at once."""


def call_off(runtime: Runtime, row: ExportRow) -> ExportRow:
    """Cancel the export as the route does."""
    with runtime.database.transaction(write=True) as db:
        origin = Origin.operator(WORKSPACE)
        return cancel_tenant_export(db, runtime.settings, Tenant(WORKSPACE, "live"), row.id, origin=origin)


def told(runtime: Runtime, row: ExportRow) -> tuple[list[str], int]:
    """Return the events of an export, and how often its end was recorded."""
    with runtime.database.transaction(write=False) as db:
        events = db.exec(select(OutboxRow).where(OutboxRow.subject_id == row.id).order_by(OutboxRow.id)).all()
        entries = db.exec(
            select(AuditRow).where(AuditRow.resource_id == row.id, AuditRow.action == "export.cancel")
        ).all()
    return [event.type for event in events], len(entries)


def files_of(runtime: Runtime, row: ExportRow) -> list[Path]:
    """Return all files in an export's folder."""
    return [path for path in folder_of(runtime, row).rglob("*") if path.is_file()]


def test_a_queued_export_ends_at_once_and_only_once(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    shown = [call_off(runtime, row) for _ in range(2)]
    assert [(item.status, item.error and item.error["code"]) for item in shown] == [
        ("failed", "cancelled")
    ] * 2
    assert shown[0].completed_at == shown[1].completed_at
    assert told(runtime, row) == (["export.queued", "export.failed"], 1)
    assert run_export(runtime, row.id, owner="late").status == "failed"
    with runtime.database.transaction(write=False) as db:
        assert list_due_exports(db, limit=9) == []


def test_a_running_export_stops_within_a_shard_and_leaves_nothing(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0]) for _ in range(20)])
    row = ask(runtime)
    executor = Interrupted(lambda: call_off(runtime, row), before=2)
    ended = run_export(runtime, row.id, owner="test", executor=executor)
    assert executor.written == 3
    assert (ended.status, ended.error and ended.error["code"]) == ("failed", "cancelled")
    assert files_of(runtime, row) == []
    assert quota_of(runtime) == (0, 0)
    assert told(runtime, row) == (["export.queued", "export.failed"], 1)


def test_what_a_killed_run_wrote_is_taken_away_by_the_next(runtime: Runtime) -> None:
    def _die() -> None:
        raise Killed

    seal(runtime, [Recording(frames=[0]) for _ in range(20)])
    row = ask(runtime)
    with pytest.raises(Killed):
        run_export(runtime, row.id, owner="first", executor=Interrupted(_die, before=2))
    assert call_off(runtime, row).status == "failed"
    assert quota_of(runtime) == (0, 0)
    assert files_of(runtime, row) != []
    with runtime.database.transaction(write=False) as db:
        assert [due_export.id for due_export in list_due_exports(db, limit=9)] == [row.id]
    assert len(list(runtime.blobs.keys("exports"))) == 1
    assert run_export(runtime, row.id, owner="second").status == "failed"
    assert files_of(runtime, row) == []
    assert list(runtime.blobs.keys("exports")) == []  # the stored plan
    with runtime.database.transaction(write=False) as db:
        assert list_due_exports(db, limit=9) == []
    assert told(runtime, row) == (["export.queued", "export.failed"], 1)


def test_an_export_that_ended_cannot_be_called_off(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    run_export(runtime, row.id, owner="test")
    with pytest.raises(InvalidState):
        call_off(runtime, row)
    fail_export_of_cancelled_run(runtime, row.id, owner="test")
    assert told(runtime, row) == (["export.queued", "export.completed"], 0)
