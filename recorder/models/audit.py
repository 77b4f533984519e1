"""The audit log: rows and wire objects. Contract §7 (audit)."""

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import JSON, BigInteger, Index
from sqlmodel import Field, SQLModel

from recorder.models.wire import WireOutput, WireTime

ActorType = Literal["key", "operator", "system"]
AuditOutcome = Literal["success", "refused"]


class AuditRow(SQLModel, table=True):
    """One entry of a workspace's chain."""

    __tablename__ = "audit_entries"
    __table_args__ = (Index("ix_audit_entries_at", "workspace_id", "at"),)

    workspace_id: str = Field(primary_key=True)
    #: Its number in the workspace's chain, from 1.
    number: int = Field(primary_key=True, sa_type=BigInteger)
    id: str = Field(unique=True)
    #: `test` where a test key acted, `live` where another key did; None for operator and service.
    mode: str | None = None
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
    hash: str = Field(index=True)


class AuditHeadRow(SQLModel, table=True):
    """The end of a workspace's chain; locked by whoever adds to it."""

    __tablename__ = "audit_heads"

    workspace_id: str = Field(primary_key=True)
    number: int = Field(default=0, sa_type=BigInteger)
    hash: str


class AuditActor(WireOutput):
    """Who acted: a key, the operator of the deployment, or the service itself."""

    type: ActorType
    id: str


class AuditResource(WireOutput):
    """What was acted on."""

    type: str
    id: str


class AuditEntry(WireOutput):
    """An entry of the audit log; `hash` covers all other members."""

    id: str
    at: WireTime
    actor: AuditActor
    action: str
    resource: AuditResource
    outcome: AuditOutcome
    request_id: str | None
    ip: str | None
    details: dict[str, Any]
    prev_hash: str
    hash: str
