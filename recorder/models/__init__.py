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
from recorder.models import webhook as delivery
from recorder.models import workspace as usage

__all__ = [
    "audit",
    "delivery",
    "drift",
    "event",
    "export_rows",
    "frame",
    "idempotency",
    "key",
    "memory",
    "orchestration",
    "outbox",
    "recipe",
    "seal_portion",
    "session",
    "tag",
    "usage",
    "webhook",
    "workflow",
    "workspace",
]
