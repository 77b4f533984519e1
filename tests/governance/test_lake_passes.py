"""One pass over the lake: tables apart from each other, pins of exports, and reads over HTTP in between."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from recorder import clock
from recorder.errors.panics import LibraryPanic, convert_panics
from recorder.governance.maintenance_pass import maintain_lake
from recorder.runtime import Runtime
from recorder.sealing import Sealer
from recorder.sealing.cleanup import clean_up_after_sealing, name_table_cleanup_lease
from recorder.storage.lake import Lake
from recorder.storage.lake_maintenance import LakeTimes
from recorder.storage.lake_reads import retry_lake_read
from recorder.storage.lake_schemas import LAYOUTS, LakeKind
from recorder.storage.leases import hold_lease
from recorder.tenant import Tenant
from tests.support.factories import Caller, event, frame
from tests.support.panics import make_panics
from tests.support.recorded_sessions import execute
from tests.support.sealing import seal_all


@pytest.fixture
def tenant(caller: Caller) -> Tenant:
    return Tenant(caller.key.workspace_id, "live")


@pytest.fixture
def sealer(caller: Caller) -> Iterator[Sealer]:
    """Yield the sealing run of this service."""
    run = Sealer(caller.service.runtime, owner="tests")
    assert run.take()
    yield run
    run.release()


#: Removed files go at once, and all days are over.
NO_GRACE = LakeTimes(removed_files=timedelta(seconds=-60), open_partitions=timedelta(days=-2))


@pytest.fixture
def hasty(caller: Caller) -> Runtime:
    """Return the service's deployment, whose lake keeps no old files for readers."""
    runtime = caller.service.runtime
    return replace(runtime, lake=Lake(runtime.lake.url, times=NO_GRACE))


def sealed_sessions(caller: Caller, count: int) -> list[str]:
    """Return sessions that were sealed one after the other, each in a file of its own."""
    ids = []
    for _ in range(count):
        session_id = caller.make_session(metadata={})
        caller.add_events(session_id, *(event(t_ms) for t_ms in range(0, 60, 2)))
        caller.add_frames(session_id, frame(1, 1), frame(5, 2))
        assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
        seal_all(caller.service.runtime)
        ids.append(session_id)
    return ids


def sweep(runtime: Runtime, sealer: Sealer) -> None:
    """Let the sessions have been sealed long ago, so that the lake alone serves them."""
    execute(runtime, "UPDATE sessions SET sealed_at = '2020-01-01' WHERE status = 'sealed'")
    sealer.maintain()


def table_folder(runtime: Runtime, tenant: Tenant, kind: Any = "events") -> Path:
    return Path(runtime.lake.stored_table(kind, tenant).path)


def count_files(runtime: Runtime, tenant: Tenant) -> int:
    return len(list(table_folder(runtime, tenant).glob("workflow=*/**/*.parquet")))


def test_a_broken_table_does_not_stop_the_others(caller: Caller, tenant: Tenant, hasty: Runtime) -> None:
    runtime = hasty
    sealed_sessions(caller, 3)
    broken = table_folder(runtime, tenant, "frames") / "_delta_log"
    broken.rename(broken.with_name("log_elsewhere"))
    broken.write_bytes(b"no folder")
    report = maintain_lake(runtime, "tests", workspace_id=tenant.workspace_id)
    assert set(report.failures) == {(tenant, "frames")}
    assert set(report.tables) == {(tenant, kind) for kind in LAYOUTS if kind != "frames"}
    assert report.tables[tenant, "events"].joined_files == 3
    rows = {row["kind"]: row for row in report.list_rows()}
    assert rows["frames"]["error"] and not rows["events"]["error"]
    broken.unlink()
    broken.with_name("log_elsewhere").rename(broken)
    again = maintain_lake(runtime, "tests", workspace_id=tenant.workspace_id)
    assert not again.failures and again.tables[tenant, "frames"].joined_files == 3
    assert again.tables[tenant, "events"].deleted.count == 3 and again.deleted_bytes > 0


def test_a_table_that_another_run_works_on_is_left(caller: Caller, tenant: Tenant) -> None:
    runtime = caller.service.runtime
    sealed_sessions(caller, 1)
    with runtime.database.transaction(write=True) as db:
        held = hold_lease(db, name_table_cleanup_lease("events", tenant), "sealer", ttl_ms=60_000)
    assert held is not None
    report = maintain_lake(runtime, "tests", workspace_id=tenant.workspace_id)
    assert report.busy == [(tenant, "events")] and len(report.tables) == len(LAYOUTS) - 1
    with runtime.database.transaction(write=True) as db:
        held.release(db)


def test_what_a_running_export_pins_stays(caller: Caller, tenant: Tenant, hasty: Runtime) -> None:
    runtime = hasty
    sealed_sessions(caller, 3)
    body = {"workflow": ["checkout"], "format": "parquet", "destination": {"kind": "signed_url"}}
    for _ in range(2):  # the second export begins after the pass that replaces files
        answer = caller.post("/v1/exports", body)
        assert answer.status_code == 202, answer.text
        execute(runtime, "UPDATE exports SET status = 'running' WHERE id = :id", id=answer.json()["id"])
        maintain_lake(runtime, "tests", workspace_id=tenant.workspace_id)
    maintain_lake(runtime, "tests", workspace_id=tenant.workspace_id)
    assert count_files(runtime, tenant) == 4
    execute(runtime, "UPDATE exports SET status = 'failed' WHERE workspace_id = :id", id=tenant.workspace_id)
    maintain_lake(runtime, "tests", workspace_id=tenant.workspace_id)
    assert count_files(runtime, tenant) == 1


def test_requests_are_answered_while_files_are_replaced(
    caller: Caller, tenant: Tenant, sealer: Sealer, hasty: Runtime
) -> None:
    runtime = hasty
    session_id = sealed_sessions(caller, 4)[0]
    sweep(runtime, sealer)
    paths = [
        f"/v1/sessions/{session_id}{rest}"
        for rest in ("/events?limit=7", "/frames", "?include=events,frames_summary", "/events?type=click")
    ]
    expected = [caller.get(path).content for path in paths]
    wrong: list[Any] = []
    answers = 0
    is_over = threading.Event()

    def read_all() -> None:
        nonlocal answers
        while not is_over.is_set() and not wrong:
            for path, body in zip(paths, expected, strict=True):
                answer = caller.get(path)
                answers += 1
                if answer.status_code != 200 or answer.content != body:
                    wrong.append((path, answer.status_code, answer.text))

    reader = threading.Thread(target=read_all)
    reader.start()
    deleted, began = 0, clock.now()
    number = 1_000
    while clock.now() - began < timedelta(seconds=5):
        deleted += replace_files(runtime, tenant, number)
        number += 1
    is_over.set()
    reader.join()
    assert not wrong, wrong[0]
    assert answers > len(paths) and deleted > 4


def read_first_row(runtime: Runtime, tenant: Tenant, kind: LakeKind) -> pl.DataFrame:
    return runtime.lake.scan(kind, tenant).head(1).collect()


def replace_files(runtime: Runtime, tenant: Tenant, number: int) -> int:
    """Add a file of another session, join it with the others, delete what was replaced; return its number."""
    kinds: tuple[LakeKind, ...] = ("events", "frames")
    for kind in kinds:
        first = retry_lake_read(partial(read_first_row, runtime, tenant, kind))
        copy = first.with_columns(session_id=pl.lit(f"ses_x{number}")).to_arrow()
        runtime.lake.append(kind, tenant, copy.cast(LAYOUTS[kind].schema), lane="tests", number=number)
    report = maintain_lake(runtime, "tests", workspace_id=tenant.workspace_id)
    return sum(table.deleted.count for table in report.tables.values())


def test_a_compaction_whose_lease_was_taken_stops_and_the_other_tables_go_on(
    caller: Caller, tenant: Tenant
) -> None:
    sealed_sessions(caller, 3)
    opened = caller.service.runtime

    class RobbedLake(Lake):
        """A lake whose table of events another run takes as its compaction begins."""

        def compact(self, kind: LakeKind, tenant: Tenant, **options: Any) -> int:
            if kind == "events":
                name = name_table_cleanup_lease(kind, tenant)
                execute(opened, "UPDATE leases SET expires_ms = 0 WHERE name = :name", name=name)
                with opened.database.transaction(write=True) as db:
                    assert hold_lease(db, name, "another run", ttl_ms=60_000)
            return super().compact(kind, tenant, **options)

    runtime = replace(opened, lake=RobbedLake(opened.lake.url, compact_at_files=2))
    done = clean_up_after_sealing(runtime, "tests", [tenant])
    assert done.compacted_files == 2 * 3


@pytest.mark.parametrize("error", [ValueError("a damaged entry of the log"), *make_panics()])
def test_a_damaged_table_stops_the_work_on_no_other_one(
    caller: Caller, tenant: Tenant, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed_sessions(caller, 3)
    opened, read = caller.service.runtime, DeltaTable.get_add_actions

    def fail_for_events(table: DeltaTable, **options: Any) -> Any:
        if table.table_uri.rstrip("/").endswith("/events"):
            raise error
        return read(table, **options)

    monkeypatch.setattr(DeltaTable, "get_add_actions", fail_for_events)
    runtime = replace(opened, lake=Lake(opened.lake.url, compact_at_files=2))
    assert clean_up_after_sealing(runtime, "tests", [tenant]).compacted_files == 2 * 3
    report = maintain_lake(runtime, "tests", workspace_id=tenant.workspace_id)
    assert list(report.failures) == [(tenant, "events")]
    assert report.tables.keys() == {(tenant, kind) for kind in LAYOUTS if kind != "events"}


@pytest.mark.parametrize("panic", make_panics())
def test_a_panic_over_a_file_of_the_lake_is_an_error(panic: BaseException) -> None:
    def fail() -> None:
        raise panic

    with pytest.raises(LibraryPanic):
        retry_lake_read(fail)
    for error in (KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(type(error)), convert_panics():
            raise error
