"""Graphs without room: what unseen states and ways count as, in the graph, in SQL and in every answer."""

import random
from dataclasses import replace

import orjson
import pytest

from recorder.memory.graph.capacity import UNKEPT_TRACE, GraphCapacity
from recorder.memory.graph.graph import Graph
from recorder.memory.graph.rebuild import RebuildKind
from recorder.memory.queries.common_paths import describe_common_paths
from recorder.memory.queries.outliers import find_outliers
from recorder.memory.queries.similarity import index_similarity
from recorder.memory.steps.session_steps import Step
from recorder.memory.storage.consistency import check_graph_consistency
from recorder.memory.storage.graph_session_removal import purge_sessions_from_graph
from recorder.memory.storage.graph_store import load_graph, read_graph_rows, remove_session_from_graph
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.rebuilds import rebuild_graph
from recorder.memory.storage.sizes import read_graph_sizes
from recorder.memory.views.formats import FORMATS, format_graph_as_json, format_graph_view
from recorder.memory.views.graph_view import graph_view_of
from recorder.models.memory import GraphMicroStateRow, GraphNodeRow, GraphTraceRow, SessionPathRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.graph_sessions import add_workflow, make_row, make_scope, make_step, make_steps
from tests.support.indexed_graphs import index_sessions, read_indexed_graph

SCOPE = GraphScope(Tenant("wsp_a", "live"), "checkout")
KINDS: tuple[RebuildKind, ...] = ("anchored", "fresh")
ROOMY = GraphCapacity.of_megabytes(1_000)
NO_STATES, NO_WAYS = replace(ROOMY, state_bytes=0), replace(ROOMY, way_bytes=0)
#: Room for about ten states and ten ways.
SMALL = GraphCapacity(state_bytes=40_000, way_bytes=88_000)


def make_flood(sessions: int, steps: int, seed: int = 0) -> list[list[Step]]:
    """Return sessions of steps that are all new, of three kinds."""
    draw = random.Random(seed)
    kinds = ("click", "press:0:enter", "navigate")
    return [
        [
            replace(
                make_step("1a", 1_000 * index, features=[draw.getrandbits(60) for _ in range(20)]),
                action=draw.choice(kinds),
                target=str(draw.random()),
                names=(f"Name {draw.random()}",),
            )
            for index in range(steps)
        ]
        for _ in range(sessions)
    ]


def make_full_graph(capacity: GraphCapacity, *words: str) -> Graph:
    """Return a graph that took sessions while it had room, and has none left."""
    graph = Graph(SCOPE)
    graph.add_sessions({f"s{number}": make_steps(text) for number, text in enumerate(words)})
    graph.capacity = capacity
    return graph


def test_an_unseen_state_counts_as_the_exemplar_of_the_nearest_node() -> None:
    graph = make_full_graph(NO_STATES, "1a 2b")
    exemplar = make_step("1a")
    alike = replace(exemplar, micro_key=7, features=(*exemplar.features[:9], 2**60), names=("Pay",))
    change = graph.add_sessions({"t": [alike, make_step("2b", 500)]})
    assert (change.nodes, change.micro_states, change.traces) == ([], [], [])
    assert change.sessions[0].trace_key in graph.variant_of
    assert [(text.micro_key, text.text) for text in change.labels] == [(exemplar.micro_key, "Pay")]
    assert 7 not in graph.node_index.number_of


def test_an_unseen_state_that_is_like_none_is_one_of_the_other_steps_of_its_kind() -> None:
    graph = make_full_graph(NO_STATES, "1a 2b")
    strange = [replace(make_step("9z", 100, features=(5,)), names=("Anna Meier",), words="anna")]
    press = [replace(make_step("8y", 100, features=(6,)), action="press:0:enter")]
    change = graph.add_sessions({"t": strange + make_steps("1a"), "u": press + strange})
    assert {(node.label, node.kind, node.features) for node in change.nodes} == {
        ("Other click steps", "click", ()),
        ("Other press steps", "press", ()),
    }
    assert len(change.micro_states) == 2 and change.labels == []
    again = graph.add_sessions({"v": [replace(make_step("7x", features=(8,)), target="new")]})
    assert (again.nodes, again.micro_states) == ([], [])


def test_the_other_steps_have_the_same_ids_in_every_graph_of_a_workflow() -> None:
    first, second = make_full_graph(NO_STATES, "1a"), make_full_graph(NO_STATES, "1a 2b", "3c")
    for graph, seed in ((first, 1), (second, 2)):
        graph.add_sessions({"t": make_flood(1, 30, seed)[0]})
    ids = [
        {node.label: node.node_id for node in graph.nodes if "Other" in node.label}
        for graph in (first, second)
    ]
    assert ids[0] == ids[1] and len(ids[0]) == 3


def test_a_session_that_goes_an_unseen_way_counts_without_it() -> None:
    graph = make_full_graph(NO_WAYS, "1a 2b", "1a 2b")
    change = graph.add_sessions(
        {"known": make_steps("1a 2b"), "new": make_steps("2b 1a"), "none": [], "state": make_steps("3c")}
    )
    traces = {taken.session_id: taken for taken in change.sessions}
    assert (traces["new"].trace_key, traces["new"].entered_ms) == (UNKEPT_TRACE, ())
    assert traces["state"].trace_key == UNKEPT_TRACE
    assert UNKEPT_TRACE not in (traces["known"].trace_key, traces["none"].trace_key)
    assert (change.nodes, change.micro_states, change.paths) == ([], [], [])
    assert graph.path_of(UNKEPT_TRACE) is None
    known_path = graph.path_of(traces["known"].trace_key)
    assert known_path is not None and graph.path_index.sessions == 6


def test_steps_of_traces_are_bounded_too() -> None:
    graph = make_full_graph(replace(ROOMY, trace_steps=2), "1a 2b")
    change = graph.add_sessions({"t": make_steps("2b 1a")})
    assert change.sessions[0].trace_key == UNKEPT_TRACE


def test_a_batch_compares_no_more_screens_than_it_may() -> None:
    draw = random.Random(3)
    pool = [draw.getrandbits(60) for _ in range(40)]
    sessions = {
        f"s{number}": [make_step("1a", features=draw.sample(pool, 20)) for _ in range(100)]
        for number in range(4)
    }
    roomy, bounded = Graph(SCOPE), Graph(SCOPE, replace(ROOMY, comparisons=20_000))
    for graph in (roomy, bounded):
        graph.add_sessions(sessions)
    # The last state may be compared with all others.
    assert bounded.node_index.comparisons < 20_000 + 2 * 400 * 20 < roomy.node_index.comparisons
    assert len(bounded.nodes) < len(roomy.nodes)
    assert bounded.nodes[-1].label == "Other click steps"


def test_texts_are_bounded_but_tell_that_there_are_two_actors() -> None:
    graph = make_full_graph(NO_STATES, "1a")
    named = [replace(make_step("1a"), names=("Pay now",))]
    assert graph.add_sessions({"t": named}, actors={"t": 1}).labels != []
    graph.node_labels.nbytes = ROOMY.state_bytes
    assert len(graph.add_sessions({"u": named}, actors={"u": 2}).labels) == 1
    assert graph.add_sessions({"v": named}, actors={"v": 3}).labels == []


def test_memory_is_estimated_alike_when_a_graph_grows_and_when_it_is_loaded(database: Database) -> None:
    scope = create_scope(database)
    indexer = GraphIndexer(ROOMY)
    for flood in make_flood(4, 30):
        index_sessions(database, indexer, scope, [flood, make_steps("1a 2b 3c")])
    with database.transaction(write=False) as db:
        loaded = load_graph(db, scope)
    grown = Graph(scope)
    for flood in make_flood(4, 30):
        grown.add_sessions(
            {str(len(grown.variant_of)): flood, f"u{len(grown.variant_of)}": make_steps("1a 2b 3c")}
        )
    assert loaded.state_bytes == grown.state_bytes > 0
    assert loaded.way_bytes == grown.way_bytes > 0
    assert loaded.trace_steps == grown.trace_steps == 123


def create_scope(database: Database) -> GraphScope:
    """Return a workflow without sessions."""
    with database.transaction(write=True) as db:
        return make_scope(db)


def count_rows(database: Database, scope: GraphScope) -> tuple[int, int, int]:
    """Return the nodes, micro-states and traces that are stored."""
    with database.transaction(write=False) as db:
        return (
            len(read_graph_rows(db, scope, GraphNodeRow.number)),
            len(read_graph_rows(db, scope, GraphMicroStateRow.micro_key)),
            len(read_graph_rows(db, scope, GraphTraceRow.trace_key)),
        )


def assert_sound(database: Database, scope: GraphScope) -> None:
    """Fail if the graph's counters and its sessions differ, or a query does not answer."""
    with database.transaction(write=False) as db:
        check = check_graph_consistency(db, scope)
        assert (check.off_path, check.miscounted, check.unequal) == ([], [], [])
        assert read_graph_sizes(db, scope.tenant, [scope.workflow])[scope.workflow].nodes > 0
    columns = read_indexed_graph(database, scope)
    chosen = columns.current()
    view = graph_view_of(columns, chosen, workflow=scope.workflow)
    assert view.sessions == chosen.sum() == check.sessions
    for name in FORMATS:
        assert format_graph_view(view, name)[0]
    listed = (chosen & ~columns.is_anonymous).sum()
    assert len(find_outliers(columns, chosen, rank="typicality").rows) == listed


def test_a_flood_is_bounded_and_every_query_answers(database: Database) -> None:
    scope, indexer = create_scope(database), GraphIndexer(SMALL)
    usual = index_sessions(database, indexer, scope, [make_steps("1a 2b 3c")] * 3)
    before = None
    for flood in make_flood(30, 20):
        index_sessions(database, indexer, scope, [flood, make_steps("1a 2b 3c")])
        if not load(database, scope).has_room_for_ways():
            before = before or count_rows(database, scope)
    # Nothing but the row of each session is added once there is no room, and one trace without steps.
    assert before is not None
    assert count_rows(database, scope) == (before[0], before[1], before[2] + 1)
    assert_sound(database, scope)
    columns = read_indexed_graph(database, scope)
    body = orjson.loads(format_graph_as_json(graph_view_of(columns, columns.current(), workflow="checkout")))
    assert body["limited"] and 0 < body["sessions_beyond_limit"] < 30
    assert (body["sessions"], body["sessions_without_steps"]) == (63, 0)
    labels = {node["label"] for node in body["nodes"]}
    assert {"Other click steps", "Other press steps", "Other navigate steps"} <= labels
    (path,) = [path for path in describe_common_paths(columns, columns.current()) if path.session_count == 33]
    assert path.exact_frequency == 33 / 63
    unkept = columns.session_id[columns.is_unkept][0].decode()
    similar = index_similarity(columns)
    row = {session.decode(): number for number, session in enumerate(columns.session_id.tolist())}
    assert similar.nearest(row[unkept], 10) == []
    assert {other.similarity for other in similar.nearest(row[usual[0].id], 100)} == {1.0}


def load(database: Database, scope: GraphScope) -> Graph:
    """Return the graph as sealing loads it."""
    with database.transaction(write=False) as db:
        return load_graph(db, scope, SMALL)


def test_a_graph_with_room_says_so(database: Database) -> None:
    scope = create_scope(database)
    index_sessions(database, GraphIndexer(), scope, [make_steps("1a 2b"), []])
    columns = read_indexed_graph(database, scope)
    body = orjson.loads(format_graph_as_json(graph_view_of(columns, columns.current(), workflow="checkout")))
    assert (body["limited"], body["sessions_beyond_limit"], body["sessions_without_steps"]) == (False, 0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_graph_is_rebuilt_and_goes_on(database: Database, kind: RebuildKind) -> None:
    scope, indexer = create_scope(database), GraphIndexer(SMALL)
    for flood in make_flood(20, 12):
        index_sessions(database, indexer, scope, [flood, make_steps("1a 2b 3c")])
    before = read_indexed_graph(database, scope)
    ids = {node.node_id for node in before.nodes}
    report = rebuild_graph(database, scope, kind)
    assert report is not None and report.sessions == 40
    again = rebuild_graph(database, scope, kind)
    assert again is not None and again.changed == 0
    after = read_indexed_graph(database, scope)
    assert ids <= {node.node_id for node in after.nodes}
    assert after.is_unkept.sum() == before.is_unkept.sum() > 0
    assert after.step_ms.tolist() == before.step_ms.tolist()
    index_sessions(database, indexer, scope, [*make_flood(5, 12, seed=9), make_steps("1a 2b 3c")])
    assert_sound(database, scope)
    # Stand-ins are exemplars, which a rebuild keeps at their nodes.
    graph = load(database, scope)
    live = [node for node in graph.nodes if node.merged_into is None]
    assert all(graph.node_index.number_of[node.micro_key] == node.number for node in live)


def test_sessions_leave_a_full_graph(database: Database) -> None:
    scope, indexer = create_scope(database), GraphIndexer(SMALL)
    rows = [index_sessions(database, indexer, scope, [flood])[0] for flood in make_flood(20, 12)]
    columns = read_indexed_graph(database, scope)
    unkept = {session.decode() for session in columns.session_id[columns.is_unkept].tolist()}
    chosen = [row for row in rows if row.id in unkept]
    kept = [row for row in rows if row.id not in unkept]
    with database.transaction(write=True) as db:
        for row in (chosen[0], kept[0]):
            remove_session_from_graph(db, row)
        purge_sessions_from_graph(db, scope, [chosen[1].id, kept[1].id])
    assert_sound(database, scope)
    columns = read_indexed_graph(database, scope)
    assert columns.current().sum() == 18
    assert (columns.is_unkept & columns.current()).sum() == len(chosen) - 1
    with database.transaction(write=False) as db:
        ids = {row.session_id for row in read_graph_rows(db, scope, SessionPathRow.session_id)}
    assert not ids & {chosen[1].id, kept[1].id}
    index_sessions(database, indexer, scope, make_flood(2, 12, seed=5))
    assert_sound(database, scope)


def test_other_workflows_of_a_batch_are_as_without_the_flood(database: Database) -> None:
    flooded = create_scope(database)
    alone = create_scope(database)
    beside = GraphScope(flooded.tenant, "refund")
    with database.transaction(write=True) as db:
        add_workflow(db, beside)
    indexer, quiet = GraphIndexer(SMALL, kept_bytes=1_000), GraphIndexer(SMALL)
    words = ("1a 2b 3c", "1a 3c", "1a 2b 3c", "4d 2b")
    for flood, text in zip(make_flood(4, 30), words, strict=True):
        rows = [make_row(flooded), make_row(beside)]
        steps = {rows[0].id: flood, rows[1].id: make_steps(text)}
        with database.transaction(write=False) as db:
            prepared = indexer.prepare(db, rows, steps)
        with database.transaction(write=True) as db:
            indexer.commit(db, prepared, rows)
        index_sessions(database, quiet, alone, [make_steps(text)])
    shown, expected = (read_indexed_graph(database, scope) for scope in (beside, alone))
    assert [node.label for node in shown.nodes] == [node.label for node in expected.nodes]
    paths = [
        [(path.labels, path.session_count) for path in describe_common_paths(columns, columns.current())]
        for columns in (shown, expected)
    ]
    assert sorted(paths[0]) == sorted(paths[1])
    assert not shown.is_unkept.any()
    for scope in (flooded, beside):
        assert_sound(database, scope)
