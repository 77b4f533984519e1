"""Delivery loop: a worker that dispatches events, sends attempts and stores their outcomes. Spec §6.3.

Several workers can run, on one machine or many: an attempt belongs to the worker that claimed it, and other
workers take over the attempts of a killed worker when their leases are over.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

import anyio.to_thread

from recorder import clock
from recorder.errors import Unavailable
from recorder.heartbeat import write_heartbeat
from recorder.net.outbound_client import OutboundClient, OutboundExchange
from recorder.net.outbound_guard import AddressGuard
from recorder.settings import Settings
from recorder.storage.database import Database, open_database
from recorder.storage.durable_files import keep_files_private
from recorder.webhooks.deliveries import DeliveryCleanup
from recorder.webhooks.delivery_attempts import (
    LEASE_MS,
    DeliveryClaim,
    DeliveryResult,
    claim_delivery_attempts,
    list_due_queues,
    settle_delivery_attempts,
)
from recorder.webhooks.delivery_scheduling import DeliverySchedule, DeliverySlots
from recorder.webhooks.dispatcher import OutboxDispatcher, has_outbox_events
from recorder.webhooks.subscriptions import WebhookSecretBox

log = logging.getLogger("recorder.webhooks")

#: Most attempts of a worker under way; each is a task and a socket.
SLOTS = 256
#: Time between two queries of a worker without work.
POLL_S = 0.5
# Attempts claimed by one transaction. A kill between that commit and the first byte sent costs each of them
# one attempt, so the batch is small.
_BATCH = 32
# Time for which outcomes are gathered before one commit stores them: each commit costs a sync.
_GATHER_S = 0.02
# Pause of a webhook without an attempt to claim: another worker has it, or its secret cannot be read.
_EMPTY_QUEUE_MS = 1_000
# Pause after a failed query.
_AWAY_S = 1.0
# Longest pause between two passes while there is more to do.
_LONGEST_PAUSE_S = 0.1
_GRACE_S = 5.0


@dataclass(frozen=True)
class _LoopPass:
    """Result of one transaction of the loop."""

    claims: list[DeliveryClaim] = field(default_factory=list)
    #: Whether another transaction would find more at once.
    has_more: bool = False
    #: Outcomes that a later transaction is to store.
    postponed: list[DeliveryResult] = field(default_factory=list)


class DeliveryLoop:
    """Worker that sends due attempts while `run` runs."""

    def __init__(
        self,
        database: Database,
        client: OutboundClient,
        box: WebhookSecretBox,
        *,
        schedule: DeliverySchedule | None = None,
        slots: int = SLOTS,
        lease_ms: int = LEASE_MS,
        grace_s: float = _GRACE_S,
    ) -> None:
        """Create a worker.

        Args:
            database: the deployment's database.
            client: sends the attempts.
            box: decrypts signing secrets.
            schedule: waits between the attempts of a delivery.
            slots: most attempts under way.
            lease_ms: time after which a claimed attempt counts as lost; longer than the client takes.
            grace_s: time for attempts under way after the stop; then they are cut off and count as failed.
        """
        self._database = database
        self._client = client
        self._box = box
        self._schedule = schedule or DeliverySchedule()
        self._dispatcher = OutboxDispatcher()
        self._slots = DeliverySlots(slots)
        self._lease_ms = lease_ms
        self._grace_s = grace_s
        self._sweep = DeliveryCleanup(database)
        self._tasks: set[asyncio.Task[None]] = set()
        #: Attempts that ended since the last pass; it frees their slots.
        self._ended: list[tuple[DeliveryClaim, OutboundExchange]] = []
        self._has_ended = asyncio.Event()
        #: Outcomes that are not stored yet.
        self._outcomes: list[DeliveryResult] = []
        self._pass_began_s = time.monotonic()

    @property
    def pass_s(self) -> float:
        """Seconds since the last pass began."""
        return time.monotonic() - self._pass_began_s

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set; attempts under way then get a few seconds."""
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                self._pass_began_s = time.monotonic()
                result = await self._run_pass(self._visit_database)
                for claim in result.claims:
                    self._start_attempt(claim)
                if not result.has_more:
                    await self._wait_for_work(stopping)
                elif self._database.is_sqlite:
                    # Writers of other processes try again from time to time, and must find the lock free.
                    await asyncio.sleep(min(self.pass_s, _LONGEST_PAUSE_S))
        finally:
            stopping.cancel()
            await self._finish_attempts()

    async def _run_pass(self, visit: Callable[[list[DeliveryResult]], _LoopPass]) -> _LoopPass:
        """Store outcomes and claim attempts; keep the outcomes while the database does not answer."""
        ended, self._ended = self._ended, []
        for claim, exchange in ended:
            self._slots.end(claim, is_success=exchange.is_success, duration_ms=exchange.duration_ms)
            self._outcomes.append(DeliveryResult(claim.id, claim.begun_ms, exchange))
        try:
            result = await anyio.to_thread.run_sync(visit, self._outcomes)
        except Unavailable:
            log.warning("the database does not answer; deliveries wait")
            await asyncio.sleep(_AWAY_S)
            return _LoopPass()
        self._outcomes = result.postponed
        return result

    def _visit_database(self, outcomes: list[DeliveryResult]) -> _LoopPass:
        """Store outcomes, dispatch events and claim attempts in one transaction."""
        self._sweep.step()
        if not outcomes and not self._has_work(clock.now()):
            return _LoopPass()
        with self._database.transaction(write=True) as db:
            # It may have waited as long for the database's lock as an attempt has time.
            now = clock.now()
            settled = settle_delivery_attempts(db, self._schedule, outcomes, now=now)
            self._dispatcher.note_ended(settled.last)
            has_more = self._dispatcher.dispatch(db)
            queues = list_due_queues(db, now_ms=clock.to_ms(now))
            wanted = self._slots.allot(queues, most=_BATCH, now_ms=clock.to_ms(now))
            claimed = claim_delivery_attempts(
                db, self._box, self._schedule, wanted, now=now, lease_ms=self._lease_ms
            )
        for webhook_id in claimed.empty:
            self._slots.rest(webhook_id, clock.to_ms(now) + _EMPTY_QUEUE_MS)
        is_full = len(claimed.claims) == _BATCH < self._slots.free
        has_more = has_more or is_full or claimed.has_cleared
        return _LoopPass(claimed.claims, has_more, settled.postponed)

    def _has_work(self, now: datetime) -> bool:
        """Return whether a write transaction would find something to do."""
        with self._database.transaction(write=False) as db:
            return has_outbox_events(db) or bool(
                self._slots.free and list_due_queues(db, now_ms=clock.to_ms(now))
            )

    def _start_attempt(self, claim: DeliveryClaim) -> None:
        self._slots.begin(claim)
        task = asyncio.create_task(self._attempt_delivery(claim))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt_delivery(self, claim: DeliveryClaim) -> None:
        """Send a claimed delivery, and note what the receiver answered."""
        exchange = OutboundExchange(error="connection")  # the outcome if this loop cuts it off
        try:
            exchange = await self._client.post(claim.url, claim.headers, claim.body)
        finally:
            self._ended.append((claim, exchange))
            self._has_ended.set()

    async def _wait_for_work(self, stopping: asyncio.Future[Literal[True]]) -> None:
        """Wait until an attempt ends or new work may be there."""
        ended = asyncio.ensure_future(self._has_ended.wait())
        await asyncio.wait((ended, stopping), timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if self._ended:
            await asyncio.sleep(_GATHER_S)
        self._has_ended.clear()

    async def _finish_attempts(self) -> None:
        """Wait for the attempts under way, cancel those that take too long, and store all outcomes."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._run_pass(self._store_outcomes)

    def _store_outcomes(self, outcomes: list[DeliveryResult]) -> _LoopPass:
        with self._database.transaction(write=True) as db:
            settle_delivery_attempts(db, self._schedule, outcomes, now=clock.now())
        return _LoopPass()


# A pass may wait thirty seconds for the database's lock without being stuck.
_LONGEST_PASS_S = 60.0
_BEAT_S = 1.0


def run_delivery_loop(settings: Settings, pulse: Path | None = None) -> None:
    """Send due attempts until SIGINT or SIGTERM; attempts under way then get a few seconds.

    Args:
        settings: the deployment.
        pulse: file that is touched every second while the loop goes on.

    Raises:
        NoDeployment: if the database is empty.
        InvalidAllowList: if the setting of addresses beyond the public ones cannot be read.
    """
    client = OutboundClient(AddressGuard.of(settings))
    keep_files_private()
    database = open_database(settings, create=False)
    try:
        schedule = DeliverySchedule(max_attempts=settings.webhook_attempts)
        loop = DeliveryLoop(database, client, WebhookSecretBox(settings.secret), schedule=schedule)
        asyncio.run(_run_loop_until_signal(loop, pulse))
    finally:
        database.close()


async def _run_loop_until_signal(loop: DeliveryLoop, pulse: Path | None) -> None:
    stop = asyncio.Event()
    beating = asyncio.create_task(_beat_for_delivery_loop(loop, pulse)) if pulse is not None else None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await loop.run(stop)
    finally:
        if beating is not None:
            beating.cancel()


async def _beat_for_delivery_loop(loop: DeliveryLoop, pulse: Path) -> None:
    while True:
        if loop.pass_s < _LONGEST_PASS_S:
            write_heartbeat(pulse)
        await asyncio.sleep(_BEAT_S)
