"""Tags: named moments of a session. Spec §2.2, contract §2 (tag)."""

from datetime import datetime
from typing import Any

from pydantic import Field as WireField
from sqlalchemy import JSON, BigInteger, Index
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.wire import WireInput, WireOutput, WireTime


class TagCreate(WireInput):
    """Body of `POST /v1/sessions/{id}/tags`."""

    name: str = WireField(min_length=1, max_length=limits.TAG_NAME_CHARACTERS)
    data: dict[str, Any] | None = None
    t_ms: int | None = WireField(default=None, ge=0, le=limits.T_MS_MAX)
    event_id: str | None = None
    frame_id: str | None = None


class Tag(WireOutput):
    """A tag as it is read back."""

    id: str
    session_id: str
    name: str
    data: dict[str, Any] | None
    t_ms: int
    event_id: str | None
    frame_id: str | None
    created_at: WireTime


class TagRow(SQLModel, table=True):
    """A tag; it stays in SQL after sealing, since tags may come late."""

    __tablename__ = "tags"
    __table_args__ = (
        Index("ix_tags_session", "session_id", "t_ms", "id"),
        # A list filtered by tag starts here and walks down the session ids.
        Index("ix_tags_name", "workspace_id", "mode", "name", "session_id"),
    )

    id: str = Field(primary_key=True)
    session_id: str
    workspace_id: str
    mode: str
    name: str
    data: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    t_ms: int = Field(sa_type=BigInteger)
    event_id: str | None = None
    frame_id: str | None = None
    position: int = Field(sa_type=BigInteger)
    created_at: datetime
