"""What the memory graph is asked and answers beside paths: wire objects. Spec §2.7, §4.2; contract §4."""

from typing import Literal

from pydantic import Field as WireField

from recorder import limits
from recorder.models.memory import PathOutcomes
from recorder.models.session import Session
from recorder.models.wire import ActorKind, WireInput, WireOutput, WireTime

Change = Literal["appeared", "disappeared", "changed"]


class OutlierSession(Session):
    """A session off the common paths."""

    path_id: str
    #: Share of the sessions that pass the same filters which are on its path.
    path_frequency: float
    typicality: float


class SimilarSearch(WireInput):
    """Body of `POST /v1/memory/similar`."""

    session_id: str
    limit: int = WireField(default=limits.SIMILAR_DEFAULT, ge=1, le=limits.LIST_MAX)


class SimilarSession(Session):
    """A session whose way is like that of the session asked for."""

    similarity: float
    path_id: str
    #: Ids of the nodes that both visited, in the order of the session asked for.
    shared_nodes: list[str]


class RecoveryPoint(WireOutput):
    """A place from which sessions that failed came back to success."""

    frame_id: str
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
    """What paths, nodes and edges that differ have in common."""

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
