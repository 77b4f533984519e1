"""Rebuilds in SQL: written in one transaction, seen by readers and by sealing. Spec §4.2."""

import random
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session as DbSession

from recorder.errors import Unavailable
from recorder.memory.graph.rebuild import RebuildKind
from recorder.memory.queries.common_paths import describe_common_paths
from recorder.memory.steps.session_steps import Step
from recorder.memory.storage import rebuilds
from recorder.memory.storage.consistency import check_graph_consistency
from recorder.memory.storage.graph_store import load_graph, remove_session_from_graph, replace_session_outcome
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.rebuilds import list_graph_scopes, rebuild_graph
from recorder.models.workflow import WorkflowRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.graph_sessions import make_scope, make_step, make_steps
from tests.support.indexed_graphs import index_sessions, read_indexed_graph
from tests.support.statements import before_each_statement

KINDS: tuple[RebuildKind, ...] = ("anchored", "fresh")


@pytest.fixture
def scope(database: Database) -> GraphScope:
    """Return a workflow without sessions."""
    with database.transaction(write=True) as db:
        return make_scope(db)


def vague(rng: random.Random) -> list[Step]:
    """Return a session of two acts on screens that differ from time to time."""
    return [
        make_step(word, 1_000 * number, features=[100 * number + token for token in rng.sample(range(12), 9)])
        for number, word in enumerate(("1a", "2b"), 1)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_readers_see_the_new_structure_and_old_ids(
    database: Database, scope: GraphScope, kind: RebuildKind
) -> None:
    rng = random.Random(1)
    rows = [index_sessions(database, GraphIndexer(), scope, [vague(rng)])[0] for _ in range(30)]
    before = read_indexed_graph(database, scope)
    report = rebuild_graph(database, scope, kind)
    after = read_indexed_graph(database, scope)
    assert report is not None and report.changed > 0
    assert (report.sessions, report.version, after.version) == (30, 31, 31)
    assert report.nodes < report.nodes_before == len(before.nodes)
    assert {node.node_id for node in before.nodes} <= {node.node_id for node in after.nodes}
    assert len({node.representative for node in after.nodes}) == report.nodes == 2
    assert after.session_id.tolist() == before.session_id.tolist()
    # From the start to each node and to the end: whatever the nodes are, the session's time is the same.
    assert after.step_ms.tolist() == before.step_ms.tolist()
    (path,) = describe_common_paths(after, after.current())
    assert (path.session_count, path.frequency) == (30, 1)
    with database.transaction(write=False) as db:
        check = check_graph_consistency(db, scope)
        loaded = load_graph(db, scope)
    assert (check.off_path, check.miscounted, check.unequal) == ([], [], [])
    assert loaded.path_index.sessions == len(rows)


def test_rebuilding_again_makes_no_version(database: Database, scope: GraphScope) -> None:
    rng = random.Random(2)
    for _ in range(12):
        index_sessions(database, GraphIndexer(), scope, [vague(rng)])
    first, second = (rebuild_graph(database, scope, "anchored") for _ in range(2))
    assert first is not None and second is not None
    assert (second.version, second.changed) == (first.version, 0)


def test_sealing_goes_on_where_a_rebuild_ended(database: Database, scope: GraphScope) -> None:
    rng, indexer = random.Random(3), GraphIndexer()
    for _ in range(10):
        index_sessions(database, indexer, scope, [vague(rng)])
    rebuild_graph(database, scope, "anchored")
    rows = index_sessions(database, indexer, scope, [vague(rng), make_steps("1a 2b")])
    after = read_indexed_graph(database, scope)
    representatives = {node.representative for node in after.nodes}
    assert all(after.nodes[number].representative == number for number in after.variant_nodes.tolist())
    assert set(after.variant_nodes.tolist()) <= representatives
    with database.transaction(write=True) as db:
        replace_session_outcome(db, rows[0], "error")
        remove_session_from_graph(db, rows[1])
        check = check_graph_consistency(db, scope)
    assert (check.sessions, check.off_path, check.miscounted) == (11, [], [])


def test_a_graph_that_grows_by_half_asks_for_a_rebuild(database: Database, scope: GraphScope) -> None:
    indexer = GraphIndexer()
    calls = []
    for size in (49, 1, 20, 4, 1, 100):
        index_sessions(database, indexer, scope, [make_steps("1a 2b")] * size)
        calls.append(indexer.take_grown())
    assert calls == [[], [scope], [], [], [scope], [scope]]
    assert indexer.take_grown() == []


def test_a_rebuild_that_would_take_longer_than_its_budget_is_left_to_the_night(
    database: Database, scope: GraphScope
) -> None:
    indexer = GraphIndexer(rebuild_budget_s=1e-9)
    index_sessions(database, indexer, scope, [make_steps("1a 2b")] * 50)
    assert indexer.take_grown() == []


def test_the_last_rebuild_of_a_graph_predicts_its_next_one(database: Database, scope: GraphScope) -> None:
    indexer = GraphIndexer()
    for size, seconds, grown in ((50, 0.01, [scope]), (50, 60.0, [scope]), (100, 0.01, [])):
        index_sessions(database, indexer, scope, [make_steps("1a 2b")] * size)
        assert indexer.take_grown() == grown
        indexer.record_rebuild(scope, seconds)
    index_sessions(database, indexer, scope, [make_steps("1a 2b")] * 200)
    assert indexer.take_grown() == [scope]


def test_sessions_that_come_while_it_computes_are_built_in(
    database: Database, scope: GraphScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, indexer = random.Random(5), GraphIndexer()
    for _ in range(8):
        index_sessions(database, indexer, scope, [vague(rng)])
    reading = rebuilds.read_rebuild_input
    looks = 0

    def read_late(db: DbSession, *of: Any) -> rebuilds.RebuildInput:
        nonlocal looks
        looks += 1
        recorded = reading(db, *of)
        if looks <= 2:
            index_sessions(database, indexer, scope, [vague(rng)])
        return recorded

    monkeypatch.setattr(rebuilds, "read_rebuild_input", read_late)
    report = rebuild_graph(database, scope, "fresh")
    assert report is not None and (report.sessions, looks) == (10, 3)
    with database.transaction(write=False) as db:
        assert check_graph_consistency(db, scope).off_path == []


def test_a_large_busy_graph_is_left_for_a_quieter_hour(
    database: Database, scope: GraphScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, indexer = random.Random(7), GraphIndexer()
    index_sessions(database, indexer, scope, [vague(rng)])
    reading = rebuilds.read_rebuild_input

    def read_while_sealing(db: DbSession, *of: Any) -> rebuilds.RebuildInput:
        recorded = reading(db, *of)
        index_sessions(database, indexer, scope, [vague(rng)])
        return recorded

    monkeypatch.setattr(rebuilds, "read_rebuild_input", read_while_sealing)
    assert rebuild_graph(database, scope, "anchored", most_locked_s=0.0) is None
    assert len(read_indexed_graph(database, scope).session_id) == 5


def test_a_rebuild_that_fails_leaves_the_graph_as_it_was(database: Database, scope: GraphScope) -> None:
    rng = random.Random(6)
    for _ in range(8):
        index_sessions(database, GraphIndexer(), scope, [vague(rng)])
    before = read_indexed_graph(database, scope)

    def fail(statement: str) -> None:
        if statement.startswith(("UPDATE graph_variants", "DELETE FROM graph_variants")):
            raise Unavailable("The database")

    # Nodes and paths are written before variants.
    with before_each_statement(fail), pytest.raises(Unavailable):
        rebuild_graph(database, scope, "anchored")
    after = read_indexed_graph(database, scope)
    assert (after.version, after.nodes, after.paths) == (before.version, before.nodes, before.paths)


def test_unknown_workflows_and_empty_graphs_are_left_alone(database: Database, scope: GraphScope) -> None:
    unknown = GraphScope(Tenant(scope.workspace_id, "test"), "nothing")
    assert rebuild_graph(database, unknown, "anchored") is None
    report = rebuild_graph(database, scope, "fresh")
    assert report is not None and (report.version, report.changed) == (0, 0)
    with database.transaction(write=False) as db:
        assert scope not in list_graph_scopes(db) and unknown not in list_graph_scopes(db)


def test_graphs_are_those_with_sessions_or_a_version(database: Database, scope: GraphScope) -> None:
    index_sessions(database, GraphIndexer(), scope, [make_steps("1a 2b")])
    with database.transaction(write=True) as db:
        counted, empty = make_scope(db), make_scope(db)
        names = {"workspace_id": counted.workspace_id, "mode": counted.mode, "workflow": counted.workflow}
        db.get_one(WorkflowRow, tuple(names.values())).session_count = 1
    with database.transaction(write=False) as db:
        listed = list_graph_scopes(db)
    assert {scope, counted} <= set(listed) and empty not in listed
    assert listed == sorted(listed, key=lambda graph: (graph.workspace_id, graph.mode, graph.workflow))


def test_a_check_names_what_is_wrong(database: Database, scope: GraphScope, tmp_path: Path) -> None:
    (row,) = index_sessions(database, GraphIndexer(), scope, [make_steps("1a 2b")])
    with database.transaction(write=True) as db:
        connection = db.connection()
        connection.exec_driver_sql(f"UPDATE graph_traces SET n = 3 WHERE workflow = '{scope.workflow}'")
        connection.exec_driver_sql(
            f"UPDATE graph_paths SET merged_into = 0 WHERE workflow = '{scope.workflow}'"
        )
        check = check_graph_consistency(db, scope)
        db.rollback()
    assert check.off_path == [row.id]
    assert [(counter, sessions) for _, counter, sessions in check.miscounted] == [(3, 1)]
