"""Signing secrets: made, kept encrypted, valid for a day after the next one. Spec §2.4, §6.4; contract §6."""

import base64
import logging
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlmodel import Session as DbSession
from sqlmodel import col, or_, select
from sqlmodel.sql.expression import SelectOfScalar

from recorder import limits
from recorder.digest import keyed_digest
from recorder.errors import Invalid
from recorder.models.webhook import WebhookSecretRow
from recorder.webhooks.signing import SECRET_PREFIX

log = logging.getLogger("recorder.webhooks")

_RANDOM_BYTES = 32
_NONCE_BYTES = 12
_KEY_ID_CHARACTERS = 8
_VALID_AT_ONCE = 10


class SecretBox:
    """Encrypts under a key of the deployment; a secret opens only for the webhook it was made for."""

    def __init__(self, deployment_secret: bytes) -> None:
        self._cipher = AESGCM(keyed_digest(deployment_secret, "webhook-secrets", b""))
        #: Names the key without telling it, so that a changed deployment secret is seen as such.
        self.key_id = keyed_digest(deployment_secret, "webhook-secrets-id", b"").hex()[:_KEY_ID_CHARACTERS]

    def close(self, secret: str, webhook_id: str) -> bytes:
        """The secret as it is stored: nonce and ciphertext."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret.encode(), webhook_id.encode())

    def open(self, row: WebhookSecretRow) -> str | None:
        """The secret of a row; None where another deployment secret closed it."""
        nonce, ciphertext = row.ciphertext[:_NONCE_BYTES], row.ciphertext[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, ciphertext, row.webhook_id.encode()).decode()
        except InvalidTag:
            log.error(
                "a webhook's secret cannot be read: restore RECORDER_SECRET, or rotate the secret",
                extra={"webhook_id": row.webhook_id, "key_id": row.key_id},
            )
            return None


class TooManySecrets(Invalid):
    """More rotations within a day than can all go on signing."""

    code = "limit_reached"
    title = "Limit reached"

    def __init__(self) -> None:
        super().__init__(f"At most {_VALID_AT_ONCE} secrets sign at once; rotate again tomorrow.")


def add_secret(db: DbSession, box: SecretBox, webhook_id: str, *, now: datetime) -> str:
    """Give a webhook, whose row is new or locked, a new secret; those before it sign for 24 hours more.

    Raises:
        TooManySecrets: if ten are valid already.
    """
    old = list(db.exec(_of([webhook_id])))
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
            ciphertext=box.close(secret, webhook_id),
            created_at=now,
        )
    )
    return secret


def read_secrets(
    db: DbSession, box: SecretBox, webhook_ids: Iterable[str], *, now: datetime
) -> dict[str, list[str]]:
    """The secrets that sign now, by webhook, the newest first; a webhook without one is left out."""
    valid = or_(col(WebhookSecretRow.expires_at).is_(None), col(WebhookSecretRow.expires_at) > now)
    found: dict[str, list[str]] = {}
    for row in db.exec(_of(list(webhook_ids)).where(valid)):
        secret = box.open(row)
        if secret is not None:
            found.setdefault(row.webhook_id, []).append(secret)
    return found


def _of(webhook_ids: list[str]) -> SelectOfScalar[WebhookSecretRow]:
    wanted = select(WebhookSecretRow).where(col(WebhookSecretRow.webhook_id).in_(webhook_ids))
    return wanted.order_by(col(WebhookSecretRow.number).desc())
