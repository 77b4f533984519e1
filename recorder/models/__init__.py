"""Wire objects and table rows, one file per resource. Importing this package registers every table."""

from recorder.models import (
    audit,
    delivery,
    drift,
    event,
    export,
    frame,
    idempotency,
    key,
    memory,
    outbox,
    session,
    tag,
    usage,
    webhook,
    workflow,
    workspace,
)

__all__ = [
    "audit",
    "delivery",
    "drift",
    "event",
    "export",
    "frame",
    "idempotency",
    "key",
    "memory",
    "outbox",
    "session",
    "tag",
    "usage",
    "webhook",
    "workflow",
    "workspace",
]
