"""Deliveries to a receiver on this machine, against a bare loop of httpx that keeps no account. Spec §6.3.

Both send the same bodies, one connection each, with as many under way; ours also reads the outbox, signs, and
writes down each attempt before and after it is made.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
from sqlmodel import func, select

from benchmarks.figure_reports import Figure, at_least
from benchmarks.seeds import new_settings
from benchmarks.servers import serving
from recorder.access.workspaces import create_workspace
from recorder.audit.log import Origin
from recorder.ids import new_id
from recorder.models.webhook import DeliveryRow, WebhookCreate
from recorder.net.addresses import AllowList
from recorder.net.outbound_client import OutboundClient
from recorder.net.outbound_guard import AddressGuard
from recorder.settings import Settings
from recorder.storage.database import Database
from recorder.tenant import Tenant
from recorder.webhooks.delivery_loop import DeliveryLoop
from recorder.webhooks.outbox import add_outbox_event
from recorder.webhooks.subscriptions import WebhookSecretBox, create_webhook

UNDER_WAY = 64
_PATIENCE_S = 300
_METADATA = {"customer": "acme", "notes": "a sentence that somebody wrote about this run " * 20}


@dataclass(frozen=True)
class Pace:
    """Durations of a run."""

    per_second: float
    cpu_us: float


async def receive(scope: Any, receive: Any, send: Any) -> None:
    """Return the receiver: takes everything, says nothing."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        status = 200 if scope["method"] == "GET" else 204
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body"})


def receiver() -> Any:
    """Run as uvicorn's application."""
    return receive


def measure(*, quick: bool = False) -> list[Figure]:
    """Return deliveries a second, by those of the bare loop."""
    rounds, count = (3, 500) if quick else (5, 4_000)
    ours: list[Pace] = []
    bare: list[Pace] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        with serving(settings, "benchmarks.webhooks:receiver") as server:
            url = f"{server.url}/hooks"
            deliveries_of(settings, url, count=50)
            for _ in range(rounds):
                ours.append(deliveries_of(settings, url, count=count))
                bare.append(posts_of(url, count=count))
    return [
        Figure(
            name="webhooks / a bare httpx loop",
            unit="deliveries/s",
            ours=[pace.per_second for pace in ours],
            peer=[pace.per_second for pace in bare],
            peer_name="httpx, no keep-alive",
            goal=at_least(0.5),
            detail={
                "under way": UNDER_WAY,
                "CPU µs a delivery": [pace.cpu_us for pace in ours],
                "of the loop": [pace.cpu_us for pace in bare],
            },
        )
    ]


def deliveries_of(settings: Settings, url: str, *, count: int) -> Pace:
    """Deliver so many events of one webhook from the outbox on, and count the records afterwards.

    Raises:
        RuntimeError: if one was not delivered at its first attempt.
    """
    database = Database(settings.database_url)
    database.migrate()
    box = WebhookSecretBox(settings.secret)
    try:
        webhook_id = _fill_outbox(database, box, url, count)
        client = OutboundClient(AddressGuard(AllowList.parse(("loopback",))))
        # A webhook may have a quarter of the slots.
        loop = DeliveryLoop(database, client, box, slots=4 * UNDER_WAY)
        with _timed(count) as pace:
            asyncio.run(_deliver_all(loop, database, webhook_id, count))
        if _succeeded(database, webhook_id) != count:
            raise RuntimeError("Some of the events were not delivered.")
        return pace[0]
    finally:
        database.close()


def posts_of(url: str, *, count: int) -> Pace:
    """Return the pace of so many POST requests with a body of the same size."""
    body = orjson.dumps({"id": new_id("evt"), "type": "session.created", "data": _data()})
    with _timed(count) as pace:
        asyncio.run(_post_all(url, body, count))
    return pace[0]


def _fill_outbox(database: Database, box: WebhookSecretBox, url: str, count: int) -> str:
    with database.transaction(write=True) as db:
        workspace_id = create_workspace(db, new_id("wsp"), region="us", secret=b"bench").workspace_id
        spec = WebhookCreate(url=url, events=["session.created"])
        webhook = create_webhook(
            db, box, Tenant(workspace_id, "live"), Origin.system(workspace_id, "benchmark"), spec
        )
        for _ in range(count):
            add_outbox_event(
                db,
                tenant=Tenant(workspace_id, "live"),
                type="session.created",
                subject_id=new_id("ses"),
                data=_data(),
            )
    return webhook.id


def _data() -> dict[str, Any]:
    return {"session": {"id": new_id("ses"), "workflow": "benchmark", "metadata": _METADATA}}


async def _deliver_all(loop: DeliveryLoop, database: Database, webhook_id: str, count: int) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(loop.run(stop))
    await asyncio.to_thread(_wait, database, webhook_id, count)
    stop.set()
    await running


def _wait(database: Database, webhook_id: str, count: int) -> None:
    until = time.monotonic() + _PATIENCE_S
    while _succeeded(database, webhook_id) < count and time.monotonic() < until:
        time.sleep(0.05)


def _succeeded(database: Database, webhook_id: str) -> int:
    with database.transaction(write=False) as db:
        done = select(func.count()).select_from(DeliveryRow)
        return db.exec(done.filter_by(webhook_id=webhook_id, status="succeeded", attempt=1)).one()


async def _post_all(url: str, body: bytes, count: int) -> None:
    limits = httpx.Limits(max_connections=UNDER_WAY, max_keepalive_connections=0)
    left = iter(range(count))
    async with httpx.AsyncClient(limits=limits, trust_env=False, timeout=10) as client:

        async def post_some() -> None:
            for _ in left:
                answer = await client.post(url, content=body, headers={"Content-Type": "application/json"})
                answer.raise_for_status()

        await asyncio.gather(*(post_some() for _ in range(UNDER_WAY)))


@contextmanager
def _timed(count: int) -> Iterator[list[Pace]]:
    """Yield the duration of the block, known once it ended."""
    pace: list[Pace] = []
    began, worked = time.perf_counter(), time.process_time()
    yield pace
    cpu_us = (time.process_time() - worked) / count * 1e6
    pace.append(Pace(count / (time.perf_counter() - began), cpu_us))
