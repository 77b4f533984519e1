"""Captured minutes as the ingest writer charges them: exact, shared by processes, never one batch too many.

Spec §8.2, contract §7.
"""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlmodel import select

from recorder import clock
from recorder.access.keys import Caller, create_workspace
from recorder.access.surfaces import TIERS, Tier
from recorder.access.usage import charge_time, read_quota
from recorder.errors import QuotaExceeded, RecorderError
from recorder.ids import new_id
from recorder.models.outbox import OutboxRow
from recorder.models.session import SessionCreate, SessionRow
from recorder.models.usage import UsageRow
from recorder.recording.events import EventBatch, read_event_batch
from recorder.recording.ingest import IngestWriter
from recorder.recording.sessions import create_session, start_session
from recorder.recording.stops import batch_stop, stop_session
from recorder.storage.database import Database

MINUTE = 60_000
TINY = replace(TIERS["trial"], name="tiny", captured_minutes=10)
LONG_AGO = "2024-02-29T10:00:00Z"


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    """An empty database of either engine."""
    opened = Database(database_url)
    opened.migrate()
    yield opened
    opened.close()


@dataclass(frozen=True)
class Tenant:
    """A workspace of ten minutes a month, or of another tier, and what it used."""

    database: Database
    caller: Caller

    def session(self, **body: Any) -> str:
        """A session that records: an import, whose clock is its own."""
        wanted = {"workflow": "pay", "start": True, "started_at": LONG_AGO, **body}
        with self.database.transaction(write=True) as db:
            asked = SessionCreate.model_validate(wanted)
            return create_session(db, self.caller.workspace_id, self.caller.mode, asked).id

    def batch(self, session_id: str, *t_ms: int, key: str | None = None, **members: Any) -> EventBatch:
        """A batch with events at these times."""
        items = [{"t_ms": one, "type": "click", **members} for one in t_ms]
        body = orjson.dumps({"events": items})
        return read_event_batch(self.caller, session_id, body, content_type="application/json", batch_key=key)

    def stop(self, session_id: str) -> int:
        """Stop a session; gives its duration."""
        with self.database.transaction(write=True) as db:
            return stop_session(db, self.caller.workspace_id, self.caller.mode, session_id).duration_ms

    def used_ms(self) -> int:
        """What the row of usage says, over all periods."""
        with self.database.transaction(write=False) as db:
            own = select(UsageRow.captured_ms).where(UsageRow.workspace_id == self.caller.workspace_id)
            return sum(db.exec(own))

    def charged_ms(self) -> int:
        """What its sessions say that they were charged with."""
        with self.database.transaction(write=False) as db:
            own = select(SessionRow.charged_ms).where(SessionRow.workspace_id == self.caller.workspace_id)
            return sum(db.exec(own))

    def notices(self) -> list[str]:
        """The types of the quota events that were queued, in their order."""
        with self.database.transaction(write=False) as db:
            own = select(OutboxRow.type).where(OutboxRow.subject_id == self.caller.workspace_id)
            return list(db.exec(own.order_by(OutboxRow.id)))

    def event_count(self, session_id: str) -> int:
        """How many events a session holds."""
        with self.database.transaction(write=False) as db:
            return db.get_one(SessionRow, session_id).event_count


@pytest.fixture
def make_tenant(database: Database, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes tenants; `tiny` is a tier like any other to what is tested."""
    monkeypatch.setitem(TIERS, TINY.name, TINY)

    def make(tier: Tier = TINY, mode: Any = "live") -> Tenant:
        with database.transaction(write=True) as db:
            made = create_workspace(db, new_id("wsp"), region="us", secret=b"x", tier=tier.name)
        return Tenant(database, Caller(made.workspace_id, mode, made.key_id, tier=tier))

    return make


@pytest.fixture
def tenant(make_tenant: Any) -> Tenant:
    """A tenant with ten minutes."""
    made: Tenant = make_tenant()
    return made


@pytest.fixture
def writer(database: Database) -> Iterator[IngestWriter]:
    """The writer of one process."""
    running = IngestWriter(database)
    yield running
    running.close()


@pytest.fixture
def other_writer(database: Database) -> Iterator[IngestWriter]:
    """The writer of another process, with connections and locks of its own."""
    own = Database(database.url)
    running = IngestWriter(own)
    yield running
    running.close()
    own.close()


def submit(*batches: tuple[IngestWriter, EventBatch]) -> list[bytes | RecorderError]:
    """Hand batches to their writers, all at once; answers or errors in their order."""

    async def run() -> list[Any]:
        waiting = [asyncio.ensure_future(writer.submit(batch)) for writer, batch in batches]
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)

    return asyncio.run(run())


def codes(answers: list[bytes | RecorderError]) -> list[str]:
    """`accepted`, or the code of the refusal."""
    return [answer.code if isinstance(answer, RecorderError) else "accepted" for answer in answers]


def test_charges_grow_with_the_largest_time(tenant: Tenant, writer: IngestWriter) -> None:
    session_id = tenant.session()
    told = []
    for times in ((MINUTE, 2 * MINUTE), (MINUTE,), (150_001,)):
        submit((writer, tenant.batch(session_id, *times)))
        told.append(tenant.used_ms())
    assert told == [120_000, 120_000, 150_001]


def test_sessions_add_up(tenant: Tenant, writer: IngestWriter) -> None:
    for _ in range(3):
        submit((writer, tenant.batch(tenant.session(), 59_999)))
    assert tenant.used_ms() == 3 * 59_999


def test_a_live_session_is_charged_at_most_the_time_that_passed(tenant: Tenant, writer: IngestWriter) -> None:
    session_id = tenant.session(started_at=None)
    began = clock.now_ms()
    submit((writer, tenant.batch(session_id, 5 * MINUTE)))
    assert tenant.used_ms() <= clock.now_ms() - began + 1_000
    assert tenant.stop(session_id) == tenant.used_ms()


def test_a_stop_trues_up_and_gives_nothing_back(tenant: Tenant, writer: IngestWriter) -> None:
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


def test_replays_are_free_and_go_on(tenant: Tenant, writer: IngestWriter) -> None:
    session_id = tenant.session(start=False, started_at=None)
    with tenant.database.transaction(write=True) as db:
        charge_time(db, tenant.caller.workspace_id, 10 * MINUTE)
        db.get_one(SessionRow, session_id).origin = "replay"
        start_session(db, tenant.caller.workspace_id, "live", session_id)
    batches = [tenant.batch(session_id, t_ms, **more) for t_ms, more in ((0, {}), (9, {"id": "evt_R1"}))]
    assert codes(submit(*((writer, batch) for batch in batches))) == ["accepted"] * 2
    tenant.stop(session_id)
    assert tenant.used_ms() == 10 * MINUTE


def test_an_unlimited_workspace_is_counted_and_never_told(make_tenant: Any, writer: IngestWriter) -> None:
    tenant = make_tenant(TIERS["default"])
    submit((writer, tenant.batch(tenant.session(), 10**9)))
    assert (tenant.used_ms(), tenant.notices()) == (10**9, [])


def test_the_batch_that_reaches_the_limit_is_the_last(tenant: Tenant, writer: IngestWriter) -> None:
    session_id = tenant.session()
    times = [4 * MINUTE, 9 * MINUTE, 25 * MINUTE, 26 * MINUTE]
    answers = [submit((writer, tenant.batch(session_id, t_ms)))[0] for t_ms in times]
    assert codes(answers) == ["accepted", "accepted", "accepted", "quota_exceeded"]
    assert (tenant.used_ms(), tenant.event_count(session_id)) == (25 * MINUTE, 3)
    assert tenant.notices() == ["quota.warning", "quota.exhausted"]


def test_batches_of_one_group_are_counted_one_by_one(tenant: Tenant, writer: IngestWriter) -> None:
    session_ids = sorted(tenant.session() for _ in range(6))
    answers = submit(*((writer, tenant.batch(session_id, 4 * MINUTE)) for session_id in session_ids))
    assert codes(answers) == ["accepted"] * 3 + ["quota_exceeded"] * 3
    assert tenant.used_ms() == 12 * MINUTE


@pytest.mark.parametrize("minutes", [1, 3, 7])
def test_a_hundred_writers_at_the_boundary_go_over_by_less_than_a_batch(
    tenant: Tenant, writer: IngestWriter, other_writer: IngestWriter, minutes: int
) -> None:
    session_ids = [tenant.session() for _ in range(100)]
    answers = submit(
        *(
            ((writer, other_writer)[index % 2], tenant.batch(session_id, minutes * MINUTE))
            for index, session_id in enumerate(session_ids)
        )
    )
    accepted = codes(answers).count("accepted")
    limit_ms = 10 * MINUTE
    assert set(codes(answers)) == {"accepted", "quota_exceeded"}
    assert accepted == -(-10 // minutes)
    assert limit_ms <= tenant.used_ms() == accepted * minutes * MINUTE < limit_ms + minutes * MINUTE
    assert sum(tenant.event_count(session_id) for session_id in session_ids) == accepted
    assert tenant.notices() == ["quota.warning", "quota.exhausted"]


def test_what_another_process_used_counts_at_once(
    tenant: Tenant, writer: IngestWriter, other_writer: IngestWriter
) -> None:
    one, other = tenant.session(), tenant.session()
    assert codes(submit((writer, tenant.batch(one, MINUTE)))) == ["accepted"]
    assert codes(submit((other_writer, tenant.batch(other, 9 * MINUTE)))) == ["accepted"]
    # It costs nothing, and still it comes after the end.
    assert codes(submit((writer, tenant.batch(one, MINUTE)))) == ["quota_exceeded"]
    assert (tenant.used_ms(), tenant.event_count(one)) == (10 * MINUTE, 1)


def test_what_a_stop_used_counts_at_once(tenant: Tenant, writer: IngestWriter) -> None:
    session_id = tenant.session()
    submit((writer, tenant.batch(session_id, MINUTE)))
    with tenant.database.transaction(write=True) as db:
        charge_time(db, tenant.caller.workspace_id, 9 * MINUTE)
    assert codes(submit((writer, tenant.batch(session_id, MINUTE)))) == ["quota_exceeded"]
    assert tenant.notices() == ["quota.warning", "quota.exhausted"]


def test_one_workspace_at_its_end_does_not_hold_up_another(make_tenant: Any, writer: IngestWriter) -> None:
    poor, rich = make_tenant(), make_tenant()
    batches = [(writer, one.batch(one.session(), MINUTE)) for one in (poor, rich, poor, rich)]
    with poor.database.transaction(write=True) as db:
        charge_time(db, poor.caller.workspace_id, 10 * MINUTE)
    assert codes(submit(*batches)) == ["quota_exceeded", "accepted"] * 2
    assert (poor.used_ms(), rich.used_ms()) == (10 * MINUTE, 2 * MINUTE)


def test_a_batch_that_was_stored_is_answered_after_the_end_too(tenant: Tenant, writer: IngestWriter) -> None:
    session_id = tenant.session()
    keyed = [tenant.batch(session_id, MINUTE, key="k-1") for _ in range(2)]
    named = [tenant.batch(session_id, MINUTE, id="evt_A1") for _ in range(2)]
    first = submit((writer, keyed[0]), (writer, named[0]))
    submit((writer, tenant.batch(session_id, 10 * MINUTE)))
    again = submit((writer, keyed[1]), (writer, named[1]))
    assert again[0] == first[0]
    assert b'"accepted":0,"duplicates":1' in again[1]  # type: ignore[operator]


def test_a_batch_refused_at_the_end_leaves_no_ids_behind(tenant: Tenant, writer: IngestWriter) -> None:
    session_id = tenant.session()
    submit((writer, tenant.batch(session_id, 10 * MINUTE)))
    for _ in range(2):
        answers = submit((writer, tenant.batch(session_id, MINUTE, id="evt_B1", key="k-2")))
        assert codes(answers) == ["quota_exceeded"]
    assert tenant.event_count(session_id) == 1


def test_state_comes_before_quota(tenant: Tenant, writer: IngestWriter) -> None:
    stopped, missing = tenant.session(), new_id("ses")
    submit((writer, tenant.batch(stopped, 10 * MINUTE)))
    tenant.stop(stopped)
    batches = [
        (writer, tenant.batch(session_id, 1, **more))
        for session_id in (stopped, missing)
        for more in ({}, {"id": "evt_C1"})
    ]
    assert codes(submit(*batches)) == ["invalid_state"] * 2 + ["not_found"] * 2


def test_a_new_month_begins_with_nothing_used(
    tenant: Tenant, writer: IngestWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = tenant.session()

    def at(moment: datetime) -> None:
        monkeypatch.setattr(clock, "now", lambda: moment)
        monkeypatch.setattr(clock, "now_ms", lambda: clock.to_ms(moment))

    at(datetime(2031, 1, 31, 23, 59, 59, 999_000, UTC))
    answers = [submit((writer, tenant.batch(session_id, t_ms)))[0] for t_ms in (10 * MINUTE, 11 * MINUTE)]
    at(datetime(2031, 2, 1, tzinfo=UTC))
    answers += submit((writer, tenant.batch(session_id, 12 * MINUTE)))
    with tenant.database.transaction(write=False) as db:
        quota = read_quota(db, tenant.caller.workspace_id, "live")
    assert codes(answers) == ["accepted", "quota_exceeded", "accepted"]
    assert (quota.period_start.isoformat(), quota.captured_minutes) == ("2031-02-01T00:00:00+00:00", 2)
    assert tenant.used_ms() == 12 * MINUTE


def test_a_larger_tier_opens_the_workspace_and_warns_once_all_the_same(
    tenant: Tenant, writer: IngestWriter
) -> None:
    session_id = tenant.session()
    submit((writer, tenant.batch(session_id, 10 * MINUTE)))
    larger = replace(tenant, caller=replace(tenant.caller, tier=replace(TINY, captured_minutes=12)))
    times = [11 * MINUTE, 12 * MINUTE]
    answers = [submit((writer, larger.batch(session_id, t_ms)))[0] for t_ms in times]
    assert codes(answers) == ["accepted", "accepted"]
    assert tenant.notices() == ["quota.warning", "quota.exhausted"]


def test_a_group_costs_one_statement_of_usage(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'recorder.db'}")
    database.migrate()
    tenant = Tenant(database, Caller(new_id("wsp"), "live", new_id("key")))
    session_ids = [tenant.session() for _ in range(20)]
    writer = IngestWriter(database)
    statements: list[str] = []
    writer._connection.set_trace_callback(statements.append)
    submit(*((writer, tenant.batch(session_id, 1_000)) for session_id in session_ids))
    writer.close()
    database.close()
    groups = sum(statement.startswith("BEGIN") for statement in statements)
    charges = sum(statement.startswith("INSERT INTO usage") for statement in statements)
    assert charges == groups < len(session_ids)


def test_stops_among_batches_wait_for_nobody_in_a_circle(
    make_tenant: Any, writer: IngestWriter, other_writer: IngestWriter
) -> None:
    tenant = make_tenant(TIERS["trial"])
    session_ids = [tenant.session() for _ in range(30)]
    refused: list[Exception] = []

    def stop(ids: list[str]) -> None:
        try:
            with tenant.database.transaction(write=True) as db:
                batch_stop(db, tenant.caller.workspace_id, "live", ids)
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


def test_quota_is_exceeded_without_a_hint_to_try_again() -> None:
    assert QuotaExceeded("captured minutes").retry_after_s is None
