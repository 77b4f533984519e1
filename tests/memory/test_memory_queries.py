"""Common paths: frequencies over all that match, filters, versions. Spec §4.2, contract §4."""

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session as DbSession

from recorder.errors import NotFound
from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.columns_cache import read_graph_columns
from recorder.memory.queries.common_paths import list_paths
from recorder.memory.queries.outliers import find_outliers
from recorder.memory.storage.graph_store import remove_session_from_graph, replace_session_outcome
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.versions import read_newest_version
from recorder.models.memory import MemoryPath
from recorder.models.session import SessionRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.graph_sessions import START, database_with, make_row, make_steps

SCOPE = GraphScope(Tenant("wsp_a", "live"), "checkout")
USUAL, OTHER, RARE = "1a 2b 3c", "4d 5e 6f", "7g 8h 9i"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Yield a database with one empty workflow."""
    yield from database_with(SCOPE, tmp_path)


def add(database: Database, *words: str, **members: Any) -> list[SessionRow]:
    """Take in sessions with these steps."""
    rows = [make_row(SCOPE, **members) for _ in words]
    indexer = GraphIndexer()
    with database.transaction(write=True) as db:
        steps = {row.id: make_steps(text) for row, text in zip(rows, words, strict=True)}
        indexer.commit(db, indexer.prepare(db, rows, steps), rows)
    return rows


def ask(db: DbSession, **filters: Any) -> list[MemoryPath]:
    """Return the paths of the workflow."""
    graph = {"tenant": SCOPE.tenant, "workflow": SCOPE.workflow}
    return list_paths(db, **{**graph, **filters})


def paths_of(database: Database, **filters: Any) -> list[MemoryPath]:
    """Return the paths of the workflow, read in a transaction of their own."""
    with database.transaction(write=False) as db:
        return ask(db, **filters)


def test_the_most_frequent_path_comes_first_with_its_figures(database: Database) -> None:
    add(database, USUAL, USUAL, duration_ms=3_000)
    add(database, USUAL, duration_ms=9_000, outcome="error")
    add(database, OTHER, duration_ms=1_000, outcome="abandoned")
    usual, other = paths_of(database)
    assert (usual.session_count, usual.frequency, usual.median_duration_ms) == (3, 0.75, 3_000)
    assert usual.outcomes.model_dump() == {"success": 2 / 3, "error": 1 / 3, "abandoned": 0}
    assert (other.session_count, other.frequency, other.outcomes.abandoned) == (1, 0.25, 1)
    assert len(usual.node_ids) == 3 and usual.graph_version == 3


def test_equally_frequent_paths_come_by_id(database: Database) -> None:
    add(database, USUAL, OTHER, RARE)
    ids = [path.path_id for path in paths_of(database)]
    assert ids == sorted(ids)


def test_dropping_paths_changes_no_frequency(database: Database) -> None:
    add(database, *[USUAL] * 6, *[OTHER] * 3, RARE)
    assert [path.frequency for path in paths_of(database, min_frequency=0.3)] == [0.6, 0.3]
    assert [path.frequency for path in paths_of(database, limit=1)] == [0.6]


def test_the_median_of_an_even_number_is_the_mean_of_the_middle(database: Database) -> None:
    for duration_ms in (100, 8_000, 201, 1_000):
        add(database, USUAL, duration_ms=duration_ms)
        add(database, OTHER, duration_ms=50)
    assert {path.median_duration_ms for path in paths_of(database)} == {600, 50}


def test_frequency_is_a_share_of_the_sessions_that_match_all_filters(database: Database) -> None:
    for hour, outcome in ((0, "success"), (1, "error"), (2, "error"), (3, "success")):
        add(database, USUAL, OTHER, started_at=START + timedelta(hours=hour), outcome=outcome)
        add(database, USUAL, started_at=START + timedelta(hours=hour), outcome="error")
    chosen = {"since": START + timedelta(hours=1), "until": START + timedelta(hours=3), "outcome": "error"}
    assert [(path.session_count, path.frequency) for path in paths_of(database, **chosen)] == [
        (4, 4 / 6),
        (2, 2 / 6),
    ]
    assert paths_of(database, outcome="abandoned") == []
    assert sum(path.session_count for path in paths_of(database, until=START + timedelta(hours=1))) == 3


def test_sessions_without_steps_are_on_no_path_and_count_among_all(database: Database) -> None:
    add(database, "", USUAL, "", "")
    (path,) = paths_of(database)
    assert (path.session_count, path.frequency) == (1, 0.25)


def test_by_typicality_sessions_without_steps_are_listed_on_no_path(database: Database) -> None:
    rows = add(database, "", USUAL, USUAL)
    with database.transaction(write=False) as db:
        columns = read_newest_columns(db, SCOPE)
    ranked = find_outliers(columns, columns.current(), rank="typicality")
    ids = [columns.session_id[row].decode() for row in ranked.rows.tolist()]
    assert ids[0] == rows[0].id and sorted(ids) == sorted(row.id for row in rows)
    assert ranked.path_frequency.tolist() == pytest.approx([0, 2 / 3, 2 / 3])
    rare = find_outliers(columns, columns.current(), threshold=1.0)
    assert sorted(rare.rows.tolist()) == sorted(ranked.rows[1:].tolist())


def test_a_path_says_what_its_sessions_did(database: Database) -> None:
    # Half of the sessions leave out a step, and some go back; the path must show both.
    add(database, *["1a 2b 3c 4d 5e"] * 5, *["1a 2b 4d 5e"] * 3, *["1a 2b 1a 2b 3c 4d 5e"] * 2)
    (path,) = paths_of(database)
    assert (path.session_count, path.variants, path.exact_frequency) == (10, 3, 0.5)
    assert path.labels == ["Click a", "Click b", "Click c", "Click d", "Click e"]
    assert path.optional_node_ids == [path.node_ids[2]]


def test_an_unknown_workflow_is_not_found_and_a_new_one_is_empty(database: Database) -> None:
    assert paths_of(database) == []
    for arguments in (
        {"workflow": "other"},
        {"tenant": Tenant("wsp_a", "test")},
        {"tenant": Tenant("wsp_b", "live")},
    ):
        with pytest.raises(NotFound):
            paths_of(database, **arguments)


def test_late_tags_and_deletions_show_at_once(database: Database) -> None:
    rows = add(database, USUAL, USUAL, OTHER)
    assert [path.session_count for path in paths_of(database)] == [2, 1]
    with database.transaction(write=True) as db:
        remove_session_from_graph(db, rows[2])
        replace_session_outcome(db, rows[0], "error")
    (path,) = paths_of(database)
    assert (path.session_count, path.frequency, path.outcomes.error, path.graph_version) == (2, 1, 0.5, 3)


def test_what_is_kept_in_memory_equals_a_fresh_read(database: Database) -> None:
    rng = random.Random(3)
    rows: list[SessionRow] = []
    for _ in range(15):
        rows += add(database, *rng.choices([USUAL, OTHER, RARE, ""], k=3), duration_ms=rng.randrange(9_000))
        with database.transaction(write=True) as db:
            replace_session_outcome(db, rng.choice(rows), rng.choice(["error", "abandoned"]))
            remove_session_from_graph(db, rng.choice(rows))
        # What is kept is kept for each database object.
        fresh = Database(database.url)
        assert paths_of(database) == paths_of(fresh)
        fresh.close()


def test_nothing_that_was_rolled_back_is_kept(database: Database) -> None:
    rows = add(database, USUAL, OTHER)
    with pytest.raises(RuntimeError), database.transaction(write=True) as db:
        remove_session_from_graph(db, rows[0])
        assert len(ask(db)) == 1
        raise RuntimeError
    assert len(paths_of(database)) == 2


def test_columns_in_use_stay_as_they_are(database: Database) -> None:
    rows = add(database, USUAL, OTHER)
    with database.transaction(write=False) as db:
        before = read_graph_columns(db, SCOPE, 1)
    with database.transaction(write=True) as db:
        remove_session_from_graph(db, rows[0])
    with database.transaction(write=False) as db:
        head = read_newest_version(db, SCOPE)
        assert head is not None
        after = read_graph_columns(db, SCOPE, head.version)
        assert isinstance(after, GraphColumns) and after is read_graph_columns(db, SCOPE, head.version)
    assert (before.removed > before.version).sum() == 2
    assert (after.removed > after.version).sum() == 1
