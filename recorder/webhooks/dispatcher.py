"""Dispatcher: assigns events of the outbox to webhooks, workspaces in turn. Spec §6.1, contract §6."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Update, bindparam, case, delete, exists, insert, select, text, update
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import clock, limits
from recorder.fair_scheduling import LeastCostScheduler
from recorder.models.operations import OutboxRow
from recorder.models.webhook import DeliveryRow, WebhookRow
from recorder.webhooks.outbox import encode_outbox_event, make_outbox_attempt
from recorder.webhooks.pending_counts import PendingCounts
from recorder.webhooks.subscriptions import SKIPPED_FOR

log = logging.getLogger("recorder.webhooks")

#: Most events of one transaction, and the attempts after which it takes no further event: it must be short.
_EVENTS = 100
_ATTEMPTS = 500

# A loose index scan: one step for each workspace with waiting events, however many those are.
_WAITING_WORKSPACES = text(
    """
    WITH RECURSIVE waiting(workspace_id) AS (
        SELECT min(workspace_id) FROM outbox WHERE dispatched_at IS NULL
        UNION ALL
        SELECT (SELECT min(o.workspace_id) FROM outbox o
                WHERE o.dispatched_at IS NULL AND o.workspace_id > waiting.workspace_id)
        FROM waiting WHERE waiting.workspace_id IS NOT NULL
    )
    SELECT workspace_id FROM waiting WHERE workspace_id IS NOT NULL
    """
)
# Without model objects, which take ten times as long for each row.
_WEBHOOKS_OF_WORKSPACE = select(
    col(WebhookRow.id),
    col(WebhookRow.mode),
    col(WebhookRow.events),
    col(WebhookRow.created_at),
    col(WebhookRow.skipped_last_at),
).where(col(WebhookRow.workspace_id) == bindparam("workspace_id"), col(WebhookRow.deleted_at).is_(None))
_Subscriber = Row[*tuple[Any, ...]]
_EVENTS_OF_WORKSPACE = (
    select(OutboxRow)
    .where(col(OutboxRow.workspace_id) == bindparam("workspace_id"), col(OutboxRow.dispatched_at).is_(None))
    .order_by(col(OutboxRow.id))
    .limit(bindparam("count"))
    .with_for_update(skip_locked=True)
)


class OutboxDispatcher:
    """Dispatcher that creates attempts for waiting events; each worker has one, and several share the outbox.

    Workspaces take turns by the attempts that their events make. A webhook with as many pending attempts as
    it may have gets no event until some of them end; the events that it does not get are counted.
    """

    def __init__(self, *, most_pending: int = limits.PENDING_DELIVERIES) -> None:
        self._most_pending = most_pending
        self._scheduler = LeastCostScheduler[str]()
        self._pending = PendingCounts()

    def dispatch(self, db: DbSession) -> bool:
        """Dispatch some events to the webhooks that existed when they happened, a workspace's oldest first.

        Events that no webhook takes are deleted. Needs a write transaction; workers do not wait for each
        other.

        Returns:
            Whether more may be waiting.
        """
        waiting = list(db.connection().execute(_WAITING_WORKSPACES).scalars())
        self._scheduler.set_waiting(waiting)
        chosen = self._scheduler.sort_waiting()[:_EVENTS]
        batch = _DispatchBatch()
        share = _EVENTS // max(1, len(chosen))
        queues = {key: self._dispatch_workspace(db, batch, key, limit=share) for key in chosen}
        while len(batch.attempts) < _ATTEMPTS and (key := self._scheduler.find_next(queues)) is not None:
            cost = next(queues[key], None)
            if cost is None:
                del queues[key]
            else:
                self._scheduler.add_cost(key, cost)
        batch.store(db)
        self._pending.add(attempt["webhook_id"] for attempt in batch.attempts)
        return batch.has_more or bool(queues) or len(waiting) > len(chosen)

    def note_ended(self, webhook_ids: Iterable[str]) -> None:
        """Note an attempt of each of these webhooks that ended and that no other one follows."""
        self._pending.remove(webhook_ids)

    def _dispatch_workspace(
        self, db: DbSession, batch: "_DispatchBatch", workspace_id: str, *, limit: int
    ) -> Iterator[int]:
        """Add events of a workspace to a batch; yield the cost of each."""
        webhooks = db.connection().execute(_WEBHOOKS_OF_WORKSPACE, {"workspace_id": workspace_id}).all()
        pending = self._pending.read(db, [webhook.id for webhook in webhooks])
        room = {webhook_id: self._most_pending - count for webhook_id, count in pending.items()}
        # No more than the batch can take, if each webhook takes all of them.
        limit = min(limit, 1 + _ATTEMPTS // max(1, sum(left > 0 for left in room.values())))
        values = {"workspace_id": workspace_id, "count": limit}
        events = db.scalars(_EVENTS_OF_WORKSPACE, values).all()
        batch.has_more |= len(events) == limit
        for event in events:
            subscribers = [row for row in webhooks if _is_outbox_event_subscribed(row, event)]
            takers = [row for row in subscribers if room[row.id] > 0]
            batch.skip(event, [row for row in subscribers if room[row.id] <= 0])
            batch.add(event, takers)
            for row in takers:
                room[row.id] -= 1
            yield 1 + len(takers)


@dataclass
class _SkippedEvents:
    """Events that a webhook does not get."""

    first_at: datetime
    last_at: datetime
    count: int


class _DispatchBatch:
    """Rows that one transaction writes."""

    def __init__(self) -> None:
        self.attempts: list[dict[str, Any]] = []
        #: Whether a workspace may have further events.
        self.has_more = False
        self._taken: list[dict[str, Any]] = []
        self._untaken: list[str] = []
        self._skipped: dict[str, _SkippedEvents] = {}

    def add(self, event: OutboxRow, webhooks: Sequence[_Subscriber]) -> None:
        """Add an event with an attempt for each webhook that takes it."""
        if not webhooks:
            self._untaken.append(event.id)
            return
        self.attempts += [_make_dispatched_attempt(webhook.id, event) for webhook in webhooks]
        body = encode_outbox_event(event)
        self._taken.append({"event_id": event.id, "dispatched_at": clock.now(), "body": body})

    def skip(self, event: OutboxRow, webhooks: Sequence[_Subscriber]) -> None:
        """Count an event for each webhook that does not get it."""
        for webhook in webhooks:
            skipped = self._skipped.get(webhook.id)
            if skipped is not None:
                skipped.last_at, skipped.count = event.created_at, skipped.count + 1
                continue
            self._skipped[webhook.id] = _SkippedEvents(event.created_at, event.created_at, 1)
            if webhook.skipped_last_at is None:
                names = {"webhook_id": webhook.id}
                log.warning("a webhook has too many pending attempts; it skips events", extra=names)

    def store(self, db: DbSession) -> None:
        """Write the rows."""
        # Bulk statements without model objects: ten times as fast for each row.
        connection = db.connection()
        if self.attempts:
            connection.execute(insert(DeliveryRow), self.attempts)
        if self._taken:
            connection.execute(
                update(OutboxRow).where(col(OutboxRow.id) == bindparam("event_id")), self._taken
            )
        if self._untaken:
            connection.execute(delete(OutboxRow).where(col(OutboxRow.id).in_(self._untaken)))
        if self._skipped:
            # Sorted, since other workers lock the same rows.
            values = [{"webhook": key, **asdict(self._skipped[key])} for key in sorted(self._skipped)]
            connection.execute(_make_skip_update(), values)


def _make_skip_update() -> Update:
    """Return the statement that adds skipped events to a webhook; those of long ago are forgotten."""
    stored = WebhookRow.__table__.c  # type: ignore[attr-defined]
    is_recent = stored.skipped_last_at >= clock.now() - SKIPPED_FOR
    first_at = bindparam("first_at", type_=stored.skipped_first_at.type)
    return (
        update(WebhookRow)
        .where(stored.id == bindparam("webhook"))
        .values(
            skipped_count=case((is_recent, stored.skipped_count), else_=0) + bindparam("count"),
            skipped_first_at=case((is_recent, stored.skipped_first_at), else_=first_at),
            skipped_last_at=bindparam("last_at", type_=stored.skipped_last_at.type),
        )
    )


def _is_outbox_event_subscribed(webhook: _Subscriber, event: OutboxRow) -> bool:
    is_older = webhook.mode == event.mode and webhook.created_at <= event.created_at
    return is_older and event.type in webhook.events


def _make_dispatched_attempt(webhook_id: str, event: OutboxRow) -> dict[str, Any]:
    # Due since the event happened, so that the oldest event is sent first.
    return make_outbox_attempt(
        webhook_id, event_id=event.id, event_type=event.type, due_ms=clock.to_ms(event.created_at)
    )


def has_outbox_events(db: DbSession) -> bool:
    """Return whether events wait in the outbox."""
    waiting = select(exists(select(col(OutboxRow.id)).where(col(OutboxRow.dispatched_at).is_(None))))
    return bool(db.scalars(waiting).one())
