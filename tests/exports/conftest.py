"""What several files of this folder need made; whoever needs another one makes it itself."""

from tests.charging import make_tenant, tenant
from tests.databases import database
from tests.sealed import runtime

__all__ = ["database", "make_tenant", "runtime", "tenant"]
