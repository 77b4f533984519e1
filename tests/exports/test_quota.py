"""Exported rows: held at the plan, counted at completion, given back on failure. Spec §8.2, contract §7."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from recorder import clock
from recorder.access.quota import read_quota, reserve_quota_rows
from recorder.access.rate_tiers import TIERS
from recorder.errors import QuotaExceeded, RecorderError
from recorder.exports.runner.finalize import end_export_as_failed, fail_export_of_cancelled_run
from recorder.exports.runner.run import run_export
from recorder.models.export import ExportRow, ExportShardRow
from recorder.models.operations import OutboxRow
from recorder.models.workspace import Quota, UsageRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.export_runs import ask
from tests.support.sealed_sessions import WORKSPACE, Recording, delete, open_on_either_engine, seal
from tests.support.statements import before_each_statement

#: Each recording has three events; the tier lets ten rows out.
TEN_ROWS = replace(TIERS["trial"], name="ten_rows", exported_rows=10)


@pytest.fixture(params=["sqlite", "postgresql"])
def runtime(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    """Yield a deployment whose workspace may export ten rows a month."""
    monkeypatch.setitem(TIERS, TEN_ROWS.name, TEN_ROWS)
    yield from open_on_either_engine(request, tmp_path, tier=TEN_ROWS.name)


@dataclass
class Failing:
    """An executor that writes nothing."""

    error: BaseException

    def run(self, tasks: Any) -> Iterator[Any]:
        raise self.error
        yield


def quota(runtime: Runtime) -> Quota:
    with runtime.database.transaction(write=False) as db:
        return read_quota(db, Tenant(WORKSPACE, "live"))


def held(runtime: Runtime) -> int:
    with runtime.database.transaction(write=False) as db:
        return sum(db.exec(select(UsageRow.reserved_rows)))


def notices(runtime: Runtime) -> list[tuple[str, int]]:
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(OutboxRow).where(OutboxRow.subject_id == WORKSPACE).order_by(OutboxRow.id))
        return [(row.type, row.data["used"]) for row in rows if row.data["metric"] == "exported_rows"]


def run(runtime: Runtime, **body: Any) -> ExportRow:
    return run_export(runtime, ask(runtime, **body).id, owner="test")


def test_rows_are_counted_when_an_export_completes(runtime: Runtime) -> None:
    seal(runtime, [Recording(), Recording()])
    row = ask(runtime)
    assert quota(runtime).exported_rows == 0
    run_export(runtime, row.id, owner="test")
    run_export(runtime, row.id, owner="again")
    assert (quota(runtime).exported_rows, held(runtime)) == (6, 0)


def test_a_plan_with_more_rows_than_are_left_fails_before_any_shard(runtime: Runtime) -> None:
    seal(runtime, [Recording(), Recording()])
    run(runtime)
    blobs = sorted(runtime.blobs.keys("exports"))
    row = run(runtime)
    assert (row.status, row.error and row.error["code"]) == ("failed", "quota_exceeded")
    assert row.error and "6 are needed, 4 are left" in row.error["message"]
    with runtime.database.transaction(write=False) as db:
        assert db.exec(select(ExportShardRow).where(ExportShardRow.export_id == row.id)).all() == []
    assert sorted(runtime.blobs.keys("exports")) == blobs
    assert (quota(runtime).exported_rows, held(runtime)) == (6, 0)


def test_a_plan_locks_the_usage_last(runtime: Runtime) -> None:
    # The ingest writer waits for that row, with batches of all workspaces. Rows of many shards take seconds.
    seal(runtime, [Recording(), Recording(workflow="other")])
    statements: list[str] = []
    with before_each_statement(statements.append):
        row = run(runtime, workflow=["checkout", "other"])
    assert (row.status, row.shards_total) == ("completed", 2)
    shards = [
        n for n, statement in enumerate(statements) if statement.startswith("INSERT INTO export_shards")
    ]
    usage = [n for n, statement in enumerate(statements) if statement.startswith("INSERT INTO usage")]
    assert shards and usage and shards[-1] < usage[0]


def test_a_smaller_plan_takes_what_is_left_and_the_end_is_told_once(runtime: Runtime) -> None:
    seal(runtime, [Recording(workflow="large"), Recording(workflow="small", events=[(0, "click")])])
    for workflow in ("large",) * 3:
        assert run(runtime, workflow=workflow).status == "completed"
    assert notices(runtime) == [("quota.warning", 9)]
    assert run(runtime, workflow="small").status == "completed"
    assert notices(runtime) == [("quota.warning", 9), ("quota.exhausted", 10)]


def test_with_nothing_left_nobody_may_ask(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    with runtime.database.transaction(write=True) as db:
        reserve_quota_rows(db, Tenant(WORKSPACE, "live"), 10)
    with pytest.raises(QuotaExceeded):
        ask(runtime)


@pytest.mark.parametrize("error", [RecorderError("no"), ValueError("no")], ids=["ours", "unforeseen"])
def test_a_failed_export_gives_its_rows_back(runtime: Runtime, error: Exception) -> None:
    seal(runtime, [Recording(), Recording(), Recording()])
    row = ask(runtime)
    try:
        run_export(runtime, row.id, owner="test", executor=Failing(error))
    except ValueError:
        assert not isinstance(error, RecorderError)
    assert (quota(runtime).exported_rows, held(runtime)) == (0, 0)
    assert run(runtime).status == "completed"


class Killed(BaseException):
    """Error that ends a run at once."""


def test_a_run_that_was_cut_off_holds_its_rows_for_the_next(runtime: Runtime) -> None:
    seal(runtime, [Recording(), Recording()])
    row = ask(runtime)
    for attempt in range(2):
        with pytest.raises(Killed):
            run_export(runtime, row.id, owner=f"run {attempt}", executor=Failing(Killed()))
        assert held(runtime) == 6
    assert run(runtime).status == "failed"
    assert run_export(runtime, row.id, owner="last").status == "completed"
    assert (quota(runtime).exported_rows, held(runtime)) == (6, 0)


def test_a_cancelled_export_gives_its_rows_back(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    with pytest.raises(Killed):
        run_export(runtime, row.id, owner="run", executor=Failing(Killed()))
    fail_export_of_cancelled_run(runtime, row.id, owner="operator")
    assert (quota(runtime).exported_rows, held(runtime)) == (0, 0)


def test_a_session_deleted_meanwhile_is_not_counted(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(), Recording()])
    row = ask(runtime)
    with pytest.raises(Killed):
        run_export(runtime, row.id, owner="run", executor=Failing(Killed()))
    delete(runtime, ids[0])
    done = run_export(runtime, row.id, owner="next")
    assert (done.rows, quota(runtime).exported_rows, held(runtime)) == (3, 3, 0)


def test_an_export_counts_in_the_month_of_its_plan(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    with pytest.raises(Killed):
        run_export(runtime, row.id, owner="run", executor=Failing(Killed()))
    planned_in = clock.now()
    later = datetime(planned_in.year + 1, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(clock, "now", lambda: later)
    monkeypatch.setattr(clock, "now_ms", lambda: clock.to_ms(later))
    run_export(runtime, row.id, owner="next")
    with runtime.database.transaction(write=False) as db:
        usage = {item.period: (item.exported_rows, item.reserved_rows) for item in db.exec(select(UsageRow))}
    assert usage == {planned_in.strftime("%Y-%m"): (3, 0)}
    assert quota(runtime).exported_rows == 0


@pytest.mark.parametrize(("kind", "rows"), [("s3", 7), ("local", 0), ("signed_url", 0)])
def test_rows_that_a_client_may_have_read_are_counted_once(runtime: Runtime, kind: str, rows: int) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    shards = [("events", 3, True), ("events", 4, True), ("events", 9, False), ("frames", 5, True)]
    with runtime.database.transaction(write=True) as db:
        for number, (name, count, is_done) in enumerate(shards):
            db.add(
                ExportShardRow(
                    export_id=row.id,
                    path=f"data/{number}",
                    kind=name,
                    workflow="checkout",
                    bucket=number,
                    content_key="",
                    rows=count,
                    sessions=1,
                    is_done=is_done,
                )
            )
        db.flush()
        row.destination = {"kind": kind}
        row.reserved_period, row.reserved_rows = reserve_quota_rows(db, row.tenant, 9), 9
        end_export_as_failed(db, row, runtime.settings, "files_missing", "The files are missing.")
    assert (quota(runtime).exported_rows, held(runtime)) == (rows, 0)


def test_test_mode_exports_are_free(runtime: Runtime) -> None:
    seal(runtime, [Recording() for _ in range(5)], mode="test")
    row = run_export(runtime, ask(runtime, mode="test").id, owner="test")
    assert (row.status, row.rows) == ("completed", 15)
    with runtime.database.transaction(write=False) as db:
        assert db.exec(select(UsageRow)).all() == []
