"""Webhooks and their signing secrets: creation, listing, change and deletion. Spec §2.4, §4.4, §6.4.

Secrets are stored encrypted; a rotated secret signs beside the new one for a day. Contract §6.
"""

import base64
import logging
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, or_, select
from sqlmodel.sql.expression import SelectOfScalar

from recorder import clock, limits
from recorder.audit.log import Action, Origin, record_audit_entry
from recorder.encryption import DecryptionFailed, decrypt, encrypt
from recorder.errors import Invalid, LimitReached, NotFound, Problem, ValidationFailed
from recorder.hashing import compute_keyed_digest
from recorder.ids import is_id, new_timed_id
from recorder.models.webhook import (
    RotatedSecret,
    SkippedEvents,
    Webhook,
    WebhookCreate,
    WebhookCreated,
    WebhookRow,
    WebhookSecretRow,
    WebhookUpdate,
)
from recorder.models.workspace import WorkspaceRow
from recorder.storage.list_pages import FetchedPage, fetch_newest_rows
from recorder.tenant import Tenant
from recorder.webhooks.catalogue import EVENT_TYPES
from recorder.webhooks.repeated_log_lines import RepeatedLogLine
from recorder.webhooks.signing import SECRET_PREFIX

#: While attempts wait, the secret is read each second.
_UNREADABLE = RepeatedLogLine(
    logging.ERROR, "a webhook's secret cannot be read: restore RECORDER_SECRET, or rotate the secret"
)

_RANDOM_BYTES = 32
_PURPOSE = "webhook-secrets"
_KEY_ID_CHARACTERS = 8
_VALID_AT_ONCE = 10
#: Skipped events are shown for so long after the last of them, as long as delivery records are kept.
SKIPPED_FOR = timedelta(days=limits.DELIVERY_DAYS)


class WebhookSecretBox:
    """Encryption of signing secrets under a key of the deployment; each is bound to its webhook."""

    def __init__(self, deployment_secret: bytes) -> None:
        self._deployment_secret = deployment_secret
        #: Id of the key, by which a changed deployment secret is detected.
        self.key_id = compute_keyed_digest(deployment_secret, "webhook-secrets-id", b"").hex()[
            :_KEY_ID_CHARACTERS
        ]

    def encrypt_secret(self, secret: str, webhook_id: str) -> bytes:
        """Encrypt a secret; return nonce and ciphertext."""
        return encrypt(self._deployment_secret, _PURPOSE, secret.encode(), owner_id=webhook_id)

    def decrypt_secret(self, row: WebhookSecretRow) -> str | None:
        """Decrypt the secret of a row; return None where another deployment secret encrypted it."""
        try:
            secret = decrypt(self._deployment_secret, _PURPOSE, row.ciphertext, owner_id=row.webhook_id)
            return secret.decode()
        except DecryptionFailed:
            _UNREADABLE.add(row.webhook_id, key_id=row.key_id)
            return None


class TooManySecrets(Invalid):
    """More secrets of a webhook are valid than may sign at once."""

    code = "limit_reached"
    title = "Limit reached"

    def __init__(self) -> None:
        super().__init__(f"At most {_VALID_AT_ONCE} secrets sign at once; rotate again tomorrow.")


def add_webhook_secret(db: DbSession, box: WebhookSecretBox, webhook_id: str, *, now: datetime) -> str:
    """Add a secret to a webhook, whose row is new or locked; older secrets sign for 24 hours more.

    Raises:
        TooManySecrets: if ten are valid.
    """
    old = list(db.exec(_select_webhook_secrets([webhook_id])))
    valid = [row for row in old if row.expires_at is None or row.expires_at > now]
    if len(valid) >= _VALID_AT_ONCE:
        raise TooManySecrets
    for row in old:
        if row not in valid:
            db.delete(row)
        elif row.expires_at is None:
            row.expires_at = now + timedelta(hours=limits.WEBHOOK_SECRET_HOURS)
            db.add(row)
    secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_RANDOM_BYTES)).decode()
    db.add(
        WebhookSecretRow(
            webhook_id=webhook_id,
            number=1 + max((row.number for row in old), default=0),
            key_id=box.key_id,
            ciphertext=box.encrypt_secret(secret, webhook_id),
            created_at=now,
        )
    )
    return secret


def read_webhook_secrets(
    db: DbSession, box: WebhookSecretBox, webhook_ids: Iterable[str], *, now: datetime
) -> dict[str, list[str]]:
    """Return the secrets that sign now, by webhook, the newest first; webhooks without one are left out."""
    valid = or_(col(WebhookSecretRow.expires_at).is_(None), col(WebhookSecretRow.expires_at) > now)
    secrets_by_webhook: dict[str, list[str]] = {}
    for row in db.exec(_select_webhook_secrets(list(webhook_ids)).where(valid)):
        secret = box.decrypt_secret(row)
        if secret is not None:
            secrets_by_webhook.setdefault(row.webhook_id, []).append(secret)
    return secrets_by_webhook


def _select_webhook_secrets(webhook_ids: list[str]) -> SelectOfScalar[WebhookSecretRow]:
    wanted = select(WebhookSecretRow).where(col(WebhookSecretRow.webhook_id).in_(webhook_ids))
    return wanted.order_by(col(WebhookSecretRow.number).desc())


def check_event_types(events: list[str]) -> None:
    """Check that the catalogue names all event types; there is no `*`.

    Raises:
        ValidationFailed: if it does not name one of them.
    """
    text = f"Unknown event type. Allowed here: {', '.join(sorted(EVENT_TYPES))}."
    problems = [
        Problem("body", f"/events/{index}", "invalid_value", text)
        for index, type in enumerate(events)
        if type not in EVENT_TYPES
    ]
    if problems:
        raise ValidationFailed(problems)


def create_webhook(
    db: DbSession, box: WebhookSecretBox, tenant: Tenant, origin: Origin, spec: WebhookCreate
) -> WebhookCreated:
    """Create a webhook, whose URL was checked, with its secret.

    Raises:
        LimitReached: if the workspace has a hundred.
    """
    _require_room_for_webhook(db, tenant.workspace_id)
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
    secret = add_webhook_secret(db, box, webhook_id, now=now)
    # The URL is not recorded: it often holds a secret too.
    _record_webhook_action(
        db, origin, "webhook.create", webhook_id, {"events": row.events, "mode": tenant.mode}
    )
    return WebhookCreated(id=webhook_id, url=row.url, events=row.events, secret=secret)


def find_webhook(db: DbSession, tenant: Tenant, webhook_id: str, *, lock: bool = False) -> WebhookRow:
    """Return a webhook of the tenant.

    Args:
        db: a transaction.
        tenant: workspace and mode of the caller.
        webhook_id: id of the webhook; it need not be well-formed.
        lock: hold the row until the transaction ends.

    Raises:
        NotFound: if it is missing, or of another workspace or mode.
    """
    if not is_id(webhook_id, "whk"):
        raise NotFound("webhook")
    statement = _select_active_webhooks(tenant).where(WebhookRow.id == webhook_id)
    row = db.exec(statement.with_for_update() if lock else statement).one_or_none()
    if row is None:
        raise NotFound("webhook")
    return row


def list_webhooks(
    db: DbSession, tenant: Tenant, *, before_id: str | None, limit: int
) -> FetchedPage[Webhook, str]:
    """Return a page of webhooks, newest first, those older than `before_id`."""
    statement = _select_active_webhooks(tenant)
    page = fetch_newest_rows(db, statement, col(WebhookRow.id), before_id=before_id, limit=limit)
    return page.convert(webhook_to_wire)


def update_webhook(
    db: DbSession, tenant: Tenant, origin: Origin, webhook_id: str, change: WebhookUpdate
) -> Webhook:
    """Change a webhook whose new URL was checked; its secrets and deliveries stay.

    Waiting deliveries go to the new URL, also those of event types that are no longer listed.

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
        # The URL is not recorded: it often holds a secret too.
        details: dict[str, object] = {"changed": changed, "events": row.events}
        _record_webhook_action(db, origin, "webhook.update", row.id, details)
    return webhook_to_wire(row)


def rotate_webhook_secret(
    db: DbSession, box: WebhookSecretBox, tenant: Tenant, origin: Origin, webhook_id: str
) -> RotatedSecret:
    """Add a new secret to a webhook; the old one signs beside it for 24 hours.

    Raises:
        NotFound: if there is no such webhook.
        TooManySecrets: if ten are valid.
    """
    row = find_webhook(db, tenant, webhook_id, lock=True)
    secret = add_webhook_secret(db, box, row.id, now=clock.now())
    _record_webhook_action(db, origin, "webhook.rotate_secret", row.id, {})
    return RotatedSecret(id=row.id, secret=secret)


def delete_webhook(db: DbSession, tenant: Tenant, origin: Origin, webhook_id: str) -> None:
    """Delete a webhook with its secrets; its pending attempts are not made, and cleanups remove them.

    Raises:
        NotFound: if there is no such webhook.
    """
    row = find_webhook(db, tenant, webhook_id, lock=True)
    row.deleted_at = clock.now()
    db.add(row)
    db.exec(delete(WebhookSecretRow).where(col(WebhookSecretRow.webhook_id) == row.id))
    _record_webhook_action(db, origin, "webhook.delete", row.id, {})


def webhook_to_wire(row: WebhookRow) -> Webhook:
    """Return the wire object of a webhook, without its secret."""
    stored = row.model_dump(include=set(Webhook.model_fields))
    return Webhook.model_validate({**stored, "skipped_events": read_skipped_events(row)})


def read_skipped_events(row: WebhookRow) -> SkippedEvents | None:
    """Return the events that a webhook did not get; None if the last of them was long ago."""
    first_at, last_at = row.skipped_first_at, row.skipped_last_at
    if first_at is None or last_at is None or last_at < clock.now() - SKIPPED_FOR:
        return None
    return SkippedEvents(count=row.skipped_count, first_at=first_at, last_at=last_at)


def _select_active_webhooks(tenant: Tenant) -> SelectOfScalar[WebhookRow]:
    return select(WebhookRow).filter_by(workspace_id=tenant.workspace_id, mode=tenant.mode, deleted_at=None)


def _require_room_for_webhook(db: DbSession, workspace_id: str) -> None:
    # Another creation waits here until this transaction ends, and then counts its webhook.
    db.exec(select(WorkspaceRow.id).filter_by(id=workspace_id).with_for_update()).one()
    of_both_modes = {"workspace_id": workspace_id, "deleted_at": None}
    count = db.exec(select(func.count()).select_from(WebhookRow).filter_by(**of_both_modes)).one()
    if count >= limits.WEBHOOKS_PER_WORKSPACE:
        raise LimitReached("webhooks", limits.WEBHOOKS_PER_WORKSPACE)


def _record_webhook_action(
    db: DbSession, origin: Origin, action: Action, webhook_id: str, details: dict[str, object]
) -> None:
    record_audit_entry(db, origin, action, resource_type="webhook", resource_id=webhook_id, details=details)
