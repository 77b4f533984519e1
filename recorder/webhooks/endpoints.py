"""Webhooks: made, listed, given new secrets, deleted. Spec §2.4, §4.4; contract §6."""

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select
from sqlmodel.sql.expression import SelectOfScalar

from recorder import clock, limits
from recorder.audit.log import Action, Origin, record
from recorder.errors import LimitReached, NotFound, Problem, ValidationFailed
from recorder.ids import is_id, new_timed_id
from recorder.models.webhook import (
    DeliveryRow,
    RotatedSecret,
    Webhook,
    WebhookCreate,
    WebhookCreated,
    WebhookRow,
    WebhookSecretRow,
    WebhookUpdate,
)
from recorder.models.workspace import WorkspaceRow
from recorder.tenant import Tenant
from recorder.webhooks.catalogue import EVENT_TYPES
from recorder.webhooks.secrets import SecretBox, add_secret


def check_events(events: list[str]) -> None:
    """Refuse event types that the catalogue does not name; there is no `*`.

    Raises:
        ValidationFailed: if there is one.
    """
    text = "Each of events is one of GET /v1/event_types."
    problems = [
        Problem("body", f"/events/{index}", "invalid_value", text)
        for index, type in enumerate(events)
        if type not in EVENT_TYPES
    ]
    if problems:
        raise ValidationFailed(problems)


def create_webhook(
    db: DbSession, box: SecretBox, tenant: Tenant, origin: Origin, spec: WebhookCreate
) -> WebhookCreated:
    """Make a webhook whose URL was checked, and its secret.

    Raises:
        LimitReached: if the workspace has a hundred.
    """
    _require_room(db, tenant.workspace_id)
    webhook_id, now = new_timed_id("whk")
    row = WebhookRow(
        id=webhook_id,
        workspace_id=tenant.workspace_id,
        mode=tenant.mode,
        url=spec.url,
        events=list(dict.fromkeys(spec.events)),
        description=spec.description,
        created_at=now,
    )
    db.add(row)
    secret = add_secret(db, box, webhook_id, now=now)
    # The URL is not noted: what people put into it is often a secret too.
    _record(db, origin, "webhook.create", webhook_id, {"events": row.events, "mode": tenant.mode})
    return WebhookCreated(id=webhook_id, url=row.url, events=row.events, secret=secret)


def find_webhook(db: DbSession, tenant: Tenant, webhook_id: str, *, lock: bool = False) -> WebhookRow:
    """A webhook that the caller may see.

    Args:
        lock: hold the row until the transaction ends.

    Raises:
        NotFound: if it is missing, or of another workspace or mode.
    """
    if not is_id(webhook_id, "whk"):
        raise NotFound("webhook")
    statement = _living(tenant).where(WebhookRow.id == webhook_id)
    row = db.exec(statement.with_for_update() if lock else statement).one_or_none()
    if row is None:
        raise NotFound("webhook")
    return row


def list_webhooks(db: DbSession, tenant: Tenant, *, before_id: str | None, limit: int) -> list[Webhook]:
    """Webhooks, newest first, from behind `before_id` on."""
    statement = _living(tenant)
    if before_id is not None:
        statement = statement.where(col(WebhookRow.id) < before_id)
    rows = db.exec(statement.order_by(col(WebhookRow.id).desc()).limit(limit))
    return [to_wire(row) for row in rows]


def update_webhook(
    db: DbSession, tenant: Tenant, origin: Origin, webhook_id: str, change: WebhookUpdate
) -> Webhook:
    """Change a webhook whose new URL was checked; its secrets and deliveries stay.

    Deliveries that wait go to the new URL, also those of event types that are not listed any more.

    Raises:
        NotFound: if there is no such webhook.
    """
    row = find_webhook(db, tenant, webhook_id, lock=True)
    changes = change.model_dump(exclude_none=True)
    if "events" in changes:
        changes["events"] = list(dict.fromkeys(changes["events"]))
    changed = sorted(name for name, value in changes.items() if getattr(row, name) != value)
    if changed:
        for name in changed:
            setattr(row, name, changes[name])
        db.add(row)
        # The URL is not noted: what people put into it is often a secret too.
        details: dict[str, object] = {"changed": changed, "events": row.events}
        _record(db, origin, "webhook.update", row.id, details)
    return to_wire(row)


def rotate_secret(
    db: DbSession, box: SecretBox, tenant: Tenant, origin: Origin, webhook_id: str
) -> RotatedSecret:
    """Give a webhook a new secret; the old one signs beside it for 24 hours.

    Raises:
        NotFound: if there is no such webhook.
        TooManySecrets: if ten are valid already.
    """
    row = find_webhook(db, tenant, webhook_id, lock=True)
    secret = add_secret(db, box, row.id, now=clock.now())
    _record(db, origin, "webhook.rotate_secret", row.id, {})
    return RotatedSecret(id=row.id, secret=secret)


def delete_webhook(db: DbSession, tenant: Tenant, origin: Origin, webhook_id: str) -> None:
    """Remove a webhook with its secrets and what still waited to be sent; its records go with the next sweep.

    Raises:
        NotFound: if there is no such webhook.
    """
    row = find_webhook(db, tenant, webhook_id, lock=True)
    row.deleted_at = clock.now()
    db.add(row)
    db.exec(delete(WebhookSecretRow).where(col(WebhookSecretRow.webhook_id) == row.id))
    waiting = select(DeliveryRow.id).filter_by(webhook_id=row.id, status="pending")
    # In the order in which a worker locks them that is about to settle some.
    waiting = waiting.order_by(col(DeliveryRow.id)).with_for_update()
    db.exec(delete(DeliveryRow).where(col(DeliveryRow.id).in_(waiting)))
    _record(db, origin, "webhook.delete", row.id, {})


def to_wire(row: WebhookRow) -> Webhook:
    """The webhook as it is read back: without its secret."""
    return Webhook.model_validate(row.model_dump(include=set(Webhook.model_fields)))


def _living(tenant: Tenant) -> SelectOfScalar[WebhookRow]:
    return select(WebhookRow).filter_by(workspace_id=tenant.workspace_id, mode=tenant.mode, deleted_at=None)


def _require_room(db: DbSession, workspace_id: str) -> None:
    # Whoever else makes a webhook waits here until this transaction ends, and then counts it.
    db.exec(select(WorkspaceRow.id).filter_by(id=workspace_id).with_for_update()).one()
    of_both_modes = {"workspace_id": workspace_id, "deleted_at": None}
    count = db.exec(select(func.count()).select_from(WebhookRow).filter_by(**of_both_modes)).one()
    if count >= limits.WEBHOOKS_PER_WORKSPACE:
        raise LimitReached("webhooks", limits.WEBHOOKS_PER_WORKSPACE)


def _record(
    db: DbSession, origin: Origin, action: Action, webhook_id: str, details: dict[str, object]
) -> None:
    record(db, origin, action, resource_type="webhook", resource_id=webhook_id, details=details)
