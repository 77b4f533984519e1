"""A delivery loop in a thread of the test, and webhooks to deliver to."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlmodel import select

from recorder.access.workspaces import create_workspace
from recorder.audit.log import Origin
from recorder.ids import new_id
from recorder.models.webhook import DeliveryRow, WebhookCreate, WebhookCreated
from recorder.net.addresses import AllowList
from recorder.net.outbound_client import OutboundClient
from recorder.net.outbound_guard import AddressGuard
from recorder.storage.database import Database
from recorder.tenant import Tenant
from recorder.webhooks.delivery_loop import DeliveryLoop
from recorder.webhooks.delivery_scheduling import DeliverySchedule
from recorder.webhooks.outbox import add_outbox_event
from recorder.webhooks.subscriptions import WebhookSecretBox, create_webhook

BOX = WebhookSecretBox(b"tests")
#: Without waits between attempts.
AT_ONCE = DeliverySchedule(waits_s=(0.0,) * 7)
CREATED = ("session.created",)


@pytest.fixture
def workspace_id(database: Database) -> str:
    """Return a workspace of its own for each test."""
    with database.transaction(write=True) as db:
        return create_workspace(db, new_id("wsp"), region="us", secret=b"tests").workspace_id


def local_client(*listed: str, **options: Any) -> OutboundClient:
    """Return a client that calls this machine alone, and may keep the answers of what is listed."""
    return OutboundClient(AddressGuard(AllowList.parse(("loopback", *listed))), **options)


@contextmanager
def running_loop(
    database: Database, *, box: WebhookSecretBox = BOX, **options: Any
) -> Iterator[DeliveryLoop]:
    """Deliver while the block runs."""
    loop = DeliveryLoop(database, options.pop("client", None) or local_client(), box, **options)
    stop: list[Callable[[], object]] = []
    started = threading.Event()

    async def run() -> None:
        stopping = asyncio.Event()
        here = asyncio.get_running_loop()
        stop.append(lambda: here.call_soon_threadsafe(stopping.set))
        started.set()
        await loop.run(stopping)

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="deliveries")
    thread.start()
    started.wait()
    try:
        yield loop
    finally:
        stop[0]()
        thread.join(20)
    assert not thread.is_alive()


def make_webhook(
    database: Database, url: str, *, workspace_id: str, mode: str = "live", events: tuple[str, ...]
) -> WebhookCreated:
    """Return a webhook of a workspace that is there."""
    with database.transaction(write=True) as db:
        spec = WebhookCreate(url=url, events=list(events))
        return create_webhook(db, BOX, Tenant(workspace_id, mode), Origin.system(workspace_id, "tests"), spec)


def put_event(
    database: Database,
    type: str = "session.created",
    *,
    workspace_id: str,
    mode: str = "live",
    data: dict[str, Any] | None = None,
    subject_id: str | None = None,
) -> str:
    """Add an event to the outbox; return its id."""
    with database.transaction(write=True) as db:
        row = add_outbox_event(
            db,
            tenant=Tenant(workspace_id, mode),
            type=type,
            subject_id=subject_id or new_id("ses"),
            data=data or {"session": {"id": "ses_1"}},
        )
        return row.id


def attempts(database: Database, webhook_id: str) -> list[DeliveryRow]:
    """Return all records of a webhook, oldest first."""
    with database.transaction(write=False) as db:
        return list(db.exec(select(DeliveryRow).filter_by(webhook_id=webhook_id).order_by(DeliveryRow.id)))
