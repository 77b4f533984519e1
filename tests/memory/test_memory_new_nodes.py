"""Marks in drawings of the nodes of recent alarms. Spec §6.1."""

from datetime import timedelta
from pathlib import Path

from sqlmodel import Session as DbSession

from recorder import clock
from recorder.memory.drift.store import NEW_NODE, PATH_DISAPPEARED
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.versions import scope_columns
from recorder.memory_service.graph_requests import read_graph_view
from recorder.models.drift import DriftAlarmRow
from recorder.storage.database import Database
from tests.support.databases import create_file
from tests.support.graph_sessions import make_row, make_scope, make_steps


def add_alarm(db: DbSession, graph_key: dict[str, str], type: str, subject_id: str, *, days_ago: int) -> None:
    """Store an alarm that was sent so long ago."""
    given = {"type": type, "subject_id": subject_id, "seal_seq": 1, "event_id": "evt_1", "data": {}}
    db.add(DriftAlarmRow(**graph_key, **given, created_at=clock.now() - timedelta(days=days_ago)))  # type: ignore[arg-type]


def test_nodes_are_new_for_thirty_days_after_their_alarm(tmp_path: Path) -> None:
    database = Database(create_file(tmp_path))
    with database.transaction(write=True) as db:
        scope = make_scope(db)
        row, indexer = make_row(scope), GraphIndexer()
        indexer.commit(db, indexer.prepare(db, [row], {row.id: make_steps("1a 2b 3c")}), [row])
        graph_key = scope_columns(scope)
        lately, before, gone = (
            node.node_id for node in read_graph_view(db, tenant=scope.tenant, workflow=scope.workflow).nodes
        )
        assert read_graph_view(db, tenant=scope.tenant, workflow=scope.workflow).new == frozenset()
        add_alarm(db, graph_key, NEW_NODE, lately, days_ago=29)
        add_alarm(db, graph_key, NEW_NODE, before, days_ago=31)
        add_alarm(db, graph_key, PATH_DISAPPEARED, gone, days_ago=1)
        db.flush()
        assert read_graph_view(db, tenant=scope.tenant, workflow=scope.workflow).new == {lately}
    database.close()
