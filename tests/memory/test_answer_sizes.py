"""Answers of the graph have at most the bytes of a page, whatever their limit allows. Contract §1, §4."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import networkx as nx
import orjson
import pytest
from sqlmodel import col, select

from recorder import limits
from recorder.memory.queries.common_paths import list_paths
from recorder.memory.queries.comparison import SessionSelection
from recorder.memory.views.formats import format_graph_view
from recorder.memory.views.graph_view import GraphView, ViewEdge, ViewNode
from recorder.memory_service.graph_requests import read_graph_view_comparison
from recorder.memory_service.session_rankings import rank_similar_sessions
from recorder.models.memory import GraphPathRow
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.storage.database import Database
from recorder.storage.list_pages import take_page_items
from recorder.tenant import GraphScope, Tenant
from tests.support.graph_sessions import START, database_with, index_words

SCOPE = GraphScope(Tenant("wsp_a", "live"), "checkout")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Yield a database with one empty workflow."""
    yield from database_with(SCOPE, tmp_path)


def index_long_paths(database: Database) -> list[str]:
    """Return the ids of three paths of 48,000 nodes each, the most frequent first."""
    index_words(database, SCOPE, *["1a 2b"] * 3, *["3c 4d"] * 2, "5e 6f")
    with database.transaction(write=True) as db:
        for path in db.exec(select(GraphPathRow).order_by(col(GraphPathRow.number))):
            path.nodes = path.nodes * 24_000
            db.add(path)
    with database.transaction(write=False) as db:
        return list(db.exec(select(GraphPathRow.path_id).order_by(col(GraphPathRow.number))))


def add_metadata(database: Database, rows: list[SessionRow], size: int) -> None:
    """Store sessions with metadata of this size."""
    with database.transaction(write=True) as db:
        for row in rows:
            db.add_all([row, SessionMetadataRow(session_id=row.id, metadata_={"note": "x" * size})])


def test_paths_end_before_the_bytes_of_a_page(database: Database) -> None:
    ids = index_long_paths(database)
    with database.transaction(write=False) as db:
        paths = list_paths(db, tenant=SCOPE.tenant, workflow="checkout", limit=500)
        (first,) = list_paths(db, tenant=SCOPE.tenant, workflow="checkout", limit=1)
    assert [(path.path_id, path.frequency) for path in paths] == [(ids[0], 3 / 6), (ids[1], 2 / 6)]
    assert 3 * 10**6 < sum(len(path.model_dump_json()) for path in paths) <= limits.PAGE_BYTES
    assert first == paths[0]


def test_the_paths_of_a_comparison_end_before_the_bytes_of_a_page(database: Database) -> None:
    ids = index_long_paths(database)
    with database.transaction(write=True) as db:
        for path in db.exec(select(GraphPathRow)):
            path.nodes = path.nodes * 2
            db.add(path)
    sides = {
        "selected": SessionSelection(since=START),
        "against": SessionSelection(until=START - timedelta(days=1)),
    }
    with database.transaction(write=False) as db:
        comparison = read_graph_view_comparison(
            db, tenant=SCOPE.tenant, workflow="checkout", **sides, min_change=0.01, limit=500
        )
    assert [path.path_id for path in comparison.paths] == [ids[0]]
    assert len(comparison.nodes) == 6


def test_similar_sessions_end_before_the_bytes_of_a_page(database: Database) -> None:
    rows = index_words(database, SCOPE, *["1a 2b"] * 6)
    add_metadata(database, rows, 1_300_000)
    with database.transaction(write=False) as db:
        similar = rank_similar_sessions(db, tenant=SCOPE.tenant, session_id=rows[0].id, limit=500)
        (first,) = rank_similar_sessions(db, tenant=SCOPE.tenant, session_id=rows[0].id, limit=1)
    assert [session.id for session in similar] == [row.id for row in rows[1:4]]
    assert first == similar[0]


def make_large_view() -> GraphView:
    """Return a view of 20,000 nodes that each session may leave; the last three are its common path."""
    ids = [f"nde_{number:020}" for number in range(20_000)]
    outcomes = (1_000_000, 2_000_000, 3_000_000)
    edges = [
        ViewEdge(source, target, 6_000_000, 7_000_000, 123_456_789, outcomes, 1 / 3)
        for source, target in zip([None, *ids], [*ids, None], strict=True)
    ]
    edges += [ViewEdge(node_id, None, 6_000_000, 7_000_000, 9, outcomes, 2 / 3) for node_id in ids[:-1]]
    labels = ("Click " + '"\U0001f600' * 20, "\ud800 half", "Open")
    return GraphView(
        workflow="checkout",
        version=1,
        sessions=6_000_000,
        outcomes=outcomes,
        nodes=tuple(
            ViewNode(node_id, labels[rank % 3], "click", 6_000_000, 7_000_000, outcomes, 8_000_000)
            for rank, node_id in enumerate(ids)
        ),
        edges=tuple(edges),
        spine=tuple(ids[-3:]),
        recovery=frozenset(ids[:2] + ids[-4:-3]),
        new=frozenset(ids),
        loops=(tuple(ids),),
        required=tuple(ids),
        likeliest=tuple(ids),
        hidden=7,
    )


def test_a_graph_ends_before_the_bytes_of_a_page() -> None:
    view = make_large_view()
    content, _ = format_graph_view(view, "json")
    body = orjson.loads(content)
    assert 0.7 * limits.PAGE_BYTES < len(content) <= limits.PAGE_BYTES
    shown = [node["id"] for node in body["nodes"][2:]]
    # The first nodes and the common path, in the order of the view.
    assert shown == [node.node_id for node in (*view.nodes[: len(shown) - 3], *view.nodes[-3:])]
    assert (body["truncated"], body["hidden_nodes"]) == (True, 7 + 20_000 - len(shown))
    assert body["spine"] == list(view.spine) and body["required_nodes"] == shown == body["loops"][0]
    assert [node["id"] for node in body["nodes"] if node["recovery_point"]] == shown[:2]
    # A graph that NetworkX reads: all edges between the shown nodes, and no others.
    graph = nx.node_link_graph(body, edges="edges")
    ends = {*shown, None}
    assert graph.number_of_edges() == sum(edge.source in ends and edge.target in ends for edge in view.edges)
    assert set(graph) == {*shown, "start", "end"}
    for format in ("graphml", "dot"):
        assert format_graph_view(view, format)[0].decode().count("nde_") < 40 * len(shown)


def test_a_graph_that_has_room_is_whole() -> None:
    view = make_large_view()
    nodes = view.nodes[:2]
    edges = tuple(edge for edge in view.edges if edge.target == nodes[1].node_id)
    body = orjson.loads(format_graph_view(replace(view, nodes=nodes, edges=edges, loops=()), "json")[0])
    assert (body["truncated"], body["hidden_nodes"], len(body["nodes"])) == (False, 7, 4)


def test_an_item_larger_than_a_page_is_alone_and_the_next_ones_are_not_made() -> None:
    made: list[int] = []

    def make() -> Iterator[int]:
        for number in range(9):
            made.append(number)
            yield number

    assert take_page_items(make(), size_of=lambda _: limits.PAGE_BYTES + 1) == [0]
    assert made == [0, 1]
    assert take_page_items(make(), size_of=lambda _: limits.PAGE_BYTES // 4) == [0, 1, 2, 3]
    assert take_page_items(iter(())) == []
