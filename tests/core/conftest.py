"""What several files of this folder need made; whoever needs another one makes it itself."""

from tests.charging import make_tenant, other_writer, tenant, writer
from tests.databases import database
from tests.delivering import workspace_id
from tests.sealed import runtime

__all__ = ["database", "make_tenant", "other_writer", "runtime", "tenant", "workspace_id", "writer"]
