"""Workflows: what a workspace calls one kind of work. Spec §2.8, contract §4 (workflow)."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic import Field as WireField
from sqlalchemy import JSON, Column, Index, text
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.wire import WireInput, WireOutput, WireTime, left_out_wire_member
from recorder.models.workspace import Masking
from recorder.tenant import Tenant


def _check_printable_outcome_name(name: str) -> str:
    if not name.isprintable():
        raise ValueError("takes printable characters")
    return name


def _refuse_repeated_outcome_names(names: list[str]) -> list[str]:
    if len(set(names)) != len(names):
        raise ValueError("names each of them once")
    return names


_Name = Annotated[
    str,
    WireField(min_length=1, max_length=limits.TAG_NAME_CHARACTERS),
    AfterValidator(_check_printable_outcome_name),
]
_Names = Annotated[
    list[_Name], WireField(max_length=limits.OUTCOME_NAMES), AfterValidator(_refuse_repeated_outcome_names)
]
_Types = Annotated[
    list[Annotated[str, WireField(pattern=limits.EVENT_TYPE_PATTERN)]],
    WireField(max_length=limits.OUTCOME_NAMES),
    AfterValidator(_refuse_repeated_outcome_names),
]


class OutcomeNames(WireOutput):
    """Tags and types of events that mark an outcome; always whole."""

    error_tags: list[str]
    success_tags: list[str]
    error_events: list[str]
    success_events: list[str]


class OutcomeNamesUpdate(WireInput):
    """Lists to replace; those left out stay."""

    error_tags: _Names = WireField(default_factory=left_out_wire_member)
    success_tags: _Names = WireField(default_factory=left_out_wire_member)
    error_events: _Types = WireField(default_factory=left_out_wire_member)
    success_events: _Types = WireField(default_factory=left_out_wire_member)


class WorkflowGraph(WireOutput):
    """The size of a workflow's memory graph; its version is 0 before the first session."""

    version: int
    nodes: int
    edges: int
    paths: int


class Workflow(WireOutput):
    """A workflow, its settings and what there is of it."""

    workflow: str
    memory_graph: bool
    tags: list[str]
    masking: Masking
    outcome_rules: OutcomeNames
    session_count: int
    last_session_at: WireTime | None
    graph: WorkflowGraph
    created_at: WireTime
    updated_at: WireTime


class WorkflowUpdate(WireInput):
    """Body of `PATCH /v1/workflows/{workflow}`; members left out stay as they are."""

    memory_graph: bool = WireField(default_factory=left_out_wire_member)
    tags: Annotated[
        list[_Name],
        WireField(max_length=limits.WORKFLOW_TAGS),
        AfterValidator(_refuse_repeated_outcome_names),
    ] = WireField(default_factory=left_out_wire_member)
    masking: Masking = WireField(default_factory=left_out_wire_member)
    outcome_rules: OutcomeNamesUpdate = WireField(default_factory=left_out_wire_member)


_MASKS = text("masking IS NOT NULL")


class WorkflowRow(SQLModel, table=True):
    """One workflow of a workspace and mode; its first session creates it, or a PATCH before it."""

    __tablename__ = "workflows"
    # A key's look-up asks whether any workflow has a masking policy.
    __table_args__ = (
        Index("ix_workflows_masking", "workspace_id", "mode", sqlite_where=_MASKS, postgresql_where=_MASKS),
    )

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    memory_graph: bool = True
    #: Overrides of which tags and event types decide an outcome; null = the defaults of contract §2.
    outcome_rules: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    tags: list[str] = Field(default_factory=list, sa_type=JSON)
    #: What is masked in addition to the workspace's policy; null = nothing.
    masking: dict[str, Any] | None = Field(
        default=None, sa_column=Column(JSON(none_as_null=True), nullable=True)
    )
    session_count: int = 0
    last_session_at: datetime | None = None
    created_at: datetime
    updated_at: datetime

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the workflow."""
        return Tenant(self.workspace_id, self.mode)
