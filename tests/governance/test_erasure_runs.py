"""Runs on erasures: many of one workspace hold up neither purges nor erasures of others. Contract §7."""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlmodel import col, func, insert, select

from recorder import clock, limits
from recorder.access.keys import Caller as KeyCaller
from recorder.audit.log import Origin
from recorder.governance.erasure_runs import (
    ErasureRun,
    has_unfinished_erasures,
    open_erasure_run,
    run_erasures,
)
from recorder.governance.erasures import describe_erasure, request_erasure
from recorder.governance.purging.purge_rows import request_purge
from recorder.governance.repeated_erasures import repeat_erasures
from recorder.governance.requested_removals import run_removals
from recorder.governance.table_rewrites import rewrite_tables
from recorder.ids import encode_ulid, new_id
from recorder.models.governance import ErasureCreate, ErasureNodeRow, ErasureRow
from recorder.models.operations import AuditRow
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.runtime import Runtime
from recorder.tenant import GraphScope, Tenant
from tests.support.factories import Caller, assert_problem
from tests.support.purges import make_due, open_purges, purge_row, recorded_canary
from tests.support.query_plans import noted_statements, plan_of
from tests.support.recorded_sessions import execute, let_lease_run_out

ADDRESS = "/v1/privacy/erasure"
_MODES = ("live", "test")


@pytest.fixture(autouse=True)
def no_erasures(runtime: Runtime) -> None:
    """Check that no erasure of an earlier test is open."""
    execute(runtime, "DELETE FROM purges")
    execute(runtime, "DELETE FROM erasures")
    let_lease_run_out(runtime)


def request(runtime: Runtime, workspace_id: str, *subjects: str) -> None:
    """Request erasures with a key of live data."""
    owner = KeyCaller(Tenant(workspace_id, "live"), "key")
    origin = replace(Origin.operator(workspace_id), mode="live")
    for subject in subjects:
        with runtime.database.transaction(write=True) as db:
            body = ErasureCreate(subject=subject, scope="all")
            request_erasure(db, runtime.settings.secret, owner, origin, body)


def fill(runtime: Runtime, workspace_id: str, *, count: int, since: datetime) -> list[str]:
    """Add sessions that were created one millisecond after the other; return their ids."""
    rows = []
    for number in range(count):
        at = clock.truncate_to_ms(since) + timedelta(milliseconds=number)
        rows.append(
            {
                "id": f"ses_{encode_ulid((clock.to_ms(at) << 80) + secrets.randbits(79))}",
                "workspace_id": workspace_id,
                "mode": "live",
                "workflow": "checkout",
                "status": "stopped",
                "actor_id": "somebody else",
                "created_at": at,
            }
        )
    metadata = [{"session_id": row["id"], "metadata": {"customer": "unknown"}} for row in rows]
    with runtime.database.transaction(write=True) as db:
        db.connection().execute(insert(SessionRow), rows)
        db.connection().execute(insert(SessionMetadataRow), metadata)
    return [str(row["id"]) for row in rows]


def name(runtime: Runtime, session_id: str, subject: str) -> None:
    """Let a person be the actor of a session."""
    execute(runtime, "UPDATE sessions SET actor_id = :actor WHERE id = :id", actor=subject, id=session_id)


def count_unsearched(runtime: Runtime, workspace_id: str) -> int:
    """Return how many erasures of a workspace are not searched to the end for the first time."""
    wanted = (ErasureRow.workspace_id == workspace_id, col(ErasureRow.second_search_at).is_(None))
    with runtime.database.transaction(write=False) as db:
        return db.exec(select(func.count()).select_from(ErasureRow).where(*wanted)).one()


def count_erasures_after_rewrite(runtime: Runtime) -> int:
    """Rewrite the tables that erasures wait for, and return how many are open then."""
    rewrites = rewrite_tables(runtime, "tests")
    assert rewrites is not None and rewrites.failures == {}
    with runtime.database.transaction(write=False) as db:
        return db.exec(select(func.count()).select_from(ErasureRow)).one()


@contextmanager
def erasure_run(runtime: Runtime) -> Iterator[ErasureRun]:
    """Yield a run whose ranges the test searches one by one."""
    with open_erasure_run(runtime, "tests") as run:
        assert run is not None
        yield run


def test_many_open_erasures_do_not_delay_a_hard_delete_of_another_workspace(
    caller: Caller,
) -> None:
    runtime, flooding = caller.service.runtime, new_id("wsp")
    execute(runtime, "DELETE FROM purges")
    deleted = recorded_canary(caller)
    fill(runtime, flooding, count=2, since=clock.now() - timedelta(days=1))
    request(runtime, flooding, *(f"person {number}" for number in range(120)))
    assert caller.delete(f"/v1/sessions/{deleted.session_id}?hard=true").status_code == 204

    def is_gone() -> bool:
        return purge_row(runtime, deleted.session_id).step == "files"

    run_removals(runtime, "tests", is_stopping=is_gone)
    assert is_gone() and count_unsearched(runtime, flooding) >= 119
    run_removals(runtime, "tests")
    assert count_unsearched(runtime, flooding) == 0
    while open_purges(runtime):
        make_due(runtime)
        run_removals(runtime, "tests")
    rewrite_tables(runtime, "tests")


def test_workspaces_take_turns_with_their_searches(runtime: Runtime) -> None:
    flooding, other = new_id("wsp"), new_id("wsp")
    request(runtime, flooding, *(f"person {number}" for number in range(50)))
    with erasure_run(runtime) as run:
        run.search_next_range()
        request(runtime, other, "ada")
        # Of each erasure live data are one range, and test data another one. Turns go by the time that ranges
        # took, which varies.
        for _ in range(12):
            run.search_next_range()
    assert count_unsearched(runtime, other) == 0
    assert count_unsearched(runtime, flooding) >= 43


def test_an_erasure_is_searched_in_ranges_of_its_own_sessions(runtime: Runtime) -> None:
    workspace_id, other = new_id("wsp"), new_id("wsp")
    ids = fill(runtime, workspace_id, count=20_050, since=clock.now() - timedelta(days=2))
    fill(runtime, other, count=10, since=clock.now() - timedelta(days=2, seconds=-5))
    for number in (0, 19_999, 20_049):
        name(runtime, ids[number], "ada")
    request(runtime, workspace_id, "ada")
    (late,) = fill(runtime, workspace_id, count=1, since=clock.now() + timedelta(hours=1))
    name(runtime, late, "ada")
    with erasure_run(runtime) as run:
        run.search_next_range()
        assert [session_id for session_id, _ in open_purges(runtime)] == [ids[0], ids[19_999]]
        assert run.search_next_range()
        assert {session_id for session_id, _ in open_purges(runtime)} == {
            *(ids[number] for number in (0, 19_999, 20_049))
        }
        assert count_unsearched(runtime, workspace_id) == 1  # test data
        assert run.search_next_range() and not run.search_next_range()
        make_due(runtime)
        for _ in _MODES:
            assert run.search_next_range()
        assert not run.search_next_range()
    with runtime.database.transaction(write=False) as db:
        (row,) = db.exec(select(ErasureRow))
        assert row.is_searched and row.counts["sessions"] == 3


def test_a_session_that_is_stored_after_the_search_is_found_by_a_second_one(runtime: Runtime) -> None:
    workspace_id = new_id("wsp")
    (early,) = fill(runtime, workspace_id, count=1, since=clock.now() - timedelta(seconds=10))
    name(runtime, early, "ada")
    request(runtime, workspace_id, "ada")
    run_erasures(runtime, "tests")
    # Its request drew the id before the erasure, and commits it now.
    (late,) = fill(runtime, workspace_id, count=1, since=clock.now() - timedelta(seconds=5))
    name(runtime, late, "ada")
    run_erasures(runtime, "tests")
    assert [session_id for session_id, _ in open_purges(runtime)] == [early]
    with runtime.database.transaction(write=False) as db:
        (row,) = db.exec(select(ErasureRow))
        assert row.second_search_at == row.created_at + timedelta(seconds=120)
        assert not has_unfinished_erasures(db), "the sensor of purges would start runs for nothing"
    make_due(runtime)
    with runtime.database.transaction(write=False) as db:
        assert has_unfinished_erasures(db)
    run_erasures(runtime, "tests")
    assert {session_id for session_id, _ in open_purges(runtime)} == {early, late}
    with runtime.database.transaction(write=False) as db:
        (row,) = db.exec(select(ErasureRow))
        assert row.is_searched and row.counts["sessions"] == 2


def test_an_erasure_that_waits_for_its_purges_names_no_session(runtime: Runtime) -> None:
    workspace_id = new_id("wsp")
    ids = fill(runtime, workspace_id, count=2, since=clock.now() - timedelta(seconds=10))
    name(runtime, ids[-1], "ada")

    def read_named() -> set[str]:
        with runtime.database.transaction(write=False) as db:
            (row,) = db.exec(select(ErasureRow))
        return {session_id for session_id in ids if session_id in str(row.model_dump())}

    request(runtime, workspace_id, "ada")
    assert read_named() == set()
    run_erasures(runtime, "tests", longest_request=timedelta(0))
    assert [session_id for session_id, _ in open_purges(runtime)] == ids[-1:]
    assert read_named() == set()
    with runtime.database.transaction(write=False) as db:
        (row,) = db.exec(select(ErasureRow))
        assert row.is_searched and (row.newest_id, row.searched_id) == (None, None)


@pytest.mark.parametrize("set_back", [timedelta(0), timedelta(hours=1)])
def test_an_erasure_ends_after_two_minutes_though_runs_end_and_clocks_are_set_back(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, set_back: timedelta
) -> None:
    workspace_id, began = new_id("wsp"), clock.now()
    request(runtime, workspace_id, "ada")
    run_erasures(runtime, "the first process")

    def count_open(after: timedelta) -> int:
        monkeypatch.setattr(clock, "now", lambda: began + after)
        monkeypatch.setattr(clock, "now_ms", lambda: clock.to_ms(began + after))
        with ThreadPoolExecutor(2) as pool:
            names = ["the second process", "the third process"]
            runs = list(pool.map(lambda name: run_erasures(runtime, name), names))
        assert any(run is not None for run in runs)
        return count_erasures_after_rewrite(runtime)

    assert count_open(-set_back) == 1
    assert count_open(timedelta(seconds=119)) == 1
    assert count_open(timedelta(seconds=121)) == 0
    with runtime.database.transaction(write=False) as db:
        (ended,) = db.exec(
            select(AuditRow.details).where(
                AuditRow.workspace_id == workspace_id, AuditRow.action == "privacy.erase"
            )
        )
    created, completed = (clock.parse_time(ended[name], name=name) for name in ("created_at", "completed_at"))
    assert (ended["status"], completed - created >= timedelta(seconds=120)) == ("completed", True)


def test_an_erasure_waits_for_purges_of_before_its_clock_was_set_back(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace_id, began = new_id("wsp"), clock.now()
    (deleted,) = fill(runtime, workspace_id, count=1, since=began - timedelta(days=1))
    with runtime.database.transaction(write=True) as db:
        request_purge(db, db.get_one(SessionRow, deleted), "hard_delete", at=began + timedelta(hours=1))
    execute(runtime, "DELETE FROM sessions WHERE id = :id", id=deleted)
    request(runtime, workspace_id, "ada")
    run_erasures(runtime, "tests", longest_request=timedelta(0))
    with runtime.database.transaction(write=False) as db:
        (row,) = db.exec(select(ErasureRow))
        assert row.is_searched and not has_unfinished_erasures(db)
    assert count_erasures_after_rewrite(runtime) == 1
    execute(runtime, "UPDATE purges SET step = 'done'")
    run_erasures(runtime, "tests")
    assert count_erasures_after_rewrite(runtime) == 0


@pytest.mark.parametrize("is_repeated", [False, True])
@pytest.mark.parametrize("mode", ["live", "test"])
def test_a_session_of_a_host_whose_clock_is_ahead_is_found(
    runtime: Runtime, mode: str, is_repeated: bool
) -> None:
    workspace_id, soon = new_id("wsp"), clock.now() + timedelta(seconds=2)
    (early,) = fill(runtime, workspace_id, count=1, since=clock.now() - timedelta(days=1))
    (ahead,) = fill(runtime, workspace_id, count=1, since=soon)
    execute(runtime, "UPDATE sessions SET mode = :mode WHERE id = :id", mode=mode, id=ahead)
    request(runtime, workspace_id, "ada")
    (after,) = fill(runtime, workspace_id, count=1, since=soon + timedelta(seconds=1))
    for session_id in (early, ahead, after):
        name(runtime, session_id, "ada")
    if is_repeated:  # as in a restored copy
        execute(runtime, "DELETE FROM erasures")
        with runtime.database.transaction(write=False) as db:
            requests = db.exec(select(AuditRow).where(AuditRow.workspace_id == workspace_id)).all()
        assert [entry.action for entry in requests] == ["privacy.request"]
        repeat_erasures(runtime, workspace_id, requests)
    else:
        run_erasures(runtime, "tests", longest_request=timedelta(0))
    assert {session_id for session_id, _ in open_purges(runtime)} == {early, ahead}


def test_a_search_reads_no_rows_of_other_workspaces(runtime: Runtime) -> None:
    workspace_id = new_id("wsp")
    fill(runtime, workspace_id, count=1, since=clock.now() - timedelta(days=30))
    fill(runtime, workspace_id, count=1, since=clock.now() - timedelta(days=1))
    request(runtime, workspace_id, "ada")
    with noted_statements() as noted, erasure_run(runtime) as run:
        run.search_next_range()
    (search,) = [each for each in noted if "session_metadata" in each[0]]
    plan = plan_of(runtime.database, *search)
    assert "ix_sessions_list" in plan
    assert "SCAN sessions" not in plan and "Seq Scan" not in plan
    by_key = "session_metadata USING INDEX sqlite_autoindex_session_metadata_1 (session_id=?)"
    assert (by_key if runtime.database.is_sqlite else "session_metadata_pkey") in plan


def test_the_erasures_that_can_end_are_found_by_indexes(runtime: Runtime) -> None:
    request(runtime, new_id("wsp"), "ada")
    with noted_statements() as noted, runtime.database.transaction(write=False) as db:
        assert has_unfinished_erasures(db)
    (statement,) = [each for each in noted if "FROM erasures" in each[0]]
    plan = plan_of(runtime.database, *statement)
    assert "ix_purges_requested" in plan
    assert "ix_purges_erasure_id" in plan or not runtime.database.is_sqlite


def test_each_transaction_writes_the_nodes_of_its_own_sessions_alone(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace_id = new_id("wsp")
    scope = GraphScope(Tenant(workspace_id, "live"), "checkout")
    nodes = iter([{(scope, number) for number in range(7_000)}, {(scope, 0), (scope, 7_000)}])
    monkeypatch.setattr("recorder.governance.erasure_search.list_nodes", lambda *_: next(nodes))
    for session_id in fill(runtime, workspace_id, count=101, since=clock.now() - timedelta(days=1)):
        name(runtime, session_id, "ada")
    request(runtime, workspace_id, "ada")
    with noted_statements() as noted, erasure_run(runtime) as run:
        run.search_next_range()
    changed = [each for each in noted if each[0].startswith(("UPDATE erasures", "INSERT INTO erasure_nodes"))]
    assert sum(str(parameters).count("live/checkout/") for _, parameters in changed) == 7_002
    with runtime.database.transaction(write=False) as db:
        (row,) = db.exec(select(ErasureRow))
        assert describe_erasure(row).counts["nodes"] == 7_001
        assert len(db.exec(select(ErasureNodeRow.node_id)).all()) == 7_001
    with noted_statements() as noted:
        while open_purges(runtime):
            make_due(runtime)
            run_removals(runtime, "tests")
        run_removals(runtime, "tests")
    deletions = [statement for statement, _ in noted if statement.startswith("DELETE FROM erasure_nodes")]
    assert len(deletions) >= 2 and all("LIMIT" in statement for statement in deletions)
    with runtime.database.transaction(write=False) as db:
        assert db.exec(select(ErasureNodeRow.node_id)).first() is None
    rewrite_tables(runtime, "tests")


def test_a_workspace_has_a_bounded_number_of_open_erasures(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = caller.service.runtime
    monkeypatch.setattr(limits, "OPEN_ERASURES", 2)
    bodies = [{"subject": f"ada {number}", "scope": "all"} for number in range(3)]
    first = caller.post(ADDRESS, bodies[0]).json()
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    assert tester.post(ADDRESS, bodies[1]).status_code == 202
    refused = caller.post(ADDRESS, bodies[2])
    assert_problem(refused, 422, "limit_reached")
    assert "A workspace has at most 2 erasures that have not ended" in refused.json()["detail"]
    assert caller.post(ADDRESS, bodies[0]).json()["id"] == first["id"]
    assert caller.service.make_caller().post(ADDRESS, bodies[2]).status_code == 202
    run_erasures(runtime, "tests", longest_request=timedelta(0))
    rewrite_tables(runtime, "tests")
    assert caller.post(ADDRESS, bodies[2]).status_code == 202
    entries = caller.get("/v1/audit?action=privacy.request").json()["data"]
    assert len(entries) == 3
    run_erasures(runtime, "tests", longest_request=timedelta(0))
    rewrite_tables(runtime, "tests")
