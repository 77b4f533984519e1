"""Memory of a small export's checks, which must not grow with the other sessions of its workflow."""

import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from sqlalchemy import insert

from recorder.exports.planning.selection import find_deleted_sessions
from recorder.exports.runner.run import run_export
from recorder.exports.verify.lake_check import compare_export_with_lake
from recorder.ids import new_id
from recorder.models.export import ExportRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.export_runs import ask
from tests.support.sealed_sessions import START, WORKSPACE, Recording, make_runtime, seal

_OTHERS = 5_000
_SINCE = "2026-04-30T00:00:00Z"


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return make_runtime(tmp_path)


@pytest.fixture
def small(runtime: Runtime) -> ExportRow:
    """Return a completed export of one session of a workflow that has many older ones."""
    session_id = seal(runtime, [Recording()])[0]
    long_ago = START - timedelta(days=300)
    with runtime.database.transaction(write=True) as db:
        recent = db.get_one(SessionRow, session_id).model_dump()
        older = recent | {"started_at": long_ago, "sealed_at": long_ago}
        db.execute(insert(SessionRow), [older | {"id": new_id("ses")} for _ in range(_OTHERS)])
    return run_export(runtime, ask(runtime, filter={"since": _SINCE}).id, owner="test")


def measure_peak(act: Callable[[], object]) -> int:
    """Return the most bytes that a function holds at once, when it is called a second time."""
    act()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_check_of_a_small_export_holds_no_other_sessions(runtime: Runtime, small: ExportRow) -> None:
    report = compare_export_with_lake(runtime, small)
    assert (report.problems, report.sessions) == ([], 1)
    assert measure_peak(lambda: compare_export_with_lake(runtime, small)) < _OTHERS * 400


def test_deleted_sessions_of_a_small_plan_are_found_by_id(runtime: Runtime, small: ExportRow) -> None:
    with runtime.database.transaction(write=False) as db:
        tenant, sessions = Tenant(WORKSPACE, "live"), pl.Series([new_id("ses")])

        def _find() -> list[str]:
            return find_deleted_sessions(db, tenant, ["checkout"], sessions).erased

        assert _find() == sessions.to_list()
        assert measure_peak(_find) < _OTHERS * 30
