"""Views of a memory graph with recovery points and new nodes; comparisons of two selections. Contract §4."""

from datetime import datetime
from typing import Any

from sqlmodel import Session as DbSession

from recorder.memory.drift.store import list_newly_alarmed_nodes
from recorder.memory.queries.chosen_sessions import read_newest_columns, select_session_rows
from recorder.memory.queries.comparison import SessionSelection, compare_selections
from recorder.memory.views.formats import GraphFormat, format_graph_view
from recorder.memory.views.graph_view import GraphView, graph_view_of
from recorder.memory_service.recovery_points import read_recovery_point_anchors
from recorder.models.memory import MemoryComparison
from recorder.models.wire import ActorKind, Outcome
from recorder.storage.list_pages import take_page_items
from recorder.tenant import GraphScope, Tenant


def read_graph_view(
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
    """Return the nodes and edges of the sessions that match, with recovery points and new nodes marked.

    Args:
        db: a transaction.
        tenant: workspace and mode.
        workflow: name of the workflow.
        since: sessions that started at this instant or later.
        until: sessions that started before this instant.
        outcome: sessions with this outcome; None takes all.
        actor_kind: sessions of this kind of actor; None takes all.
        min_frequency: nodes and edges of fewer sessions than this share are left out; the others keep theirs.

    Raises:
        NotFound: for an unknown workflow.
    """
    scope = GraphScope(tenant, workflow)
    anchors = read_recovery_point_anchors(db, scope, since=since, until=until, is_timed=False)
    columns = anchors.columns
    chosen = select_session_rows(columns, since=since, until=until, outcome=outcome, actor_kind=actor_kind)
    recovery = frozenset(columns.nodes[anchor.node].node_id for anchor in anchors.anchors)
    return graph_view_of(
        columns,
        chosen,
        workflow=workflow,
        min_frequency=min_frequency,
        recovery=recovery,
        new=list_newly_alarmed_nodes(db, scope, columns),
    )


def render_graph(db: DbSession, *, format: GraphFormat, **selection: Any) -> tuple[bytes, str]:
    """Return the graph in a format, with its media type; `selection` is what `read_graph_view` takes.

    Raises:
        NotFound: for an unknown workflow.
    """
    return format_graph_view(read_graph_view(db, **selection), format)


def read_graph_view_comparison(
    db: DbSession,
    *,
    tenant: Tenant,
    workflow: str,
    selected: SessionSelection,
    against: SessionSelection,
    outcome: Outcome | None = None,
    min_change: float,
    limit: int,
) -> MemoryComparison:
    """Return the differences between two selections of a workflow's sessions.

    Each list ends before it has more bytes than a page.

    Raises:
        NotFound: for an unknown workflow.
    """
    columns = read_newest_columns(db, GraphScope(tenant, workflow))
    comparison = compare_selections(
        columns, selected, against, workflow=workflow, outcome=outcome, min_change=min_change, limit=limit
    )
    return comparison.model_copy(
        update={
            "paths": take_page_items(comparison.paths),
            "nodes": take_page_items(comparison.nodes),
            "edges": take_page_items(comparison.edges),
        }
    )
