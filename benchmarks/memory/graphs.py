"""Graphs as the service keeps them: sessions go through the real indexer into a real database."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from recorder.memory.graph.rebuild import RebuildInput, RebuildKind
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.columns_cache import read_graph_columns
from recorder.memory.steps.session_steps import Step
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.rebuilds import RebuildReport, read_rebuild_input, rebuild_graph
from recorder.memory.storage.versions import read_newest_version
from recorder.models.session import SessionRow
from recorder.models.workflow import WorkflowRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant

#: Sessions of one sealing batch.
BATCH = 50
_BEGIN = datetime(2026, 1, 5, 8, tzinfo=UTC)
_SCOPE = GraphScope(Tenant("wsp_benchmark", "live"), "benchmark")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A session as sealing takes it into the graph."""

    session_id: str
    steps: Sequence[Step]
    outcome: str = "success"
    #: Start, in ms from that of the first session.
    started_ms: int = 0
    duration_ms: int = 0


class StoredGraph:
    """The graph of one workflow in a database of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._indexer = GraphIndexer()
        self._sealed = 0

    def add(self, sessions: Sequence[Sealed], *, batch: int = BATCH) -> None:
        """Take sessions in, in this order, so many at a time; rebuild the graph as sealing does."""
        for start in range(0, len(sessions), batch):
            some = sessions[start : start + batch]
            rows = [self._row(session) for session in some]
            steps = {session.session_id: session.steps for session in some}
            with self._database.transaction(write=True) as db:
                self._indexer.commit(db, self._indexer.prepare(db, rows, steps), rows)
            for scope in self._indexer.take_grown():
                rebuild_graph(self._database, scope, "anchored")

    def rebuild(self, kind: RebuildKind) -> RebuildReport:
        """Rebuild nodes and paths."""
        report = rebuild_graph(self._database, _SCOPE, kind)
        assert report is not None, "the workflow is there"
        return report

    def columns(self) -> GraphColumns:
        """Return the graph as queries see it."""
        with self._database.transaction(write=False) as db:
            head = read_newest_version(db, _SCOPE)
            assert head is not None, "the workflow is there"
            return read_graph_columns(db, _SCOPE, head.version)

    def recorded(self) -> RebuildInput:
        """Return the graph as a rebuild sees it."""
        with self._database.transaction(write=False) as db:
            return read_rebuild_input(db, _SCOPE)

    def _row(self, session: Sealed) -> SessionRow:
        self._sealed += 1
        started_at = _BEGIN + timedelta(milliseconds=session.started_ms)
        return SessionRow(
            id=session.session_id,
            workspace_id=_SCOPE.workspace_id,
            mode=_SCOPE.mode,
            workflow=_SCOPE.workflow,
            status="sealed",
            created_at=started_at,
            started_at=started_at,
            stopped_at=started_at + timedelta(milliseconds=session.duration_ms),
            sealed_at=started_at + timedelta(milliseconds=session.duration_ms, minutes=1),
            duration_ms=session.duration_ms,
            outcome=session.outcome,
            seal_seq=self._sealed,
            actor_kind="human",
        )


@contextmanager
def stored_graph() -> Iterator[StoredGraph]:
    """Yield an empty graph, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        database = Database(f"sqlite:///{Path(folder, 'recorder.db')}")
        database.migrate()
        with database.transaction(write=True) as db:
            row = WorkflowRow(
                workspace_id=_SCOPE.workspace_id,
                mode=_SCOPE.mode,
                workflow=_SCOPE.workflow,
                created_at=_BEGIN,
                updated_at=_BEGIN,
            )
            db.add(row)
        try:
            yield StoredGraph(database)
        finally:
            database.close()


def paths_by_session(columns: GraphColumns) -> dict[str, str]:
    """Return the id of the path that each session of a graph is on."""
    sessions = columns.session_id[columns.current()].tolist()
    paths = columns.path[columns.current()].tolist()
    return {
        session.decode(): columns.paths[path].path_id for session, path in zip(sessions, paths, strict=True)
    }
