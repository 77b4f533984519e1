"""A workspace with many webhooks and events delays no other one, and what waits has a limit. Contract §6."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, func, insert, select, update

from recorder import clock, limits
from recorder.access.workspaces import create_workspace
from recorder.audit.log import Origin
from recorder.ids import new_id
from recorder.models.operations import OutboxRow
from recorder.models.webhook import DeliveryRow, SkippedEvents, WebhookCreate, WebhookRow
from recorder.storage.database import Database
from recorder.tenant import Tenant
from recorder.webhooks.dispatcher import OutboxDispatcher
from recorder.webhooks.outbox import add_outbox_events, describe_outbox_event, make_outbox_attempt
from recorder.webhooks.subscriptions import create_webhook, read_skipped_events
from tests.support.databases import create_database, create_file
from tests.support.delivery_loop import BOX, CREATED, attempts, make_webhook, put_event, running_loop
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Answer, running_receiver

#: Refused at each attempt, at once.
BLOCKED = "https://10.0.0.1/"
EVENTS = 1_000


def make_flood(database: Database, *, events: int = EVENTS) -> list[str]:
    """Create a workspace with many webhooks and waiting events; return the ids of its webhooks."""
    with database.transaction(write=True) as db:
        workspace_id = create_workspace(db, new_id("wsp"), region="us", secret=b"tests").workspace_id
        tenant, origin = Tenant(workspace_id, "live"), Origin.system(workspace_id, "tests")
        spec = WebhookCreate(url=BLOCKED, events=list(CREATED))
        ids = [create_webhook(db, BOX, tenant, origin, spec).id for _ in range(limits.WEBHOOKS_PER_WORKSPACE)]
    with database.transaction(write=True) as db:
        add_outbox_events(db, [make_event(workspace_id) for _ in range(events)])
    return ids


def make_event(workspace_id: str) -> dict[str, Any]:
    """Return the columns of an event."""
    tenant = Tenant(workspace_id, "live")
    return describe_outbox_event(tenant=tenant, type="session.created", subject_id=new_id("ses"), data={})


def clear(database: Database) -> None:
    """Remove events and attempts of other tests."""
    with database.transaction(write=True) as db:
        for table in (DeliveryRow, OutboxRow):
            db.connection().execute(table.__table__.delete())  # type: ignore[attr-defined]


def dispatch(database: Database, dispatcher: OutboxDispatcher) -> bool:
    """Run one transaction of a worker."""
    with database.transaction(write=True) as db:
        return dispatcher.dispatch(db)


def count_attempts(database: Database, webhook_ids: list[str]) -> int:
    """Return the number of the attempts of these webhooks."""
    with database.transaction(write=False) as db:
        statement = select(func.count()).where(col(DeliveryRow.webhook_id).in_(webhook_ids))
        return db.exec(statement).one()


def read_skipped(database: Database, webhook_id: str) -> SkippedEvents | None:
    """Return the events that a webhook did not get."""
    with database.transaction(write=False) as db:
        return read_skipped_events(db.get_one(WebhookRow, webhook_id))


def add_pending(database: Database, webhook_id: str, count: int) -> None:
    """Store attempts that wait."""
    with database.transaction(write=True) as db:
        rows = [
            make_outbox_attempt(webhook_id, event_id=new_id("evt"), event_type="session.created")
            for _ in range(count)
        ]
        db.connection().execute(insert(DeliveryRow), rows)


def test_an_event_beside_floods_is_dispatched_by_the_next_transaction(
    database: Database, workspace_id: str
) -> None:
    clear(database)
    for _ in range(8):
        make_flood(database, events=20)
    webhook = make_webhook(database, BLOCKED, workspace_id=workspace_id, events=CREATED)
    dispatcher = OutboxDispatcher()
    for _ in range(3):
        assert dispatch(database, dispatcher)
        event_id = put_event(database, workspace_id=workspace_id)
        assert dispatch(database, dispatcher)
        assert attempts(database, webhook.id)[-1].event_id == event_id


def test_floods_share_the_transactions(database: Database) -> None:
    clear(database)
    floods = [make_flood(database, events=50) for _ in range(3)]
    dispatcher = OutboxDispatcher()
    for _ in range(6):
        dispatch(database, dispatcher)
    counts = [count_attempts(database, flood) for flood in floods]
    assert sum(counts) == 3_000
    assert max(counts) - min(counts) <= 100


def test_workspaces_share_attempts_not_events(database: Database, workspace_id: str) -> None:
    clear(database)
    make_flood(database, events=20)
    webhook = make_webhook(database, BLOCKED, workspace_id=workspace_id, events=CREATED)
    with database.transaction(write=True) as db:
        add_outbox_events(db, [make_event(workspace_id) for _ in range(40)])
    dispatch(database, OutboxDispatcher())
    assert count_attempts(database, [webhook.id]) == 40


def test_an_event_beside_a_flood_is_delivered_within_a_few_turns(
    database: Database, workspace_id: str
) -> None:
    clear(database)
    flood = make_flood(database)
    with running_receiver(Answer(204)) as receiver:
        webhook = make_webhook(database, f"{receiver.url}/in", workspace_id=workspace_id, events=CREATED)
        with running_loop(database):
            wait_for(lambda: count_attempts(database, flood) >= 500)
            before = count_attempts(database, flood)
            put_event(database, workspace_id=workspace_id)
            wait_for(lambda: receiver.received)
            turns = (count_attempts(database, flood) - before) / 500
    assert turns < 10 < EVENTS * len(flood) / 500
    assert [row.attempt for row in attempts(database, webhook.id)] == [1]


def test_an_attempt_that_another_transaction_holds_delays_no_other_workspace(postgres: str) -> None:
    # A purge locks the attempts of its session, and then may wait for a memory graph that is being rebuilt.
    database, answers = Database(create_database(postgres)), threading.Event()
    with database.transaction(write=True) as db:
        ids = [create_workspace(db, name, region="us", secret=b"tests").workspace_id for name in "ab"]
    with running_receiver(Answer(204), hold=answers) as slow, running_receiver(Answer(204)) as other:
        held, free = (
            make_webhook(database, f"{receiver.url}/in", workspace_id=workspace_id, events=CREATED)
            for receiver, workspace_id in zip((slow, other), ids, strict=True)
        )
        with running_loop(database):
            put_event(database, workspace_id=ids[0])
            wait_for(lambda: slow.received)
            with database.transaction(write=True) as db:
                db.exec(select(DeliveryRow.id).filter_by(webhook_id=held.id).with_for_update()).one()
                answers.set()
                for count in range(1, 4):
                    put_event(database, workspace_id=ids[1])
                    wait_for(lambda count=count: len(other.received) == count)
            wait_for(lambda: attempts(database, held.id)[0].status == "succeeded")
            wait_for(lambda: [row.status for row in attempts(database, free.id)] == ["succeeded"] * 3)
    assert (len(slow.received), len(attempts(database, held.id))) == (1, 1)
    database.close()


@contextmanager
def recorded_writes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[float, float]]]:
    """Yield the beginning and end of each write transaction of the block."""
    spans: list[tuple[float, float]] = []
    original = database.transaction

    @contextmanager
    def recording(*, write: bool) -> Iterator[Any]:
        began = time.monotonic()
        with original(write=write) as db:
            yield db
        if write:
            spans.append((began, time.monotonic()))

    with monkeypatch.context() as patch:
        patch.setattr(database, "transaction", recording)
        yield spans


def test_the_lock_of_sqlite_is_free_between_two_turns_as_long_as_a_turn_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(create_file(tmp_path))
    make_flood(database, events=100)
    with recorded_writes(database, monkeypatch) as spans, running_loop(database):
        wait_for(lambda: len(spans) >= 12)
    database.close()
    # The first transaction removes old records.
    turns = itertools.pairwise(spans[1:12])
    assert [turn for turn in turns if turn[1][0] - turn[0][1] < min(0.1, turn[0][1] - turn[0][0])] == []


def test_a_webhook_has_a_largest_number_of_pending_attempts_and_counts_what_it_skips(
    database: Database, workspace_id: str
) -> None:
    clear(database)
    full, other = (make_webhook(database, BLOCKED, workspace_id=workspace_id, events=CREATED) for _ in "ab")
    add_pending(database, full.id, limits.PENDING_DELIVERIES - 1)
    ids = [put_event(database, workspace_id=workspace_id) for _ in range(3)]
    while dispatch(database, OutboxDispatcher()):
        pass
    assert count_attempts(database, [full.id]) == limits.PENDING_DELIVERIES
    assert [row.event_id for row in attempts(database, other.id)] == ids
    skipped = read_skipped(database, full.id)
    assert skipped is not None
    assert (skipped.count, read_skipped(database, other.id)) == (2, None)
    with database.transaction(write=False) as db:
        times = [db.get_one(OutboxRow, event_id).created_at for event_id in ids]
    assert (skipped.first_at, skipped.last_at) == (times[1], times[2])


def test_events_that_all_webhooks_skip_are_dispatched_a_hundred_at_a_time(
    database: Database, workspace_id: str
) -> None:
    clear(database)
    ids = [make_webhook(database, BLOCKED, workspace_id=workspace_id, events=CREATED).id for _ in range(20)]
    dispatcher = OutboxDispatcher(most_pending=0)
    with database.transaction(write=True) as db:
        add_outbox_events(db, [make_event(workspace_id) for _ in range(150)])
    assert dispatch(database, dispatcher)
    assert not dispatch(database, dispatcher)
    assert {(read_skipped(database, webhook_id) or pytest.fail()).count for webhook_id in ids} == {150}
    with database.transaction(write=False) as db:
        assert db.exec(select(OutboxRow.id).where(OutboxRow.workspace_id == workspace_id)).all() == []


def test_attempts_that_end_make_room(database: Database, workspace_id: str) -> None:
    clear(database)
    webhook = make_webhook(database, BLOCKED, workspace_id=workspace_id, events=CREATED)
    dispatcher = OutboxDispatcher(most_pending=2)
    for _ in range(3):
        put_event(database, workspace_id=workspace_id)
    while dispatch(database, dispatcher):
        pass
    dispatcher.note_ended([webhook.id])
    taken, _ = (put_event(database, workspace_id=workspace_id) for _ in range(2))
    while dispatch(database, dispatcher):
        pass
    assert [row.event_id for row in attempts(database, webhook.id)][2:] == [taken]
    skipped = read_skipped(database, webhook.id)
    assert skipped is not None and skipped.count == 2


def test_skipped_events_are_forgotten_after_thirty_days(database: Database, workspace_id: str) -> None:
    clear(database)
    webhook = make_webhook(database, BLOCKED, workspace_id=workspace_id, events=CREATED)

    def skip_one() -> None:
        put_event(database, workspace_id=workspace_id)
        while dispatch(database, OutboxDispatcher(most_pending=0)):
            pass

    def set_times(at: datetime) -> None:
        with database.transaction(write=True) as db:
            values = {"skipped_first_at": at, "skipped_last_at": at}
            db.exec(update(WebhookRow).filter_by(id=webhook.id).values(values))

    skip_one()
    before = clock.now() - timedelta(days=29)
    set_times(before)
    skip_one()
    skipped = read_skipped(database, webhook.id)
    assert skipped is not None and (skipped.count, skipped.first_at) == (2, before)
    set_times(clock.now() - timedelta(days=31))
    assert read_skipped(database, webhook.id) is None
    skip_one()
    skipped = read_skipped(database, webhook.id)
    assert skipped is not None and (skipped.count, skipped.first_at) == (1, skipped.last_at)
