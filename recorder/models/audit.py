"""The audit log: rows and wire objects. Contract §7 (audit)."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Index
from sqlmodel import Field, SQLModel


class AuditRow(SQLModel, table=True):
    """One entry of a workspace's chain."""

    __tablename__ = "audit_entries"
    __table_args__ = (Index("ix_audit_entries_at", "workspace_id", "at"),)

    workspace_id: str = Field(primary_key=True)
    #: Its number in the workspace's chain, from 1.
    number: int = Field(primary_key=True, sa_type=BigInteger)
    id: str = Field(unique=True)
    at: datetime
    actor_type: str
    actor_id: str
    action: str
    resource_type: str
    resource_id: str
    outcome: str
    request_id: str | None = None
    ip: str | None = None
    details: dict[str, Any] = Field(sa_type=JSON)
    prev_hash: str
    hash: str


class AuditHeadRow(SQLModel, table=True):
    """The end of a workspace's chain; locked by whoever adds to it."""

    __tablename__ = "audit_heads"

    workspace_id: str = Field(primary_key=True)
    number: int = Field(default=0, sa_type=BigInteger)
    hash: str
