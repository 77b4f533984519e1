"""The columns that queries keep: late changes, several readers at once, how much is kept. Spec §4.2."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.columns_cache import ColumnsCache, read_graph_columns
from recorder.memory.storage.graph_store import remove_session_from_graph, replace_session_outcome
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.graph_columns import columns_of
from tests.support.graph_sessions import database_with, index_words
from tests.support.statements import before_each_statement

SCOPE = GraphScope(Tenant("wsp_a", "live"), "checkout")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Yield a database with one empty workflow."""
    yield from database_with(SCOPE, tmp_path)


def read(database: Database, version: int | None = None, cache: ColumnsCache | None = None) -> GraphColumns:
    """Return the columns of the workflow, read in a transaction of their own."""
    with database.transaction(write=False) as db:
        if cache is not None:
            return cache.read(db, SCOPE, version or 1)
        return read_newest_columns(db, SCOPE) if version is None else read_graph_columns(db, SCOPE, version)


def held(columns: GraphColumns) -> list[tuple[Any, ...]]:
    """Return what the columns hold of when sessions were added and removed, and how they ended."""
    outcomes = (columns.outcome, columns.outcome_since, columns.earlier_outcome)
    rows = zip(columns.session_id, columns.added, columns.removed, *outcomes, strict=True)
    return sorted((bytes(session_id), *map(int, members)) for session_id, *members in rows)


@pytest.fixture
def reads() -> Iterator[list[str]]:
    """Yield reads of rows of sessions, each of which waits for a moment, so that others overlap."""
    statements: list[str] = []

    def read_slowly(statement: str) -> None:
        if "graph_session_paths.version <=" in statement and "removed_version >" not in statement:
            statements.append(statement)
            time.sleep(0.2)

    with before_each_statement(read_slowly):
        yield statements


def at_once(ask: Callable[[], Any]) -> list[Any]:
    """Return the answers of four threads that ask at the same time."""
    barrier = threading.Barrier(4)

    def wait_and_ask(_: int) -> Any:
        barrier.wait(10)
        return ask()

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(wait_and_ask, range(4)))


def test_changes_end_the_rows_that_they_are_of(database: Database) -> None:
    rng = random.Random(5)
    rows = index_words(database, SCOPE, *["1a 2b", "3c"] * 20)
    read(database)
    for _ in range(3):
        with database.transaction(write=True) as db:
            for row in rng.sample(rows[:30], 12):
                replace_session_outcome(db, row, rng.choice(["error", "abandoned", "success"]))
            remove_session_from_graph(db, rows.pop())
        rows += index_words(database, SCOPE, "1a")
        fresh = Database(database.url)
        assert held(read(database)) == held(read(fresh))
        fresh.close()


def test_nodes_of_equal_labels_are_shown_with_a_number_that_stays(database: Database) -> None:
    index_words(database, SCOPE, "1a 2b 3a")
    index_words(database, SCOPE, "4a 1a")
    before = {node.node_id: node.label for node in read(database).nodes}
    assert len(set(before.values())) == len(before) == 4
    first = min(before.values(), key=len)
    assert {first, f"{first} (2)", f"{first} (3)"} < set(before.values())
    index_words(database, SCOPE, "5a 2b")
    after = {node.node_id: node.label for node in read(database).nodes}
    assert before.items() < after.items() and f"{first} (4)" in after.values()


def test_readers_at_once_read_a_graph_once(database: Database, reads: list[str]) -> None:
    index_words(database, SCOPE, "1a 2b", "3c")
    first, *others = at_once(lambda: read(database))
    assert len(reads) == 1 and all(other is first for other in others)


def test_a_graph_above_the_bound_is_shared_by_those_who_wait_but_not_kept(
    database: Database, reads: list[str]
) -> None:
    index_words(database, SCOPE, "1a 2b", "3c")
    cache = ColumnsCache(max_bytes=100)
    first, *others = at_once(lambda: read(database, cache=cache))
    assert first.nbytes > 100 and len(reads) == 1 and all(other is first for other in others)
    assert read(database, cache=cache) is not first
    assert len(reads) == 2 and not cache._columns


def test_the_bound_counts_bytes_and_lets_go_of_the_oldest(database: Database) -> None:
    index_words(database, SCOPE, "1a 2b", "3c")
    other = GraphScope(Tenant("wsp_a", "live"), "returns")
    size = read(database).nbytes
    assert size > read(database).session_id.nbytes
    cache = ColumnsCache(max_bytes=size)
    kept = read(database, cache=cache)
    assert read(database, cache=cache) is kept
    cache._keep_newest_columns(other, columns_of([("AB", "success", 1)]))
    assert list(cache._columns) == [other]


def test_what_is_derived_is_made_once_for_all_who_ask_at_once() -> None:
    columns = columns_of([("AB", "success", 2)])
    made: list[np.ndarray[Any, Any]] = []

    def make(columns: GraphColumns) -> Any:
        threading.Event().wait(0.1)
        made.append(columns.current())
        return made[-1]

    answers = at_once(lambda: columns.derive("current", make))
    assert len(made) == 1 and all(answer is made[0] for answer in answers)
