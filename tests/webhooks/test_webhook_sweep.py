"""Delivery records go after thirty days, with what none of them needs any more. Contract §6."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlmodel import insert, select, update

from recorder import clock
from recorder.access.workspaces import create_workspace
from recorder.audit.log import Origin
from recorder.ids import new_id
from recorder.models.operations import OutboxRow
from recorder.models.webhook import DeliveryRow, WebhookRow
from recorder.storage.database import Database
from recorder.tenant import Tenant
from recorder.webhooks.deliveries import redeliver, remove_old_deliveries
from recorder.webhooks.dispatcher import OutboxDispatcher
from recorder.webhooks.outbox import make_outbox_attempt
from recorder.webhooks.subscriptions import delete_webhook
from tests.support.delivery_loop import attempts, make_webhook, put_event

URL = "http://127.0.0.1:9/hooks"
CREATED = ("session.created",)
MONTH = timedelta(days=30)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def database(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Iterator[Database]:
    """Yield a database on each engine, empty of what other tests left."""
    result = Database(database_url)
    with result.transaction(write=True) as db:
        for table in (DeliveryRow, OutboxRow, WebhookRow):
            for row in db.exec(select(table)):
                db.delete(row)
    yield result
    result.close()


def deliver_one(database: Database, workspace_id: str, *, status: str = "succeeded") -> tuple[str, str]:
    """Create a webhook with one record of this status; return the ids of both."""
    webhook = make_webhook(database, URL, workspace_id=workspace_id, events=CREATED)
    put_event(database, workspace_id=workspace_id)
    with database.transaction(write=True) as db:
        OutboxDispatcher().dispatch(db)
        [row] = db.exec(select(DeliveryRow).filter_by(webhook_id=webhook.id))
        row.status = status
        db.add(row)
    return webhook.id, row.id


def sweep(database: Database, *, after: timedelta) -> None:
    """Sweep as often as there is something, so long from now."""
    while True:
        with database.transaction(write=True) as db:
            if not remove_old_deliveries(db, now=clock.now() + after):
                return


def bodies(database: Database) -> int:
    """Return the number of events that are still kept."""
    with database.transaction(write=False) as db:
        return len(db.exec(select(OutboxRow)).all())


def test_a_removal_in_one_workspace_leaves_the_records_of_others(
    database: Database, workspace_id: str
) -> None:
    with database.transaction(write=True) as db:
        second, third = (
            create_workspace(db, new_id("wsp"), region="us", secret=b"tests").workspace_id for _ in range(2)
        )
    ours, others, deleted = (deliver_one(database, each)[0] for each in (workspace_id, second, third))
    with database.transaction(write=True) as db:
        webhook = db.get_one(WebhookRow, deleted)
        webhook.deleted_at = clock.now()
        db.add(webhook)
        after = clock.now() + MONTH + MINUTE
        assert not remove_old_deliveries(db, now=after, workspace_id=workspace_id)
    assert [len(attempts(database, each)) for each in (ours, others, deleted)] == [0, 1, 1]
    with database.transaction(write=False) as db:
        assert {row.workspace_id for row in db.exec(select(OutboxRow))} == {second, third}


@pytest.mark.parametrize("status", ["succeeded", "failed", "exhausted"])
def test_a_record_is_kept_for_thirty_days_with_its_body(
    database: Database, workspace_id: str, status: str
) -> None:
    webhook_id, _ = deliver_one(database, workspace_id, status=status)
    sweep(database, after=MONTH - MINUTE)
    assert (len(attempts(database, webhook_id)), bodies(database)) == (1, 1)
    sweep(database, after=MONTH + MINUTE)
    assert (attempts(database, webhook_id), bodies(database)) == ([], 0)


def test_what_still_waits_to_be_sent_is_never_swept(database: Database, workspace_id: str) -> None:
    webhook_id, _ = deliver_one(database, workspace_id, status="pending")
    sweep(database, after=4 * MONTH)
    assert (len(attempts(database, webhook_id)), bodies(database)) == (1, 1)


def test_an_event_that_was_not_handed_out_yet_is_never_swept(database: Database, workspace_id: str) -> None:
    put_event(database, workspace_id=workspace_id)
    sweep(database, after=4 * MONTH)
    assert bodies(database) == 1


def test_a_body_stays_as_long_as_a_redelivery_needs_it(database: Database, workspace_id: str) -> None:
    webhook_id, delivery_id = deliver_one(database, workspace_id)
    with database.transaction(write=True) as db:
        again = redeliver(
            db, Tenant(workspace_id, "live"), Origin.system(workspace_id, "tests"), webhook_id, delivery_id
        )
    sweep(database, after=MONTH + MINUTE)
    assert [row.id for row in attempts(database, webhook_id)] == [again.id]
    assert bodies(database) == 1


def test_a_deleted_webhook_takes_its_records_along(database: Database, workspace_id: str) -> None:
    webhook_id, _ = deliver_one(database, workspace_id)
    other_id, _ = deliver_one(database, workspace_id)
    with database.transaction(write=True) as db:
        delete_webhook(db, Tenant(workspace_id, "live"), Origin.system(workspace_id, "tests"), webhook_id)
    sweep(database, after=9 * MINUTE)
    # Attempts that were under way may still be stored, and those that waited are removed with them.
    assert len(attempts(database, webhook_id)) == 2
    sweep(database, after=timedelta(hours=1))
    sweep(database, after=timedelta(hours=1))
    with database.transaction(write=False) as db:
        assert [row.id for row in db.exec(select(WebhookRow))] == [other_id]
    assert (attempts(database, webhook_id), len(attempts(database, other_id))) == ([], 1)


def test_all_of_many_records_of_a_deleted_webhook_go(database: Database, workspace_id: str) -> None:
    webhook_id, _ = deliver_one(database, workspace_id)
    put_event(database, workspace_id=workspace_id)
    with database.transaction(write=True) as db:
        OutboxDispatcher().dispatch(db)
        db.exec(update(DeliveryRow).values(status="succeeded"))
        delete_webhook(db, Tenant(workspace_id, "live"), Origin.system(workspace_id, "tests"), webhook_id)
    for _ in range(3):
        with database.transaction(write=True) as db:
            remove_old_deliveries(db, now=clock.now() + timedelta(hours=1), most=1)
    assert attempts(database, webhook_id) == []


def test_a_deletion_leaves_pending_attempts_to_sweeps_of_a_few_hundred(
    database: Database, workspace_id: str
) -> None:
    webhook = make_webhook(database, URL, workspace_id=workspace_id, events=CREATED)
    rows = [
        make_outbox_attempt(webhook.id, event_id="evt_1", event_type="session.created") for _ in range(1_200)
    ]
    with database.transaction(write=True) as db:
        db.connection().execute(insert(DeliveryRow), rows)
    before = attempts(database, webhook.id)
    with database.transaction(write=True) as db:
        delete_webhook(db, Tenant(workspace_id, "live"), Origin.system(workspace_id, "tests"), webhook.id)
    assert attempts(database, webhook.id) == before
    for left in (700, 200, 0):
        with database.transaction(write=True) as db:
            remove_old_deliveries(db, now=clock.now() + timedelta(hours=1))
        assert len(attempts(database, webhook.id)) == left
    with database.transaction(write=False) as db:
        assert db.get(WebhookRow, webhook.id) is None


def test_a_sweep_goes_step_by_step(database: Database, workspace_id: str) -> None:
    webhook_id, delivery_id = deliver_one(database, workspace_id)
    for _ in range(2):
        with database.transaction(write=True) as db:
            redeliver(
                db,
                Tenant(workspace_id, "live"),
                Origin.system(workspace_id, "tests"),
                webhook_id,
                delivery_id,
            )
    with database.transaction(write=True) as db:
        db.exec(update(DeliveryRow).values(status="succeeded"))
    with database.transaction(write=True) as db:
        assert remove_old_deliveries(db, now=clock.now() + MONTH + MINUTE, most=2)
    sweep(database, after=MONTH + MINUTE)
    assert (attempts(database, webhook_id), bodies(database)) == ([], 0)
