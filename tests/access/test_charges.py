"""Captured minutes as the ingest writer charges them: exact, shared by processes, never one batch too many.

Spec §8.2, contract §7.
"""

import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

from recorder import clock
from recorder.access.keys import Caller
from recorder.access.quota import charge_quota_minutes
from recorder.access.rate_tiers import TIERS
from recorder.errors import RecorderError
from recorder.ids import new_id
from recorder.models.session import SessionCreate
from recorder.recording.batch_stops import SessionBatchStop
from recorder.recording.ingest import IngestWriter
from recorder.recording.session_stops import SessionsBeforeStop, stop_session
from recorder.recording.sessions import create_session, start_session
from recorder.storage.database import Database
from recorder.tenant import Tenant
from tests.support.captured_minutes import MINUTE, ChargedTenant, codes, submit
from tests.support.databases import create_database, create_file


def test_charges_grow_with_the_largest_time(tenant: ChargedTenant, writer: IngestWriter) -> None:
    session_id = tenant.session()
    reports = []
    for times in ((MINUTE, 2 * MINUTE), (MINUTE,), (150_001,)):
        submit((writer, tenant.batch(session_id, *times)))
        reports.append(tenant.used_ms())
    assert reports == [120_000, 120_000, 150_001]


def test_sessions_add_up(tenant: ChargedTenant, writer: IngestWriter) -> None:
    for _ in range(3):
        submit((writer, tenant.batch(tenant.session(), 59_999)))
    assert tenant.used_ms() == 3 * 59_999


def test_a_live_session_is_charged_at_most_the_time_that_passed(
    tenant: ChargedTenant, writer: IngestWriter
) -> None:
    session_id = tenant.session(started_at=None)
    began = clock.now_ms()
    submit((writer, tenant.batch(session_id, 5 * MINUTE)))
    assert tenant.used_ms() <= clock.now_ms() - began + 1_000
    assert tenant.stop(session_id) == tenant.used_ms()


def test_a_stop_trues_up_and_gives_nothing_back(tenant: ChargedTenant, writer: IngestWriter) -> None:
    live, imported = tenant.session(started_at=None), tenant.session()
    submit((writer, tenant.batch(live, 0)), (writer, tenant.batch(imported, MINUTE)))
    before = tenant.used_ms()
    duration_ms = tenant.stop(live)
    assert tenant.stop(imported) == MINUTE
    assert (before, tenant.used_ms()) == (MINUTE, MINUTE + duration_ms)
    assert tenant.stop(live) == duration_ms and tenant.used_ms() == MINUTE + duration_ms


def test_test_mode_is_free(make_tenant: Any, writer: IngestWriter) -> None:
    tester = make_tenant(mode="test")
    session_id = tester.session()
    answers = submit(*((writer, tester.batch(session_id, 20 * MINUTE)) for _ in range(3)))
    tester.stop(session_id)
    assert codes(answers) == ["accepted"] * 3
    assert (tester.used_ms(), tester.notices()) == (0, [])


def test_replays_are_free_and_go_on(tenant: ChargedTenant) -> None:
    writer = IngestWriter(tenant.database, records_replays=True)
    with tenant.database.transaction(write=True) as db:
        charge_quota_minutes(db, tenant.caller.workspace_id, 10 * MINUTE)
        body = SessionCreate(workflow="pay")
        session_id = create_session(db, tenant.caller.tenant, body, origin="replay").id
        start_session(db, tenant.caller.tenant, session_id)
    batches = [tenant.batch(session_id, t_ms, **more) for t_ms, more in ((0, {}), (9, {"id": "evt_R1"}))]
    assert codes(submit(*((writer, batch) for batch in batches))) == ["accepted"] * 2
    writer.close()
    tenant.stop(session_id)
    assert tenant.used_ms() == 10 * MINUTE


def test_an_unlimited_workspace_is_counted_and_never_told(make_tenant: Any, writer: IngestWriter) -> None:
    tenant = make_tenant(TIERS["default"])
    submit((writer, tenant.batch(tenant.session(), 10**9)))
    assert (tenant.used_ms(), tenant.notices()) == (10**9, [])


def test_a_group_costs_one_statement_of_usage(tmp_path: Path) -> None:
    database = Database(create_file(tmp_path))
    tenant = ChargedTenant(database, Caller(Tenant(new_id("wsp"), "live"), new_id("key")))
    session_ids = tenant.sessions(20)
    writer = IngestWriter(database)
    statements: list[str] = []
    writer._connection.set_trace_callback(statements.append)
    submit(*((writer, tenant.batch(session_id, 1_000)) for session_id in session_ids))
    writer.close()
    database.close()
    groups = sum(statement.startswith("BEGIN") for statement in statements)
    charges = sum(statement.startswith("INSERT INTO usage") for statement in statements)
    assert charges == groups < len(session_ids)


def test_a_stop_holds_the_usage_for_its_commit_alone(postgres: str) -> None:
    # The ingest writers wait for the usage of a workspace with batches of all workspaces.
    database = Database(create_database(postgres))
    tenant = ChargedTenant(database, Caller(Tenant(new_id("wsp"), "live"), new_id("key")))
    first_id, second_id = tenant.sessions(2, started_at=None)
    time.sleep(0.01)  # a session of no time is charged nothing
    tenant.stop(first_id)
    with database.transaction(write=True) as db:
        stop_session(db, tenant.caller.tenant, second_id)
        db.flush()
        with database.transaction(write=True) as other:
            rows = other.connection().execute(text("SELECT captured_ms FROM usage FOR UPDATE NOWAIT")).all()
    assert len(rows) == 1 and tenant.used_ms() == tenant.charged_ms() > 0
    database.close()


def test_stops_among_batches_wait_for_nobody_in_a_circle(
    make_tenant: Any, writer: IngestWriter, other_writer: IngestWriter
) -> None:
    tenant = make_tenant(TIERS["trial"])
    session_ids = tenant.sessions(30)
    refused: list[Exception] = []

    def stop(ids: list[str]) -> None:
        try:
            scope = Tenant(tenant.caller.workspace_id, "live")
            with tenant.database.transaction(write=False) as db:
                batch = SessionBatchStop(scope, ids, SessionsBeforeStop(db, scope, ids))
            with tenant.database.transaction(write=True) as db:
                batch.stop_part(db)
        except RecorderError as error:
            refused.append(error)

    threads = [threading.Thread(target=stop, args=(session_ids[half::2],)) for half in (0, 1)]

    def send(t_ms: int) -> list[str]:
        batches = [tenant.batch(session_id, t_ms) for session_id in session_ids]
        writers = [writer, other_writer] * 15
        return codes(submit(*zip(writers, batches, strict=True)))

    assert set(send(1_000)) == {"accepted"}
    for thread in threads:
        thread.start()
    assert set(send(2_000) + send(3_000)) <= {"accepted", "invalid_state"}
    for thread in threads:
        thread.join()
    assert (refused, set(send(4_000))) == ([], {"invalid_state"})
    assert tenant.used_ms() == tenant.charged_ms() >= 30_000
