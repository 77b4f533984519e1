"""All tables of the database. A process that uses few of them imports only the modules of their rows."""

from sqlmodel import SQLModel

from recorder.models import (
    drift,
    event,
    export,
    frame,
    governance,
    memory,
    operations,
    recovery,
    replay,
    session,
    webhook,
    workflow,
    workspace,
)

__all__ = [
    "METADATA",
    "drift",
    "event",
    "export",
    "frame",
    "governance",
    "memory",
    "operations",
    "recovery",
    "replay",
    "session",
    "webhook",
    "workflow",
    "workspace",
]

METADATA = SQLModel.metadata
