"""Wire objects and table rows, one file per resource. Importing this package registers every table."""

from recorder.models import (
    drift,
    event,
    export,
    frame,
    governance,
    memory,
    operations,
    session,
    webhook,
    workflow,
    workspace,
)

__all__ = [
    "drift",
    "event",
    "export",
    "frame",
    "governance",
    "memory",
    "operations",
    "session",
    "webhook",
    "workflow",
    "workspace",
]
