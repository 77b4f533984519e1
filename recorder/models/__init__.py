"""Wire objects and table rows, one file per resource. Importing this package registers every table."""

from recorder.models import (
    audit,
    drift,
    event,
    export,
    frame,
    key,
    memory,
    operations,
    session,
    tag,
    webhook,
    workflow,
    workspace,
)

__all__ = [
    "audit",
    "drift",
    "event",
    "export",
    "frame",
    "key",
    "memory",
    "operations",
    "session",
    "tag",
    "webhook",
    "workflow",
    "workspace",
]
