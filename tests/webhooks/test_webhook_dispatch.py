"""Outbox → deliveries: each event once for each webhook that takes it. Contract §6."""

import threading
from collections import Counter
from datetime import timedelta

import orjson
import pytest
from sqlmodel import col, select

from recorder import clock
from recorder.access.workspaces import create_workspace
from recorder.audit.log import Origin
from recorder.ids import new_id
from recorder.models.operations import OutboxRow
from recorder.models.webhook import DeliveryRow, WebhookRow
from recorder.request_context import continue_request_context
from recorder.storage.database import Database
from recorder.tenant import Tenant
from recorder.webhooks.dispatcher import OutboxDispatcher, has_outbox_events
from recorder.webhooks.subscriptions import delete_webhook
from tests.support.delivery_loop import CREATED, attempts, make_webhook, put_event

URL = "http://127.0.0.1:9/hooks"


def dispatch(database: Database) -> None:
    """Dispatch all events that wait."""
    while True:
        with database.transaction(write=True) as db:
            if not OutboxDispatcher().dispatch(db) and not has_outbox_events(db):
                return


def find_event(database: Database, event_id: str) -> OutboxRow | None:
    """Return an event as it is in the outbox."""
    with database.transaction(write=False) as db:
        return db.get(OutboxRow, event_id)


def test_each_event_becomes_one_pending_attempt_for_each_webhook_that_takes_it(
    database: Database, workspace_id: str
) -> None:
    first, second = (make_webhook(database, URL, workspace_id=workspace_id, events=CREATED) for _ in "ab")
    event_id = put_event(database, workspace_id=workspace_id)
    dispatch(database)
    dispatch(database)
    results = [*attempts(database, first.id), *attempts(database, second.id)]
    assert [(row.event_id, row.attempt, row.status, row.trigger) for row in results] == [
        (event_id, 1, "pending", "automatic")
    ] * 2


def test_the_body_is_frozen_with_id_type_time_and_data(database: Database, workspace_id: str) -> None:
    make_webhook(database, URL, workspace_id=workspace_id, events=CREATED)
    event_id = put_event(database, workspace_id=workspace_id, data={"session": {"id": "ses_9"}})
    dispatch(database)
    row = find_event(database, event_id)
    assert row is not None and row.body is not None
    assert orjson.loads(row.body) == {
        "id": event_id,
        "type": "session.created",
        "created_at": clock.to_iso(row.created_at),
        "data": {"session": {"id": "ses_9"}},
    }


def test_an_event_that_nobody_takes_goes(database: Database, workspace_id: str) -> None:
    make_webhook(database, URL, workspace_id=workspace_id, events=("session.sealed",))
    event_id = put_event(database, workspace_id=workspace_id)
    dispatch(database)
    assert find_event(database, event_id) is None


def test_events_stay_in_their_workspace_and_mode(database: Database, workspace_id: str) -> None:
    with database.transaction(write=True) as db:
        elsewhere = create_workspace(db, new_id("wsp"), region="us", secret=b"tests").workspace_id
    webhook = make_webhook(database, URL, workspace_id=workspace_id, events=CREATED)
    put_event(database, workspace_id=elsewhere)
    put_event(database, workspace_id=workspace_id, mode="test")
    ours = put_event(database, workspace_id=workspace_id)
    dispatch(database)
    assert [row.event_id for row in attempts(database, webhook.id)] == [ours]


def test_a_webhook_takes_no_event_from_before_it_was_there(database: Database, workspace_id: str) -> None:
    before = put_event(database, workspace_id=workspace_id)
    webhook = make_webhook(database, URL, workspace_id=workspace_id, events=CREATED)
    with database.transaction(write=True) as db:
        row = db.get_one(WebhookRow, webhook.id)
        row.created_at += timedelta(milliseconds=1)
        db.add(row)
    dispatch(database)
    assert attempts(database, webhook.id) == []
    assert find_event(database, before) is None


def test_a_deleted_webhook_takes_nothing_more(database: Database, workspace_id: str) -> None:
    webhook = make_webhook(database, URL, workspace_id=workspace_id, events=CREATED)
    put_event(database, workspace_id=workspace_id)
    with database.transaction(write=True) as db:
        delete_webhook(db, Tenant(workspace_id, "live"), Origin.system(workspace_id, "tests"), webhook.id)
    dispatch(database)
    assert attempts(database, webhook.id) == []


def test_the_request_that_brought_an_event_about_is_noted(database: Database, workspace_id: str) -> None:
    make_webhook(database, URL, workspace_id=workspace_id, events=CREATED)
    with continue_request_context("req_1"):
        event_id = put_event(database, workspace_id=workspace_id)
    row = find_event(database, event_id)
    assert row is not None and row.request_id == "req_1"


def test_workers_that_dispatch_at_once_hand_out_each_event_once(
    database: Database, workspace_id: str
) -> None:
    webhook = make_webhook(database, URL, workspace_id=workspace_id, events=CREATED)
    expected = {put_event(database, workspace_id=workspace_id) for _ in range(250)}
    workers = [threading.Thread(target=dispatch, args=(database,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    result = Counter(row.event_id for row in attempts(database, webhook.id))
    assert result == Counter(expected)


def test_a_transaction_that_fails_hands_out_nothing(database: Database, workspace_id: str) -> None:
    webhook = make_webhook(database, URL, workspace_id=workspace_id, events=CREATED)
    event_id = put_event(database, workspace_id=workspace_id)
    with pytest.raises(ZeroDivisionError), database.transaction(write=True) as db:
        OutboxDispatcher().dispatch(db)
        raise ZeroDivisionError
    assert attempts(database, webhook.id) == []
    dispatch(database)
    assert [row.event_id for row in attempts(database, webhook.id)] == [event_id]


def test_a_transaction_stays_short_however_many_webhooks_there_are(
    database: Database, workspace_id: str
) -> None:
    for _ in range(20):
        make_webhook(database, URL, workspace_id=workspace_id, events=CREATED)
    for _ in range(60):
        put_event(database, workspace_id=workspace_id)
    with database.transaction(write=True) as db:
        assert OutboxDispatcher().dispatch(db)
        made = select(DeliveryRow.id).join(WebhookRow, col(WebhookRow.id) == col(DeliveryRow.webhook_id))
        assert 500 <= len(db.exec(made.where(WebhookRow.workspace_id == workspace_id)).all()) < 600
