"""The graph in SQL: sealing adds, late tags and deletions move counters. Spec §4.2, contract §4."""

import random
from collections import Counter
from typing import Any

import pytest
from sqlmodel import Session as DbSession
from sqlmodel import col, func, select, update

from recorder import clock
from recorder.memory.graph.directly_follows import OUTCOMES
from recorder.memory.queries.chosen_sessions import read_newest_columns, select_session_rows
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.storage.graph_store import (
    load_graph,
    pack_numbers,
    read_graph_rows,
    remove_session_from_graph,
    replace_session_outcome,
)
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.versions import in_scope, set_memory_graph
from recorder.models.memory import (
    GraphNodeRow,
    GraphPauseRow,
    GraphTraceRow,
    GraphVariantRow,
    GraphVersionRow,
    SessionPathRow,
)
from recorder.models.operations import SealCounterRow
from recorder.models.session import SessionRow
from recorder.storage.database import Database
from recorder.storage.deployment import compute_sealing_slot, read_sealing_slot_count
from recorder.tenant import GraphScope
from tests.support.graph_sessions import make_row, make_scope, make_steps
from tests.support.query_plans import noted_statements

USUAL, RETRIED, OTHER = "1a 2b 3c 4d", "1a 2b 3c 2b 3c 4d", "5e 6f"


@pytest.fixture
def scope(database: Database) -> GraphScope:
    """Return a workflow without sessions."""
    with database.transaction(write=True) as db:
        return make_scope(db)


def index(
    database: Database, indexer: GraphIndexer, rows: list[SessionRow], words: list[str]
) -> dict[GraphScope, int]:
    """Take sessions into their graphs, as sealing does."""
    steps = {row.id: make_steps(text) for row, text in zip(rows, words, strict=True)}
    with database.transaction(write=False) as db:
        prepared = indexer.prepare(db, rows, steps)
    with database.transaction(write=True) as db:
        return indexer.commit(db, prepared, rows)


def index_words(database: Database, scope: GraphScope, *words: str, **members: Any) -> list[SessionRow]:
    """Take sessions with these steps into a graph."""
    rows = [make_row(scope, **members) for _ in words]
    index(database, GraphIndexer(), rows, list(words))
    return rows


def statistics_of(database: Database, scope: GraphScope) -> Counter[tuple[Any, ...]]:
    """Return the steps of a graph's sessions, whatever its structure: each distinct way with its count."""
    with database.transaction(write=False) as db:
        steps = dict(read_graph_rows(db, scope, GraphTraceRow.trace_key, GraphTraceRow.steps))
        return Counter(
            (steps[row.trace_key], row.outcome, row.actor_kind, row.duration_ms, *row.step_ms)
            for row in active_paths(db, scope)
        )


def paths_of(database: Database, scope: GraphScope) -> dict[str, str]:
    """Return the path of each session that is counted now."""
    with database.transaction(write=False) as db:
        graph = load_graph(db, scope)
        rows = active_paths(db, scope)
        return {row.session_id: graph.path_of(row.trace_key).path_id for row in rows}


def count(db: DbSession, table: Any, scope: GraphScope) -> int:
    """Return the number of rows of a table that belong to a graph."""
    return db.exec(select(func.count()).select_from(table).where(*in_scope(table, scope))).one()


def active_paths(db: DbSession, scope: GraphScope) -> list[SessionPathRow]:
    """Return the rows of the sessions that are counted now."""
    where = (*in_scope(SessionPathRow, scope), col(SessionPathRow.removed_version).is_(None))
    return list(db.exec(select(SessionPathRow).where(*where)))


def test_a_loaded_graph_is_the_one_that_was_saved(database: Database, scope: GraphScope) -> None:
    indexer = GraphIndexer()
    index(database, indexer, [make_row(scope) for _ in range(4)], [USUAL, USUAL, RETRIED, ""])
    index(database, indexer, [make_row(scope)], [OTHER])
    with database.transaction(write=False) as db:
        loaded = load_graph(db, scope)
    kept = indexer._held[scope].graph
    assert (loaded.nodes, loaded.paths) == (kept.nodes, kept.paths)
    assert loaded.node_index.number_of == kept.node_index.number_of
    assert {
        key: (variant.nodes, variant.path, variant.sessions)
        for key, variant in loaded.path_index.variants.items()
    } == {
        key: (variant.nodes, variant.path, variant.sessions)
        for key, variant in kept.path_index.variants.items()
    }


def test_another_run_goes_on_where_the_last_one_ended(database: Database, scope: GraphScope) -> None:
    first = index_words(database, scope, USUAL)
    second = index_words(database, scope, RETRIED, USUAL)
    paths = paths_of(database, scope)
    with database.transaction(write=False) as db:
        assert count(db, GraphNodeRow, scope) == 4
    assert {paths[row.id] for row in (*first, *second)} == {paths[first[0].id]}


def test_sessions_keep_the_times_between_their_steps_with_the_ways_in_and_out(
    database: Database, scope: GraphScope
) -> None:
    index_words(database, scope, "1a 2b", "1a 2b", duration_ms=5_000, outcome="error")
    steps = pack_numbers(step.micro_key for step in make_steps("1a 2b"))
    did = (steps, "error", "human", 5_000, 1_000, 1_000, 3_000)
    assert statistics_of(database, scope) == Counter({did: 2})


def test_a_late_tag_moves_the_session_to_its_new_outcome(database: Database, scope: GraphScope) -> None:
    rows = index_words(database, scope, USUAL, RETRIED, "")
    with database.transaction(write=True) as db:
        assert replace_session_outcome(db, rows[1], "error") == 2
        assert replace_session_outcome(db, rows[1], "error") is None
        twin = make_scope(db)
    twins = [make_row(twin, outcome=outcome) for outcome in ("success", "error", "success")]
    index(database, GraphIndexer(), twins, [USUAL, RETRIED, ""])
    assert statistics_of(database, scope) == statistics_of(database, twin)


def test_a_pinned_reader_sees_the_session_as_it_was(database: Database, scope: GraphScope) -> None:
    (row,) = index_words(database, scope, USUAL)
    with database.transaction(write=True) as db:
        replace_session_outcome(db, row, "error")
        remove_session_from_graph(db, row)
        stored = db.exec(select(SessionPathRow).where(SessionPathRow.session_id == row.id))
        (path,) = stored.all()
        assert (path.version, path.removed_version, path.outcome) == (1, 3, "error")
        columns = GraphColumns().updated(db, scope, 3)
        selected = {
            outcome: [select_session_rows(columns, outcome=outcome, version=at).sum() for at in (1, 2, 3)]
            for outcome in OUTCOMES
        }
    assert selected == {"success": [1, 0, 0], "error": [0, 1, 0], "abandoned": [0, 0, 0]}


def test_an_outcome_that_changes_often_leaves_one_row_with_its_times(
    database: Database, scope: GraphScope
) -> None:
    (row,) = index_words(database, scope, USUAL)
    with database.transaction(write=False) as db:
        columns = read_newest_columns(db, scope)
    size, steps = columns.nbytes, len(columns.step_ms)
    for number in range(12):
        with database.transaction(write=True) as db, noted_statements() as noted:
            replace_session_outcome(db, row, "error" if number % 2 else "abandoned")
        assert [text for text, _ in noted if "step_ms" in text] == []
        with database.transaction(write=False) as db:
            columns = read_newest_columns(db, scope)
        assert columns.outcome.tolist() == [OUTCOMES.index("error" if number % 2 else "abandoned")]
        assert (columns.nbytes, len(columns.step_ms)) == (size, steps)
    with database.transaction(write=False) as db:
        assert count(db, SessionPathRow, scope) == 1


def test_a_removed_session_leaves_no_count(database: Database, scope: GraphScope) -> None:
    index_words(database, scope, USUAL)
    before = statistics_of(database, scope)
    (row,) = index_words(database, scope, OTHER)
    with database.transaction(write=True) as db:
        assert remove_session_from_graph(db, row) == 3
        assert remove_session_from_graph(db, row) is None
    assert statistics_of(database, scope) == before
    with database.transaction(write=False) as db:
        assert load_graph(db, scope).path_index.sessions == 1


def test_counters_equal_a_recount_after_any_changes(database: Database, scope: GraphScope) -> None:
    rng = random.Random(7)
    indexer = GraphIndexer()
    rows: list[SessionRow] = []
    for _ in range(12):
        fresh = [make_row(scope, outcome=rng.choice(["success", "error"])) for _ in range(3)]
        words = [" ".join(rng.choice(["1a", "2b", "3c"]) for _ in range(rng.randrange(5))) for _ in fresh]
        index(database, indexer, fresh, words)
        rows += fresh
        with database.transaction(write=True) as db:
            replace_session_outcome(db, rng.choice(rows), rng.choice(["success", "abandoned"]))
            remove_session_from_graph(db, rng.choice(rows))
    with database.transaction(write=False) as db:
        graph = load_graph(db, scope)
        active = active_paths(db, scope)
        counters = dict(read_graph_rows(db, scope, GraphTraceRow.trace_key, GraphTraceRow.n))
    assert +Counter(counters) == Counter(path.trace_key for path in active)
    kept = +Counter({key: variant.sessions for key, variant in graph.path_index.variants.items()})
    assert kept == Counter(graph.variant_of[path.trace_key] for path in active)


def test_versions_are_dense_and_the_kept_graph_catches_up_on_counters(
    database: Database, scope: GraphScope
) -> None:
    indexer = GraphIndexer()
    first = [make_row(scope, seal_seq=seq) for seq in (1, 2)]
    index(database, indexer, first, [USUAL, USUAL])
    later = make_row(scope, seal_seq=3)
    with database.transaction(write=False) as db:
        prepared = indexer.prepare(db, [later], {later.id: make_steps(OTHER)})
    with database.transaction(write=True) as db:
        remove_session_from_graph(db, first[0])
    with database.transaction(write=True) as db:
        assert indexer.commit(db, prepared, [later]) == {scope: 3}
        versions = db.exec(select(GraphVersionRow).where(*in_scope(GraphVersionRow, scope))).all()
    assert [(row.version, row.parent, row.kind, row.up_to_seal_seq) for row in versions] == [
        (1, 0, "sessions", 2),
        (2, 1, "removal", 2),
        (3, 2, "sessions", 3),
    ]
    assert indexer._held[scope].graph.path_index.sessions == 2


def test_a_batch_that_was_rolled_back_never_was(database: Database, scope: GraphScope) -> None:
    indexer = GraphIndexer()
    index(database, indexer, [make_row(scope)], [USUAL])
    lost = make_row(scope)
    with database.transaction(write=False) as db:
        prepared = indexer.prepare(db, [lost], {lost.id: make_steps(OTHER)})
    with pytest.raises(RuntimeError), database.transaction(write=True) as db:
        indexer.commit(db, prepared, [lost])
        raise RuntimeError
    assert index(database, indexer, [make_row(scope)], [USUAL]) == {scope: 2}
    with database.transaction(write=False) as db:
        assert (count(db, GraphNodeRow, scope), count(db, SessionPathRow, scope)) == (4, 2)
    # The steps of the lost session are as new as before.
    assert index(database, indexer, [make_row(scope)], [OTHER]) == {scope: 3}
    with database.transaction(write=False) as db:
        assert (count(db, GraphNodeRow, scope), count(db, GraphTraceRow, scope)) == (6, 2)


def test_two_runs_that_take_turns_make_nothing_twice(database: Database, scope: GraphScope) -> None:
    first, other = GraphIndexer(), GraphIndexer()
    for indexer, words in ((first, USUAL), (other, OTHER), (first, OTHER), (other, RETRIED), (first, USUAL)):
        index(database, indexer, [make_row(scope)], [words])
    with database.transaction(write=False) as db:
        assert count(db, GraphNodeRow, scope) == 6
        assert sorted(n for (n,) in read_graph_rows(db, scope, GraphTraceRow.n)) == [1, 2, 2]
        assert count(db, GraphVariantRow, scope) == 3


def test_a_session_enters_once(database: Database, scope: GraphScope) -> None:
    indexer, row = GraphIndexer(), make_row(scope)
    assert index(database, indexer, [row], [USUAL]) == {scope: 1}
    assert index(database, indexer, [row], [USUAL]) == {}
    assert index(database, GraphIndexer(), [row, make_row(scope)], [USUAL, USUAL]) == {scope: 2}
    with database.transaction(write=False) as db:
        assert count(db, SessionPathRow, scope) == 2


def test_each_session_of_a_large_batch_enters_once(database: Database, scope: GraphScope) -> None:
    indexer, rows = GraphIndexer(), [make_row(scope) for _ in range(501)]
    words = [USUAL] * len(rows)
    assert index(database, indexer, rows, words) == {scope: 1}
    assert index(database, indexer, rows, words) == {}


def test_a_session_deleted_while_it_was_prepared_leaves_nothing(
    database: Database, scope: GraphScope
) -> None:
    indexer, rows = GraphIndexer(), [make_row(scope), make_row(scope)]
    steps = {row.id: make_steps(words) for row, words in zip(rows, (USUAL, OTHER), strict=True)}
    with database.transaction(write=False) as db:
        prepared = indexer.prepare(db, rows, steps)
    rows[1].deleted_at = clock.now()
    with database.transaction(write=True) as db:
        indexer.commit(db, prepared, rows)
        assert [path.session_id for path in active_paths(db, scope)] == [rows[0].id]
        assert count(db, GraphNodeRow, scope) == 4


def test_replays_enter_no_graph(database: Database, scope: GraphScope) -> None:
    assert index(database, GraphIndexer(), [make_row(scope, origin="replay")], [USUAL]) == {}


def test_one_batch_may_hold_sessions_of_several_workflows(database: Database, scope: GraphScope) -> None:
    with database.transaction(write=True) as db:
        other = make_scope(db, mode="test")
    versions = index(database, GraphIndexer(), [make_row(scope), make_row(other)], [USUAL, USUAL])
    assert versions == {scope: 1, other: 1}


def test_sessions_sealed_in_a_pause_enter_neither_then_nor_later(
    database: Database, scope: GraphScope
) -> None:
    indexer = GraphIndexer()
    with database.transaction(write=True) as db:
        slot = compute_sealing_slot(scope.workflow, read_sealing_slot_count(db))
        counter = SealCounterRow(workspace_id=scope.workspace_id, mode=scope.mode, slot=slot, seal_seq=0)
        db.add(counter)
    for seq, is_on in ((1, None), (2, False), (3, None), (4, True)):
        with database.transaction(write=True) as db:
            if is_on is not None:
                set_memory_graph(db, scope, is_on)
        index(database, indexer, [make_row(scope, seal_seq=seq)], [USUAL])
        with database.transaction(write=True) as db:
            db.connection().execute(
                update(SealCounterRow)
                .where(col(SealCounterRow.workspace_id) == scope.workspace_id)
                .values(seal_seq=seq)
            )
    with database.transaction(write=False) as db:
        pauses = db.exec(select(GraphPauseRow).where(*in_scope(GraphPauseRow, scope))).all()
        assert [(pause.from_seq, pause.to_seq) for pause in pauses] == [(2, 3)]
        versions = db.exec(select(GraphVersionRow.up_to_seal_seq).where(*in_scope(GraphVersionRow, scope)))
        assert sorted(versions) == [1, 4]


def test_a_graph_paused_or_resumed_after_preparing_is_judged_at_the_commit(
    database: Database, scope: GraphScope
) -> None:
    indexer, row = GraphIndexer(), make_row(scope)
    for is_on, expected in ((False, {}), (True, {scope: 1})):
        with database.transaction(write=False) as db:
            prepared = indexer.prepare(db, [row], {row.id: make_steps(USUAL)})
        with database.transaction(write=True) as db:
            set_memory_graph(db, scope, is_on)
            assert indexer.commit(db, prepared, [row]) == expected


def test_a_pause_in_which_nothing_was_sealed_leaves_no_trace(database: Database, scope: GraphScope) -> None:
    with database.transaction(write=True) as db:
        for is_on in (False, True, False, False, True):
            set_memory_graph(db, scope, is_on)
        assert count(db, GraphPauseRow, scope) == 0
