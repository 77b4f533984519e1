"""Workflows: what a workspace calls one kind of work. Spec §2.8, contract §4 (workflow)."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON
from sqlmodel import Field, SQLModel


class WorkflowRow(SQLModel, table=True):
    """One workflow of a workspace and mode; its first session creates it."""

    __tablename__ = "workflows"

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    memory_graph: bool = True
    #: Overrides of which tags and event types decide an outcome; null = the defaults of contract §2.
    outcome_rules: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    tags: list[str] = Field(default_factory=list, sa_type=JSON)
    masking: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    session_count: int = 0
    last_session_at: datetime | None = None
    created_at: datetime
    updated_at: datetime
