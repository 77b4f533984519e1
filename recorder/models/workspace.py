"""Workspaces and their keys. Spec §2.3, §2.10, §5; contract §1 (keys), §7."""

from datetime import datetime

from sqlmodel import Field, SQLModel

from recorder import limits


class WorkspaceRow(SQLModel, table=True):
    """A tenant: owns keys, sessions, graphs and exports."""

    __tablename__ = "workspaces"

    id: str = Field(primary_key=True)
    name: str = Field(unique=True)
    region: str
    status: str = "active"  # active | suspended | expired
    tier: str = "default"
    frames_days: int = limits.FRAMES_RETENTION_DAYS
    events_days: int = limits.EVENTS_RETENTION_DAYS
    audit_days: int = limits.AUDIT_RETENTION_DAYS
    created_at: datetime


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
