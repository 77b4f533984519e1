"""The sizes of graphs: counted once for each version, and never from what is rolled back. Contract §4."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from recorder.memory.storage.graph_store import remove_session_from_graph
from recorder.memory.storage.sizes import GraphSizesCache, read_graph_sizes
from recorder.models.workflow import WorkflowGraph
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.graph_sessions import database_with, index_words

SCOPE = GraphScope(Tenant("wsp_a", "live"), "checkout")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Yield a database with one empty workflow."""
    yield from database_with(SCOPE, tmp_path)


def size(database: Database, *, write: bool = False) -> WorkflowGraph:
    """Return the size of the workflow's graph."""
    with database.transaction(write=write) as db:
        return read_graph_sizes(db, SCOPE.tenant, [SCOPE.workflow])[SCOPE.workflow]


def test_a_graph_is_counted_once_for_each_version(database: Database) -> None:
    assert size(database) == WorkflowGraph(version=0, nodes=0, edges=0, paths=0)
    rows = index_words(database, SCOPE, "1a 2b", "3c")
    first = size(database)
    assert first == WorkflowGraph(version=1, nodes=3, edges=1, paths=2)
    assert size(database) is first
    with database.transaction(write=True) as db:
        remove_session_from_graph(db, rows[0])
    assert size(database) == WorkflowGraph(version=2, nodes=1, edges=0, paths=1)


def test_what_a_writer_counts_is_not_kept(database: Database) -> None:
    rows = index_words(database, SCOPE, "1a 2b", "3c")
    with pytest.raises(RuntimeError), database.transaction(write=True) as db:
        remove_session_from_graph(db, rows[0])
        counted = read_graph_sizes(db, SCOPE.tenant, [SCOPE.workflow])
        assert counted[SCOPE.workflow].nodes == 1
        raise RuntimeError
    with database.transaction(write=True) as db:
        remove_session_from_graph(db, rows[1])
    assert size(database).nodes == 2


def test_the_sizes_asked_for_last_are_kept() -> None:
    cache = GraphSizesCache(max_kept=1)
    for workflow in ("old", "new"):
        scope = GraphScope(Tenant("wsp_a", "live"), workflow)
        cache.keep(scope, WorkflowGraph(version=1, nodes=1, edges=0, paths=1))
    assert cache.find(GraphScope(Tenant("wsp_a", "live"), "old"), 1) is None
    assert cache.find(scope, 1) is not None and cache.find(scope, 2) is None
