"""Wire objects and table rows, one file per resource. Importing this package registers every table."""

from recorder.models import audit, event, export, frame, memory, outbox, session, tag, workflow, workspace

__all__ = ["audit", "event", "export", "frame", "memory", "outbox", "session", "tag", "workflow", "workspace"]
