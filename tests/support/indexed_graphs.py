"""Memory graphs in a database: sessions taken into them as sealing does, and read as a query does."""

from collections.abc import Sequence

from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.steps.session_steps import Step
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.session import SessionRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope
from tests.support.graph_sessions import make_row


def index_sessions(
    database: Database, indexer: GraphIndexer, scope: GraphScope, sessions: Sequence[list[Step]]
) -> list[SessionRow]:
    """Take sessions into a graph, every other one a failed one; return their rows."""
    rows = [
        make_row(scope, duration_ms=5_000, outcome=("success", "error")[n % 2]) for n in range(len(sessions))
    ]
    steps = {row.id: session for row, session in zip(rows, sessions, strict=True)}
    with database.transaction(write=False) as db:
        prepared = indexer.prepare(db, rows, steps)
    with database.transaction(write=True) as db:
        indexer.commit(db, prepared, rows)
    return rows


def read_indexed_graph(database: Database, scope: GraphScope) -> GraphColumns:
    """Return the graph as a query sees it."""
    with database.transaction(write=False) as db:
        return read_newest_columns(db, scope)
