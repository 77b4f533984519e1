"""Nodes that drawings mark as new: those of which an alarm told in the last 30 days. Spec §6.1."""

from datetime import timedelta

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.memory.building.nodes import GraphScope
from recorder.memory.drift.store import NEW_NODE
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.storing.versions import in_scope
from recorder.models.drift import DriftAlarmRow

_NEW_FOR = timedelta(days=30)


def recent_nodes(db: DbSession, scope: GraphScope, columns: GraphColumns) -> frozenset[str]:
    """Ids of the nodes that are new; where a rebuild merged one, of the node that stands for it."""
    told = select(DriftAlarmRow.subject_id).where(
        *in_scope(DriftAlarmRow, scope),
        DriftAlarmRow.type == NEW_NODE,
        col(DriftAlarmRow.created_at) >= clock.now() - _NEW_FOR,
    )
    ids = frozenset(db.exec(told))
    if not ids:
        return ids
    return frozenset(columns.nodes[node.live].node_id for node in columns.nodes if node.node_id in ids)
