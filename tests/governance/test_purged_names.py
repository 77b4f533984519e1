"""Names that leave a memory graph with purged sessions, and when a purge reads them. Contract §2, §4."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder import clock
from recorder.governance.purging.session_content import remove_session_contents
from recorder.memory.storage.graph_session_removal import purge_sessions_from_graph
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.versions import scope_columns
from recorder.models.governance import PurgeRow
from recorder.models.memory import GraphNodeRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.tenant import GraphScope
from tests.support.graph_sessions import make_row, make_scope, make_step
from tests.support.query_plans import noted_statements

LABEL = select(GraphNodeRow.label)


def add_sessions(runtime: Runtime, count: int) -> tuple[GraphScope, list[SessionRow]]:
    """Take in sessions of one activity, whose name all of them give."""
    with runtime.database.transaction(write=True) as db:
        scope = make_scope(db)
    rows = [make_row(scope, seal_seq=number) for number in range(1, count + 1)]
    greet = replace(make_step("1a", 0), action="activity", label="Greet Ada", names=())
    indexer = GraphIndexer()
    with runtime.database.transaction(write=True) as db:
        indexer.commit(db, indexer.prepare(db, rows, {row.id: [greet] for row in rows}), rows)
        assert db.exec(LABEL.filter_by(**scope_columns(scope))).all() == ["Greet Ada"]
    return scope, rows


@pytest.mark.parametrize(("others", "reads_before", "reads_within"), [(0, 1, 0), (1, 2, 0), (3, 3, 1)])
def test_variants_are_read_before_the_transaction_that_removes_names(
    runtime: Runtime, others: int, reads_before: int, reads_within: int
) -> None:
    # Another purge of the graph follows each read; after three reads the transaction reads by itself.
    scope, (row, *waiting) = add_sessions(runtime, 1 + others)
    purge = PurgeRow(
        session_id=row.id,
        **scope_columns(scope),
        cause="deletion",
        due_at=clock.now(),
        requested_at=clock.now(),
    )
    before, within = 0, 0

    def take_reads() -> int:
        """Return the reads of variants of all sessions, rather than of newer ones, since the last call."""
        reads = [text for text, _ in noted if "FROM graph_variants" in text and "version >" not in text]
        noted.clear()
        return len(reads)

    @contextmanager
    def open_transaction() -> Iterator[DbSession]:
        nonlocal before, within
        reads = take_reads()
        before += reads
        if waiting and reads:
            with runtime.database.transaction(write=True) as db:
                purge_sessions_from_graph(db, scope, [waiting.pop().id])
            noted.clear()
        with runtime.database.transaction(write=True) as db:
            yield db
        within += take_reads()

    with noted_statements() as noted:
        assert remove_session_contents(runtime, [purge], open_transaction=open_transaction)
    # The nodes that the purged session visited are read with the names.
    assert (before, within) == (2 * reads_before, 2 * reads_within)
    with runtime.database.transaction(write=False) as db:
        assert db.exec(LABEL.filter_by(**scope_columns(scope))).all() == [""]
