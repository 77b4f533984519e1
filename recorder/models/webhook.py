"""Webhooks and their secrets: wire objects and rows. Spec §2.4, contract §6."""

from datetime import datetime

from pydantic import Field as WireField
from sqlalchemy import JSON, LargeBinary
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.wire import ShownOnce, WireInput, WireOutput, WireTime


class WebhookCreate(WireInput):
    """Body of `POST /v1/webhooks`."""

    url: str = WireField(min_length=1)
    events: list[str] = WireField(min_length=1)
    description: str | None = WireField(default=None, max_length=limits.DESCRIPTION_CHARACTERS)


class WebhookUpdate(WireInput):
    """Body of `PATCH /v1/webhooks/{webhook_id}`; members left out stay as they are."""

    url: str | None = WireField(default=None, min_length=1)
    events: list[str] | None = WireField(default=None, min_length=1)
    description: str | None = WireField(default=None, max_length=limits.DESCRIPTION_CHARACTERS)


class Webhook(WireOutput):
    """An endpoint that events are sent to, as it is read back."""

    id: str
    url: str
    events: list[str]
    description: str | None
    created_at: WireTime


class WebhookCreated(WireOutput):
    """Answer of `POST /v1/webhooks`; the secret is shown this once."""

    id: str
    url: str
    events: list[str]
    secret: ShownOnce


class RotatedSecret(WireOutput):
    """Answer of `POST /v1/webhooks/{webhook_id}/secret`; the secret is shown this once."""

    id: str
    secret: ShownOnce


class WebhookRow(SQLModel, table=True):
    """An endpoint of one workspace and mode."""

    __tablename__ = "webhooks"

    id: str = Field(primary_key=True)
    workspace_id: str = Field(index=True)
    mode: str
    url: str
    events: list[str] = Field(sa_type=JSON)
    description: str | None = None
    created_at: datetime
    #: Since when it is gone for everybody; the row stays until its records are swept.
    deleted_at: datetime | None = None


class WebhookSecretRow(SQLModel, table=True):
    """A signing secret, encrypted under a key of the deployment."""

    __tablename__ = "webhook_secrets"

    webhook_id: str = Field(primary_key=True)
    #: 1 at creation; each rotation takes the next.
    number: int = Field(primary_key=True)
    #: Which key encrypted it.
    key_id: str
    ciphertext: bytes = Field(sa_type=LargeBinary)
    created_at: datetime
    #: When it signs no more; None for the newest.
    expires_at: datetime | None = None
