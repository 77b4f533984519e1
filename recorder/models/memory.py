"""The memory graph: wire objects and rows. Spec §2.6, §4.2; contract §4.

Structure (nodes, micro-states, variants, paths) is only ever added and carries the graph version that made
it; counters are additive. A reader pinned at version v sees what was made at v or before.
"""

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import JSON, BigInteger, Index, LargeBinary, text
from sqlmodel import Field, SQLModel

from recorder.models.wire import WireOutput

#: Sessions came in, an outcome changed by a late tag, or a session was taken out.
VersionKind = Literal["sessions", "outcome", "removal"]


class PathOutcomes(WireOutput):
    """How the sessions of a path ended: fractions that sum to 1."""

    success: float
    error: float
    abandoned: float


class MemoryPath(WireOutput):
    """A way through a workflow that sessions took."""

    path_id: str
    node_ids: list[str]
    frequency: float
    outcomes: PathOutcomes
    median_duration_ms: int
    session_count: int
    graph_version: int


class MemoryPathList(WireOutput):
    """Answer of `GET /v1/memory/paths`."""

    data: list[MemoryPath]


class GraphVersionRow(SQLModel, table=True):
    """One change of a graph; versions of a graph are dense and rise by one."""

    __tablename__ = "graph_versions"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    version: int = Field(primary_key=True, sa_type=BigInteger)
    parent: int = Field(sa_type=BigInteger)
    kind: str
    #: Who wrote it, and which of its changes: tells a cached graph whether it is the newest.
    writer: str
    params: dict[str, Any] = Field(sa_type=JSON)
    up_to_seal_seq: int = Field(sa_type=BigInteger)
    created_at: datetime


class GraphNodeRow(SQLModel, table=True):
    """A node with its exemplar; its number stands for it in sequences and edges."""

    __tablename__ = "graph_nodes"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    number: int = Field(primary_key=True)
    node_id: str = Field(unique=True)
    label: str
    kind: str
    micro_key: int = Field(sa_type=BigInteger)
    act: int = Field(sa_type=BigInteger)
    screen: int
    #: Hashed tokens of the exemplar's screen: little-endian int64.
    features: bytes = Field(sa_type=LargeBinary)
    created_version: int = Field(sa_type=BigInteger)


class GraphMicroStateRow(SQLModel, table=True):
    """Which node a micro-state belongs to."""

    __tablename__ = "graph_micro_states"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    micro_key: int = Field(primary_key=True, sa_type=BigInteger)
    node: int
    created_version: int = Field(sa_type=BigInteger)


class GraphVariantRow(SQLModel, table=True):
    """An exact sequence of nodes, the path it belongs to, and how many sessions took it."""

    __tablename__ = "graph_variants"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    variant_key: int = Field(primary_key=True, sa_type=BigInteger)
    nodes: list[int] = Field(sa_type=JSON)
    path: int
    n: int = Field(sa_type=BigInteger)
    created_version: int = Field(sa_type=BigInteger)


class GraphPathRow(SQLModel, table=True):
    """A path: the sequence of its leading variant."""

    __tablename__ = "graph_paths"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    number: int = Field(primary_key=True)
    path_id: str = Field(unique=True)
    leader: int = Field(sa_type=BigInteger)
    nodes: list[int] = Field(sa_type=JSON)
    created_version: int = Field(sa_type=BigInteger)


class SessionPathRow(SQLModel, table=True):
    """The path of one session from `version` on, until `removed_version`."""

    __tablename__ = "graph_session_paths"
    __table_args__ = (
        Index("ix_graph_session_paths_added", "workspace_id", "mode", "workflow", "version"),
        Index(
            "ix_graph_session_paths_removed",
            "workspace_id",
            "mode",
            "workflow",
            "removed_version",
            sqlite_where=text("removed_version IS NOT NULL"),
            postgresql_where=text("removed_version IS NOT NULL"),
        ),
        {"sqlite_with_rowid": False},
    )

    session_id: str = Field(primary_key=True)
    version: int = Field(primary_key=True, sa_type=BigInteger)
    removed_version: int | None = Field(default=None, sa_type=BigInteger)
    workspace_id: str
    mode: str
    workflow: str
    path_id: str
    variant_key: int = Field(sa_type=BigInteger)
    outcome: str
    duration_ms: int = Field(sa_type=BigInteger)
    started_at: datetime
    sealed_at: datetime
    actor_kind: str | None = None
    #: Time to the first node, between nodes, and from the last to the end: what it adds to the edges.
    edge_ms: list[int] = Field(sa_type=JSON)


class GraphEdgeRow(SQLModel, table=True):
    """How often, and in what time, sessions of one day went from one node to the next."""

    __tablename__ = "graph_edges"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    #: Day (UTC) the sessions started on.
    day: str = Field(primary_key=True)
    #: Numbers of nodes; -1 is the start of a session, -2 its end.
    from_node: int = Field(primary_key=True)
    to_node: int = Field(primary_key=True)
    outcome: str = Field(primary_key=True)
    #: Empty for sessions without an actor.
    actor_kind: str = Field(primary_key=True)
    n: int = Field(sa_type=BigInteger)
    sum_ms: int = Field(sa_type=BigInteger)


class GraphPauseRow(SQLModel, table=True):
    """Sessions sealed with these numbers enter no graph; open while `to_seq` is null."""

    __tablename__ = "graph_pauses"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    from_seq: int = Field(primary_key=True, sa_type=BigInteger)
    to_seq: int | None = Field(default=None, sa_type=BigInteger)
