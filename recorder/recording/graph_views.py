"""A workflow's graph whole, as a drawing or as data, and two sides of it compared. Contract §4."""

from datetime import datetime
from typing import Any

from sqlmodel import Session as DbSession

from recorder.memory.building.nodes import GraphScope
from recorder.memory.drift.recent import recent_nodes
from recorder.memory.queries.comparison import Side, compare
from recorder.memory.queries.paths import filter_rows, read_graph
from recorder.memory.views.formats import GraphFormat, render
from recorder.memory.views.view import GraphView, view_of
from recorder.models.memory_queries import MemoryComparison
from recorder.models.wire import ActorKind, Outcome
from recorder.recording.recovery_points import read_anchors
from recorder.tenant import Tenant


def read_view(
    db: DbSession,
    *,
    tenant: Tenant,
    workflow: str,
    since: datetime | None = None,
    until: datetime | None = None,
    outcome: Outcome | None = None,
    actor_kind: ActorKind | None = None,
    min_frequency: float = 0.0,
) -> GraphView:
    """The nodes and edges of the sessions that match, with recovery points and new nodes marked.

    Args:
        since: sessions that started at this instant or later.
        until: sessions that started before this instant.
        min_frequency: nodes and edges of fewer sessions than this share are left out; the others keep theirs.

    Raises:
        NotFound: for an unknown workflow.
    """
    scope = GraphScope(tenant, workflow)
    found = read_anchors(db, scope, since=since, until=until, is_timed=False)
    columns = found.columns
    chosen = filter_rows(columns, since=since, until=until, outcome=outcome, actor_kind=actor_kind)
    recovery = frozenset(columns.nodes[anchor.node].node_id for anchor in found.anchors)
    return view_of(
        columns,
        chosen,
        workflow=workflow,
        min_frequency=min_frequency,
        recovery=recovery,
        new=recent_nodes(db, scope, columns),
    )


def render_graph(db: DbSession, *, format: GraphFormat, **asked: Any) -> tuple[bytes, str]:
    """The same in a format, with its media type; `asked` is what `read_view` takes.

    Raises:
        NotFound: for an unknown workflow.
    """
    return render(read_view(db, **asked), format)


def compare_sessions(
    db: DbSession,
    *,
    tenant: Tenant,
    workflow: str,
    selected: Side,
    against: Side,
    outcome: Outcome | None = None,
    min_change: float,
    limit: int,
) -> MemoryComparison:
    """What differs between two sides of a workflow's sessions.

    Raises:
        NotFound: for an unknown workflow.
    """
    columns = read_graph(db, GraphScope(tenant, workflow))
    return compare(
        columns, selected, against, workflow=workflow, outcome=outcome, min_change=min_change, limit=limit
    )
