"""API keys: wire objects and row. Spec §2.3, §5; contract §1 (keys)."""

from datetime import datetime

from pydantic import Field as WireField
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.wire import Mode, ShownOnce, WireInput, WireOutput, WireTime


class KeyCreate(WireInput):
    """Body of `POST /v1/keys`."""

    label: str = WireField(min_length=1, max_length=limits.KEY_LABEL_CHARACTERS)
    #: `read`, `write` or `admin`, and `replay:live` behind it where live replays may be started.
    scope: str
    expires_at: WireTime | None = None
    mode: Mode | None = None


class Key(WireOutput):
    """A key as it is listed: never its value, which nobody has."""

    id: str
    label: str
    scope: str
    mode: Mode
    last4: str
    expires_at: WireTime | None
    created_at: WireTime


class KeyCreated(WireOutput):
    """Answer of `POST /v1/keys`: the one time that the value is shown."""

    id: str
    label: str
    scope: str
    key: ShownOnce
    mode: Mode
    expires_at: WireTime | None
    created_at: WireTime


class KeyRow(SQLModel, table=True):
    """An API key, kept only as its keyed hash and last four characters."""

    __tablename__ = "keys"

    id: str = Field(primary_key=True)
    workspace_id: str = Field(index=True)
    mode: str
    label: str
    scope: str
    key_hash: str = Field(unique=True)
    last4: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
