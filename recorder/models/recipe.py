"""Recipes: an export's request that is made again and again, as the operator's rows. docs/recipes.md."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index
from sqlmodel import Field, SQLModel

from recorder.tenant import Tenant


class RecipeRow(SQLModel, table=True):
    """A saved request with its times; the exports it made are rows of their own."""

    __tablename__ = "export_recipes"
    __table_args__ = (Index("ix_export_recipes_due", "next_at"),)

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    #: Tag, and so dataset and partition, of each export that it makes.
    name: str = Field(primary_key=True)
    #: Body of `POST /v1/exports` without tag; relative times stay relative.
    body: dict[str, Any] = Field(sa_type=JSON)
    cron: str
    timezone: str
    #: The tick that comes next. Moving it on is what claims a tick.
    next_at: datetime
    #: The last tick that was claimed.
    last_at: datetime | None = None
    #: The last export that was made, at a tick or at once.
    last_export_id: str | None = None
    #: Why the last tick made no export: `{code, message}`.
    last_error: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    created_at: datetime

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the recipe."""
        return Tenant(self.workspace_id, self.mode)
