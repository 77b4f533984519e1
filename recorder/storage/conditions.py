"""Conditions of queries: the rows of one tenant, and those with a text that a request names."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import false
from sqlmodel import col

from recorder.tenant import Tenant


def in_tenant(table: Any, tenant: Tenant) -> Iterator[Any]:
    """Return the conditions that choose the rows of one workspace and mode."""
    yield col(table.workspace_id) == tenant.workspace_id
    yield col(table.mode) == tenant.mode


def has_text(column: Any, text: str) -> Any:
    """Return the condition that a column equals a text; false for NUL, which PostgreSQL does not take."""
    return false() if "\0" in text else col(column) == text
