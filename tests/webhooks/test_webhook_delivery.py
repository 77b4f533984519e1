"""The delivery loop against receivers of this machine. Spec §6.3, contract §6."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from recorder import clock, verify_signature
from recorder.access.workspaces import create_workspace
from recorder.audit.log import Origin
from recorder.models.webhook import WebhookCreate, WebhookCreated
from recorder.request_context import continue_request_context
from recorder.settings import Settings
from recorder.storage.database import Database
from recorder.tenant import Tenant
from recorder.webhooks.delivery_loop import POLL_S, DeliveryLoop
from recorder.webhooks.subscriptions import WebhookSecretBox, create_webhook
from tests.support.databases import create_file
from tests.support.delivery_loop import (
    AT_ONCE,
    BOX,
    CREATED,
    attempts,
    local_client,
    make_webhook,
    put_event,
    running_loop,
)
from tests.support.deployment_processes import ROOT
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Answer, Receiver, running_receiver

TAKEN = Answer(204)


def webhook_to(database: Database, workspace_id: str, receiver: Receiver) -> WebhookCreated:
    """Return a webhook that sends to a receiver."""
    return make_webhook(database, f"{receiver.url}/hooks", workspace_id=workspace_id, events=CREATED)


def statuses(database: Database, webhook: WebhookCreated) -> list[str]:
    """Return the statuses of all records of a webhook, oldest first."""
    return [row.status for row in attempts(database, webhook.id)]


def test_an_event_arrives_signed(database: Database, workspace_id: str) -> None:
    with running_receiver(TAKEN) as receiver, running_loop(database):
        webhook = webhook_to(database, workspace_id, receiver)
        with continue_request_context("req_cause"):
            event_id = put_event(database, workspace_id=workspace_id)
        wait_for(lambda: statuses(database, webhook) == ["succeeded"])
    [request] = receiver.received
    [row] = attempts(database, webhook.id)
    headers = request.headers
    assert verify_signature(request.body, headers["service-signature"], webhook.secret or "")
    assert (request.method, request.path, headers["content-type"]) == ("POST", "/hooks", "application/json")
    assert (headers["service-delivery-id"], headers["webhook-id"]) == (row.id, event_id)
    assert (headers["x-request-id"], orjson.loads(request.body)["id"]) == ("req_cause", event_id)


def test_until_it_is_taken_it_is_sent_again_byte_for_byte(database: Database, workspace_id: str) -> None:
    answers = (Answer(500), Answer(404), Answer(410), Answer(None), Answer(302), TAKEN)
    with running_receiver(*answers) as receiver, running_loop(database, schedule=AT_ONCE):
        webhook = webhook_to(database, workspace_id, receiver)
        put_event(database, workspace_id=workspace_id)
        wait_for(lambda: "succeeded" in statuses(database, webhook))
    rows = attempts(database, webhook.id)
    assert [row.status for row in rows] == ["failed"] * 5 + ["succeeded"]
    assert [row.error for row in rows] == [None, None, None, "connection", "redirect", None]
    assert len({request.body for request in receiver.received}) == 1
    assert [request.headers["service-delivery-id"] for request in receiver.received] == [
        row.id for row in rows
    ]


def test_after_seven_failures_it_is_given_up(database: Database, workspace_id: str) -> None:
    with running_receiver(Answer(503)) as receiver, running_loop(database, schedule=AT_ONCE):
        webhook = webhook_to(database, workspace_id, receiver)
        put_event(database, workspace_id=workspace_id)
        wait_for(lambda: "exhausted" in statuses(database, webhook))
    assert (len(receiver.received), statuses(database, webhook)) == (7, ["failed"] * 6 + ["exhausted"])


def test_an_address_that_became_blocked_is_a_failed_attempt(database: Database, workspace_id: str) -> None:
    webhook = make_webhook(database, "https://10.0.0.1/", workspace_id=workspace_id, events=CREATED)
    put_event(database, workspace_id=workspace_id)
    with running_loop(database, schedule=AT_ONCE):
        wait_for(lambda: "exhausted" in statuses(database, webhook))
    assert {row.error for row in attempts(database, webhook.id)} == {"blocked_address"}


def test_a_receiver_that_hangs_holds_up_nobody_else(database: Database, workspace_id: str) -> None:
    release = threading.Event()
    with running_receiver(TAKEN, hold=release) as slow, running_receiver(TAKEN) as quick:
        stuck = webhook_to(database, workspace_id, slow)
        for _ in range(40):
            put_event(database, workspace_id=workspace_id)
        swift = webhook_to(database, workspace_id, quick)
        with running_loop(database, slots=8):
            wait_for(lambda: slow.received)
            for _ in range(10):
                put_event(database, workspace_id=workspace_id)
            wait_for(lambda: statuses(database, swift) == ["succeeded"] * 10)
            assert not {"succeeded", "failed"} & set(statuses(database, stuck))
            release.set()


def test_an_attempt_begins_once_the_database_is_free(tmp_path: Path) -> None:
    # A lease that begins before a long wait would expire: the event would be sent again.
    database = Database(create_file(tmp_path))
    with database.transaction(write=True) as db:
        workspace_id = create_workspace(db, "acme", region="us", secret=b"tests").workspace_id
    with running_receiver(TAKEN) as receiver:
        webhook = webhook_to(database, workspace_id, receiver)
        put_event(database, workspace_id=workspace_id)
        with closing(database.raw_connection()) as other:
            other.execute("BEGIN IMMEDIATE")
            with running_loop(database):
                time.sleep(4 * POLL_S)
                free_ms = clock.now_ms()
                other.execute("COMMIT")
                wait_for(lambda: statuses(database, webhook) == ["succeeded"])
    [row] = attempts(database, webhook.id)
    assert row.begun_ms is not None and row.begun_ms >= free_ms
    database.close()


def test_two_loops_share_the_work_and_send_nothing_twice(database: Database, workspace_id: str) -> None:
    with running_receiver(TAKEN) as receiver, running_loop(database), running_loop(database):
        webhook = webhook_to(database, workspace_id, receiver)
        expected = Counter(put_event(database, workspace_id=workspace_id) for _ in range(60))
        wait_for(lambda: statuses(database, webhook) == ["succeeded"] * 60)
    assert Counter(request.headers["webhook-id"] for request in receiver.received) == expected


def test_one_that_is_stopped_lets_what_is_under_way_end(database: Database, workspace_id: str) -> None:
    release = threading.Event()
    with running_receiver(TAKEN, hold=release) as receiver:
        webhook = webhook_to(database, workspace_id, receiver)
        put_event(database, workspace_id=workspace_id)
        with running_loop(database):
            wait_for(lambda: receiver.received)
            threading.Timer(0.3, release.set).start()
    assert statuses(database, webhook) == ["succeeded"]


def test_what_is_cut_off_by_the_stop_is_a_failure_and_tried_again(
    database: Database, workspace_id: str
) -> None:
    release = threading.Event()
    with running_receiver(TAKEN, hold=release) as receiver:
        webhook = webhook_to(database, workspace_id, receiver)
        put_event(database, workspace_id=workspace_id)
        with running_loop(database, grace_s=0.1):
            wait_for(lambda: receiver.received)
        release.set()
    first, second = attempts(database, webhook.id)
    assert (first.status, first.error, second.status, second.begun_ms) == (
        "failed",
        "connection",
        "pending",
        None,
    )


def test_a_database_that_goes_away_is_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("away") / "recorder.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    with database.transaction(write=True) as db:
        workspace_id = create_workspace(db, "away", region="us", secret=b"tests").workspace_id
    with running_receiver(TAKEN) as receiver:
        webhook = webhook_to(database, workspace_id, receiver)
        put_event(database, workspace_id=workspace_id)
        database.close()
        hidden = path.rename(f"{path}.away")
        path.mkdir()
        with running_loop(database, lease_ms=60_000):
            time.sleep(0.2)
            path.rmdir()
            hidden.rename(path)
            wait_for(lambda: receiver.received)
        assert statuses(database, webhook) == ["succeeded"]
    database.close()


def test_an_outcome_is_kept_while_the_database_is_away(tmp_path: Path) -> None:
    path = tmp_path / "recorder.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    with database.transaction(write=True) as db:
        workspace_id = create_workspace(db, "away", region="us", secret=b"tests").workspace_id
    release = threading.Event()
    with running_receiver(TAKEN, hold=release) as receiver:
        webhook = webhook_to(database, workspace_id, receiver)
        put_event(database, workspace_id=workspace_id)
        with running_loop(database, lease_ms=60_000):
            wait_for(lambda: receiver.received)
            database.close()
            hidden = path.rename(f"{path}.away")
            path.mkdir()
            release.set()
            time.sleep(0.7)
            path.rmdir()
            hidden.rename(path)
            wait_for(lambda: statuses(database, webhook) == ["succeeded"])
    assert len(receiver.received) == 1
    database.close()


def test_the_setting_decides_how_often_a_delivery_is_tried(tmp_path: Path) -> None:
    database = Database(create_file(tmp_path))
    settings = Settings.from_env({}, data_dir=tmp_path)
    box = WebhookSecretBox(settings.secret)
    with database.transaction(write=True) as db:
        tenant = Tenant(
            create_workspace(db, "once", region="us", secret=settings.secret).workspace_id, "live"
        )
        spec = WebhookCreate(url="https://10.0.0.1/", events=list(CREATED))
        webhook = create_webhook(db, box, tenant, Origin.system(tenant.workspace_id, "tests"), spec)
    put_event(database, workspace_id=tenant.workspace_id)
    variables = {**os.environ, "RECORDER_WEBHOOK_ATTEMPTS": "1"}  # noqa: TID251
    words = [sys.executable, "-m", "recorder.cli", "deliver", "--data", str(tmp_path)]
    process = subprocess.Popen(words, cwd=ROOT, env=variables)
    try:
        wait_for(lambda: {"failed", "exhausted"} & set(statuses(database, webhook)))
    finally:
        process.terminate()
        process.wait()
    assert statuses(database, webhook) == ["exhausted"]
    database.close()


def test_new_work_is_looked_for_twice_a_second_at_least() -> None:
    assert POLL_S <= 0.5


def test_a_loop_without_work_ends_at_once(database: Database) -> None:
    async def run() -> float:
        stop = asyncio.Event()
        loop = asyncio.create_task(DeliveryLoop(database, local_client(), BOX).run(stop))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        stop.set()
        await loop
        return time.monotonic() - began

    assert asyncio.run(run()) < 5
