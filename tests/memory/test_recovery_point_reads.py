"""Reads of tags and sessions for recovery points. Spec §2.7, §4.2."""

from collections.abc import Iterator
from contextlib import contextmanager

from recorder.ids import new_id
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory_service.recovery_points import FoundAnchors, read_recovery_point_anchors
from recorder.models.session import SessionRow, TagRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope
from tests.support.databases import database
from tests.support.graph_sessions import START, make_row, make_scope, make_steps
from tests.support.query_plans import noted_statements

__all__ = ["database"]

CLEAN, RECOVERED = "1a 2b 3c 4d", "1a 2b 8x 3c 4d"


def add_sessions(database: Database, scope: GraphScope, *words: str) -> list[SessionRow]:
    """Store sessions and take them into the graph."""
    rows = [make_row(scope, seal_seq=number + 1) for number in range(len(words))]
    steps = {row.id: make_steps(text) for row, text in zip(rows, words, strict=True)}
    indexer = GraphIndexer()
    with database.transaction(write=True) as db:
        indexer.commit(db, indexer.prepare(db, rows, steps), rows)
        db.add_all(rows)
    return rows


def add_tags(database: Database, row: SessionRow, name: str, *times: int) -> None:
    """Tag a session."""
    with database.transaction(write=True) as db:
        db.add_all(
            TagRow(
                id=new_id("tag"),
                session_id=row.id,
                workspace_id=row.workspace_id,
                mode=row.mode,
                name=name,
                t_ms=t_ms,
                position=t_ms,
                created_at=START,
            )
            for t_ms in times
        )


@contextmanager
def counted_tags(database: Database) -> Iterator[list[int]]:
    """Count the rows that each statement on tags in this block returns."""
    counts: list[int] = []
    with noted_statements() as noted:
        yield counts
    sent = [(statement, given) for statement, given in noted if "FROM tags" in statement]
    with database.transaction(write=False) as db:
        counts += [len(db.connection().exec_driver_sql(*each).all()) for each in sent]


def read_anchors(database: Database, scope: GraphScope, *, is_timed: bool = True) -> FoundAnchors:
    """Read the anchors of a workflow."""
    with database.transaction(write=False) as db:
        return read_recovery_point_anchors(db, scope, is_timed=is_timed)


def test_one_failure_of_each_session_is_read_and_the_successes_after_it(database: Database) -> None:
    with database.transaction(write=True) as db:
        scope = make_scope(db)
    *_, first, second = add_sessions(database, scope, *[CLEAN] * 3, RECOVERED, RECOVERED)
    for row, failures in ((first, range(1_000, 3_001, 20)), (second, range(500, 3_001, 20))):
        add_tags(database, row, "error", *failures)
        # One before the last failure and two after the step that recovers, at 4 s.
        add_tags(database, row, "success", 700, 4_600, 4_900)
    with counted_tags(database) as counts:
        (anchor,) = read_anchors(database, scope).anchors
    assert (anchor.basis, anchor.session_count, anchor.median_recovery_ms) == ("in_session", 2, 600)
    assert counts == [2, 4]
    with counted_tags(database) as counts:
        assert len(read_anchors(database, scope, is_timed=False).anchors) == 1
    assert counts == [2]
