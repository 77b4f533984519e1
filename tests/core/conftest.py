"""What several files of this folder need made; whoever needs another one makes it itself."""

from tests.support.captured_minutes import make_tenant, other_writer, tenant, writer
from tests.support.databases import database
from tests.support.delivery_loop import workspace_id
from tests.support.sealed_sessions import runtime

__all__ = ["database", "make_tenant", "other_writer", "runtime", "tenant", "workspace_id", "writer"]
