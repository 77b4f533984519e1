"""Conditions of queries: the rows of one tenant."""

from collections.abc import Iterator
from typing import Any

from sqlmodel import col

from recorder.tenant import Tenant


def in_tenant(table: Any, tenant: Tenant) -> Iterator[Any]:
    """Return the conditions that choose the rows of one workspace and mode."""
    yield col(table.workspace_id) == tenant.workspace_id
    yield col(table.mode) == tenant.mode
