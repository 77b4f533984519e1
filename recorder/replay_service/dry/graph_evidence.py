"""Evidence of a memory graph for a replay: the nodes of its steps, and how many sessions take each edge."""

from itertools import pairwise

import numpy as np
from sqlmodel import Session as DbSession

from recorder.memory.graph.arrays import Bools
from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.queries.columns import NOWHERE, GraphColumns, make_session_lookup
from recorder.memory.queries.recovery_anchors import Witness, list_node_entries
from recorder.memory.storage.graph_store import graph_scope_of
from recorder.memory.views.network_cache import network_of
from recorder.memory.views.networkx_graph import END, START
from recorder.memory_service.recovery_points import read_recovery_point_steps
from recorder.models.session import SessionRow
from recorder.replay_service.dry.dry_process import GraphMessage
from recorder.replays.recorded_session import InvalidRecording
from recorder.runtime import Runtime

_NOT_IN_GRAPH = (
    "The session was sealed while the memory graph was paused, so no node is known for its steps; "
    "replay it against its own snapshots."
)


def read_graph_evidence(
    db: DbSession, runtime: Runtime, session: SessionRow, path_id: str | None = None
) -> GraphMessage:
    """Return the evidence of the other sessions of a workflow, or of those on one path.

    Raises:
        InvalidRecording: if the session is not in the graph.
        Unavailable: if the lake does not answer.
    """
    scope = graph_scope_of(session)
    columns = read_newest_columns(db, scope)
    (row,) = make_session_lookup(columns).find([session.id]).tolist()
    if row == NOWHERE:
        raise InvalidRecording(_NOT_IN_GRAPH)
    entries = list_node_entries(columns, np.array([row], dtype=np.int64))
    nodes = {
        Witness(row, pos): node for pos, node in zip(entries.pos.tolist(), entries.node.tolist(), strict=True)
    }
    steps = read_recovery_point_steps(db, runtime.lake, scope, columns, list(nodes)) if nodes else {}
    node_of = {step.event_id: columns.nodes[nodes[witness]].node_id for witness, step in steps.items()}
    own_nodes = [columns.nodes[node].node_id for node in entries.node.tolist()]
    chosen = _choose_evidence_sessions(columns, path_id)
    # The session's own steps say nothing about whether others go this way.
    shares = _compute_edge_evidence(columns, chosen, own_nodes if chosen[row] else [])
    # What a replay stores stays when other sessions leave the graph, and must quote none of them.
    labels = {node.node_id: node.bare_label for node in columns.nodes}
    return GraphMessage(node_of, [(*edge, share) for edge, share in shares.items()], labels)


def _choose_evidence_sessions(columns: GraphColumns, path_id: str | None) -> Bools:
    """Return the sessions that are in the graph, of a path those counted on it or on the one it became."""
    chosen = columns.current()
    if path_id is not None:
        live = [path.representative for path in columns.paths if path.path_id == path_id]
        chosen &= np.isin(columns.path, live)
    return chosen


def _compute_edge_evidence(
    columns: GraphColumns, chosen: Bools, own_nodes: list[str]
) -> dict[tuple[str, str], float]:
    """Return the share of the crossings out of a node that take each edge, without those of one session."""
    crossings = {
        (source, target): int(count)
        for source, target, count in network_of(columns, chosen).graph.edges(data="n")
        if source != START
    }
    for edge in [*pairwise(own_nodes), *([(own_nodes[-1], END)] if own_nodes else [])]:
        crossings[edge] = crossings.get(edge, 0) - 1
    left: dict[str, int] = {}
    for (source, _), count in crossings.items():
        left[source] = left.get(source, 0) + count
    return {edge: count / left[edge[0]] for edge, count in crossings.items() if count > 0 and edge[1] != END}
