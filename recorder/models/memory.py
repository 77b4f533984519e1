"""The memory graph: wire objects and rows. Spec §2.6, §4.2; contract §4.

What sessions did (session rows and traces of micro-states) is only ever added and carries the graph version
that made it; counters are additive. How micro-states make nodes, and variants make paths, is structure:
sealing adds to it, a rebuild may change it. Ids of nodes and paths stay known for ever.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field as WireField
from sqlalchemy import JSON, BigInteger, Index, LargeBinary, text
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.session import Session
from recorder.models.wire import ActorKind, WireInput, WireOutput, WireTime

#: Sessions came in, an outcome changed by a late tag, a session was taken out, the structure was rebuilt,
#: rows of purged sessions were deleted, or sessions came in and gave nodes names that a purge had removed:
#: after the last three every cache loads the graph from the database.
VersionKind = Literal["sessions", "outcome", "removal", "rebuild", "purge", "names"]


class PathOutcomes(WireOutput):
    """Outcomes of the sessions of a path: fractions that sum to 1."""

    success: float
    error: float
    abandoned: float


class MemoryPath(WireOutput):
    """A way through a workflow that sessions took."""

    path_id: str
    node_ids: list[str]
    labels: list[str]
    #: Nodes of `node_ids` that a tenth or more of the path's sessions leave out.
    optional_node_ids: list[str]
    frequency: float
    #: Share of the sessions that took exactly the nodes of `node_ids`.
    exact_frequency: float
    #: Different sequences of nodes that the sessions of the path took.
    variants: int
    outcomes: PathOutcomes
    median_duration_ms: int
    session_count: int
    graph_version: int


class MemoryPathList(WireOutput):
    """Answer of `GET /v1/memory/paths`."""

    data: list[MemoryPath]


_IS_FIRST_VERSION = text("version = 1")


class GraphVersionRow(SQLModel, table=True):
    """One change of a graph; versions of a graph are dense and rise by one."""

    __tablename__ = "graph_versions"
    __table_args__ = (
        # One row for each graph: a graph is in the list of all graphs by its first version.
        Index(
            "ix_graph_versions_first",
            "workspace_id",
            "mode",
            "workflow",
            sqlite_where=_IS_FIRST_VERSION,
            postgresql_where=_IS_FIRST_VERSION,
        ),
        {"sqlite_with_rowid": False},
    )

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
    """A node with its exemplar; sequences and edges hold its number."""

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
    #: Number of the node that stands for this one since a rebuild; null while it stands for itself.
    merged_into: int | None = None


class GraphMicroStateRow(SQLModel, table=True):
    """Node of a micro-state; never a node that was merged into another one."""

    __tablename__ = "graph_micro_states"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    micro_key: int = Field(primary_key=True, sa_type=BigInteger)
    node: int
    created_version: int = Field(sa_type=BigInteger)
    #: Hashed tokens of its screen, as in a node; null where an earlier release kept none.
    features: bytes | None = Field(default=None, sa_type=LargeBinary)


class GraphLabelRow(SQLModel, table=True):
    """A text that a session gives to a micro-state, kept while it proves that sessions share the text."""

    __tablename__ = "graph_labels"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    session_id: str = Field(primary_key=True)
    micro_key: int = Field(primary_key=True, sa_type=BigInteger)
    #: As `TextKind` numbers the parts of a label.
    kind: int = Field(primary_key=True)
    text: str = Field(primary_key=True)
    #: Signed xxh64 of the actor's id; 0 without one.
    actor: int = Field(sa_type=BigInteger)


class GraphTraceRow(SQLModel, table=True):
    """An exact sequence of micro-states, the variant it is, and how many sessions took it."""

    __tablename__ = "graph_traces"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    #: Signed xxh64 of `steps`: content, so it outlives every rebuild.
    trace_key: int = Field(primary_key=True, sa_type=BigInteger)
    #: Micro keys: little-endian int64.
    steps: bytes = Field(sa_type=LargeBinary)
    variant_key: int = Field(sa_type=BigInteger)
    n: int = Field(sa_type=BigInteger)
    created_version: int = Field(sa_type=BigInteger)


class GraphVariantRow(SQLModel, table=True):
    """An exact sequence of nodes, equal neighbours counted once, and its path; -1 for that of no nodes."""

    __tablename__ = "graph_variants"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    variant_key: int = Field(primary_key=True, sa_type=BigInteger)
    nodes: list[int] = Field(sa_type=JSON)
    path: int
    created_version: int = Field(sa_type=BigInteger)


class GraphPathRow(SQLModel, table=True):
    """A path: the sequence of the variant that shows it."""

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
    #: Number of the path that stands for this one since a rebuild; null while it stands for itself.
    merged_into: int | None = None


class SessionPathRow(SQLModel, table=True):
    """Contribution of a session to a graph, from `version` until `removed_version`; rebuilds keep it."""

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
        Index(
            "ix_graph_session_paths_outcome",
            "workspace_id",
            "mode",
            "workflow",
            "outcome_version",
            sqlite_where=text("outcome_version IS NOT NULL"),
            postgresql_where=text("outcome_version IS NOT NULL"),
        ),
        {"sqlite_with_rowid": False},
    )

    session_id: str = Field(primary_key=True)
    version: int = Field(primary_key=True, sa_type=BigInteger)
    removed_version: int | None = Field(default=None, sa_type=BigInteger)
    workspace_id: str
    mode: str
    workflow: str
    trace_key: int = Field(sa_type=BigInteger)
    outcome: str
    #: Version that gave it its present outcome by a late tag, and the outcome before; null where none did.
    outcome_version: int | None = Field(default=None, sa_type=BigInteger)
    earlier_outcome: str | None = None
    duration_ms: int = Field(sa_type=BigInteger)
    started_at: datetime
    sealed_at: datetime
    actor_kind: str | None = None
    seal_seq: int = Field(sa_type=BigInteger)
    #: Time to the first step of the trace, between steps, and from the last to the end of the session.
    step_ms: list[int] = Field(sa_type=JSON)


class GraphPauseRow(SQLModel, table=True):
    """Sessions sealed with these numbers enter no graph; open while `to_seq` is null."""

    __tablename__ = "graph_pauses"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    workflow: str = Field(primary_key=True)
    from_seq: int = Field(primary_key=True, sa_type=BigInteger)
    to_seq: int | None = Field(default=None, sa_type=BigInteger)


Change = Literal["appeared", "disappeared", "changed"]


class OutlierSession(Session):
    """A session off the common paths, or one of all ranked by typicality."""

    #: Share of the sessions that pass the same filters which are on its path; 0 where it is on none.
    path_frequency: float
    typicality: float


class SimilarSearch(WireInput):
    """Body of `POST /v1/memory/similar`."""

    session_id: str
    limit: int = WireField(default=limits.SIMILAR_DEFAULT, ge=1, le=limits.LIST_MAX)


class SimilarSession(Session):
    """A session whose way is like that of the session asked for."""

    similarity: float
    #: Ids of the nodes that both visited, in the order of the session asked for.
    shared_nodes: list[str]


class RecoveryPoint(WireOutput):
    """A node from which sessions that failed came back to success."""

    #: Null where the recording has no frame.
    frame_id: str | None
    #: Event of the step that entered the node.
    event_id: str
    session_id: str
    frequency: float
    median_recovery_ms: int
    node_id: str
    label: str
    session_count: int
    basis: Literal["in_session", "cross_session"]


class RecoveryPointList(WireOutput):
    """Answer of `GET /v1/memory/recovery_points`."""

    data: list[RecoveryPoint]


class ComparedSide(WireOutput):
    """One side of a comparison; without sessions its figures are null."""

    since: WireTime | None
    until: WireTime | None
    actor_kind: ActorKind | None
    session_count: int
    outcomes: PathOutcomes | None
    median_duration_ms: int | None


class Changed(WireOutput):
    """Members that the differences of paths, nodes and edges share."""

    change: Change
    #: Share of each side's own sessions.
    frequency: float
    against_frequency: float
    session_count: int
    against_session_count: int


class PathChange(Changed):
    """A path whose share differs."""

    path_id: str
    node_ids: list[str]
    outcomes: PathOutcomes | None
    against_outcomes: PathOutcomes | None
    median_duration_ms: int | None
    against_median_duration_ms: int | None


class NodeChange(Changed):
    """A node whose share of sessions differs."""

    node_id: str
    label: str
    outcomes: PathOutcomes | None
    against_outcomes: PathOutcomes | None


class EdgeChange(Changed):
    """A way from node to node whose share of sessions differs; null is the start or end of a session."""

    source: str | None
    target: str | None
    median_ms: int | None
    against_median_ms: int | None


class MemoryComparison(WireOutput):
    """Answer of `GET /v1/memory/diff`."""

    workflow: str
    graph_version: int
    selected: ComparedSide
    against: ComparedSide
    paths: list[PathChange]
    nodes: list[NodeChange]
    edges: list[EdgeChange]
