"""Pages of outliers of stored graphs that change between the pages. Spec §4.2, contract §4."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from recorder.errors import InvalidCursor
from recorder.memory.storage.graph_session_removal import purge_sessions_from_graph
from recorder.memory.storage.graph_store import replace_session_outcome
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory_service.session_rankings import rank_outliers
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope
from tests.support.databases import database
from tests.support.graph_sessions import START, make_row, make_scope, make_steps

__all__ = ["database"]


def add_sessions(
    database: Database, *words: str, scope: GraphScope | None = None, first: int = 0
) -> tuple[GraphScope, list[SessionRow]]:
    """Store sessions of a new workflow or a given one, the newest first, and take them into its graph."""
    with database.transaction(write=True) as db:
        scope = scope or make_scope(db)
    rows = [
        make_row(scope, seal_seq=first + number + 1, started_at=START - timedelta(hours=number))
        for number in range(len(words))
    ]
    steps = {row.id: make_steps(text) for row, text in zip(rows, words, strict=True)}
    indexer = GraphIndexer()
    with database.transaction(write=True) as db:
        indexer.commit(db, indexer.prepare(db, rows, steps), rows)
        db.add_all(rows)
        db.add_all(SessionMetadataRow(session_id=row.id, metadata_={}) for row in rows)
    return scope, rows


def read_pages(database: Database, scope: GraphScope, **query: Any) -> Iterator[list[str]]:
    """Yield the ids of each page."""
    after = None
    while True:
        with database.transaction(write=False) as db:
            page = rank_outliers(
                db, tenant=scope.tenant, workflow=scope.workflow, rank="typicality", after=after, **query
            )
        yield [session.id for session in page.items]
        after = page.position
        if after is None:
            return


def test_pages_have_no_places_for_purged_sessions(database: Database) -> None:
    scope, rows = add_sessions(database, *["1x 2y"] * 6, *["1a 2b 3c"] * 10)
    with database.transaction(write=True) as db:
        purge_sessions_from_graph(db, scope, [row.id for row in [*rows[:5], *rows[8:]]])
    pages = list(read_pages(database, scope, limit=2))
    assert pages == [[rows[5].id, rows[6].id], [rows[7].id]]


def test_no_page_skips_a_session_where_another_one_changed_its_outcome(database: Database) -> None:
    scope, rows = add_sessions(database, *["1a 2b"] * 6)
    pages = read_pages(database, scope, limit=2, outcome="success")
    listed = next(pages)
    for row, outcome in ((rows[0], "error"), (rows[5], "abandoned")):
        with database.transaction(write=True) as db:
            replace_session_outcome(db, row, outcome)
    listed += next(pages)
    # Which outcome it had at the first page is known no longer.
    with database.transaction(write=True) as db:
        replace_session_outcome(db, rows[0], "abandoned")
    assert listed == [row.id for row in rows[:4]]
    with pytest.raises(InvalidCursor, match="begin again"):
        next(pages)


def test_outcomes_that_change_twice_move_no_page_of_all_sessions(database: Database) -> None:
    scope, rows = add_sessions(database, *["1a 2b"] * 6)
    pages = read_pages(database, scope, limit=2)
    listed = next(pages)
    for outcome in ("abandoned", "error"):
        with database.transaction(write=True) as db:
            replace_session_outcome(db, rows[0], outcome)
    assert [*listed, *(session_id for page in pages for session_id in page)] == [row.id for row in rows]


def test_outcomes_of_sessions_that_came_later_end_no_pages(database: Database) -> None:
    scope, rows = add_sessions(database, *["1a 2b"] * 6)
    pages = read_pages(database, scope, limit=2, outcome="success")
    listed = next(pages)
    _, (later,) = add_sessions(database, "1a 2b", scope=scope, first=len(rows))
    for row, outcome in ((later, "abandoned"), (later, "error"), (rows[5], "error")):
        with database.transaction(write=True) as db:
            replace_session_outcome(db, row, outcome)
    assert [*listed, *(session_id for page in pages for session_id in page)] == [row.id for row in rows]


def test_outcomes_that_changed_twice_before_the_first_page_end_no_pages(database: Database) -> None:
    scope, rows = add_sessions(database, *["1a 2b"] * 6)
    with database.transaction(write=True) as db:
        replace_session_outcome(db, rows[5], "error")
        replace_session_outcome(db, rows[5], "success")
    pages = read_pages(database, scope, limit=2, outcome="success")
    listed = next(pages)
    with database.transaction(write=True) as db:
        replace_session_outcome(db, rows[5], "error")
    assert [*listed, *(session_id for page in pages for session_id in page)] == [row.id for row in rows]
