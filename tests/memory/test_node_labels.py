"""Labels of nodes: texts that sessions share, and never those of one person. Spec §2.6."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recorder.memory.graph.nodes import GraphScope
from recorder.memory.queries.columns_cache import read_graph_columns
from recorder.memory.storage.graph_session_removal import purge_sessions_from_graph
from recorder.memory.storage.graph_store import remove_session_from_graph
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.rebuilds import rebuild_graph
from recorder.memory.storage.versions import read_newest_version
from recorder.models.session import SessionRow
from recorder.storage.database import Database
from recorder.tenant import Tenant
from tests.support.graph_sessions import START, add_workflow, make_step

SCOPE = GraphScope(Tenant("wsp_labels", "live"), "checkout")
_TABLES = (
    "graph_labels",
    "graph_session_paths",
    "graph_micro_states",
    "graph_nodes",
    "graph_paths",
    "graph_traces",
    "graph_variants",
    "graph_versions",
    "workflows",
)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Yield a database of either engine with one workflow, in which nothing was recorded."""
    opened = Database(database_url)
    with opened.transaction(write=True) as db:
        for table in _TABLES:
            db.connection().exec_driver_sql(f"DELETE FROM {table}")
        add_workflow(db, SCOPE)
    yield opened
    opened.close()


def seal(database: Database, sessions: Sequence[tuple[str, dict[str, Any]]], indexer: GraphIndexer) -> None:
    """Take sessions of one step each into the graph: `(actor, texts of the step)`."""
    with database.transaction(write=True) as db:
        head = read_newest_version(db, SCOPE)
        first = 0 if head is None else head.version * 1_000
        rows, steps = [], {}
        for number, (actor, texts) in enumerate(sessions, first):
            row = SessionRow(
                id=f"ses_{number:026d}",
                workspace_id=SCOPE.workspace_id,
                mode=SCOPE.mode,
                workflow=SCOPE.workflow,
                status="sealed",
                created_at=START,
                started_at=START,
                stopped_at=START,
                sealed_at=START + timedelta(minutes=1),
                duration_ms=0,
                outcome="success",
                seal_seq=number + 1,
                actor_id=actor,
                actor_kind="human",
            )
            word = texts.pop("word", "1a")
            label = texts.pop("label", "Click button")
            rows.append(row)
            steps[row.id] = [replace(make_step(word), label=label, **texts)]
        indexer.commit(db, indexer.prepare(db, rows, steps), rows)


def labels(database: Database) -> list[str]:
    """Return the labels of the nodes, by number."""
    with database.transaction(write=False) as db:
        head = read_newest_version(db, SCOPE)
        assert head is not None
        return [node.label for node in read_graph_columns(db, SCOPE, head.version).nodes]


def named(*names: str, actor: str = "ada") -> list[tuple[str, dict[str, Any]]]:
    """Return sessions that click a button of these names."""
    return [(actor, {"names": (f"Click {name}",)}) for name in names]


def test_a_name_is_shown_from_three_sessions_on(database: Database) -> None:
    indexer = GraphIndexer()
    seal(database, named("Approve", "Approve"), indexer)
    assert labels(database) == ["Click button"]
    seal(database, named("Approve"), indexer)
    assert labels(database) == ["Click Approve"]


def test_two_actors_must_share_a_name_where_the_workflow_has_two(database: Database) -> None:
    indexer = GraphIndexer()
    seal(database, named(*["Maria Kowalska"] * 5), indexer)
    assert labels(database) == ["Click Maria Kowalska"]
    seal(database, [("bob", {"word": "2b", "names": ("Click Pay",)})], indexer)
    assert labels(database) == ["Click button", "Click button (2)"]
    seal(database, named("Maria Kowalska", actor="bob"), indexer)
    assert labels(database)[0] == "Click Maria Kowalska"


def test_names_of_an_item_of_a_list_are_not_shown(database: Database) -> None:
    customers = [f"Customer {letter}" for letter in "abcdefghijkl"]
    texts = {"locations": ("in results",), "words": "Click row"}
    sessions = [(actor, {"names": (f"Click {name}",), **texts}) for name in customers for actor in ("a", "b")]
    seal(database, sessions, GraphIndexer())
    assert labels(database) == ["Click row in results"]


def test_words_name_what_has_a_code_with_a_number_for_a_name(database: Database) -> None:
    codes = [(f"INV-{number}", "Click invoice link") for number in range(1042, 1046)]
    rooms = [(f"Room {number}", "Click meeting link") for number in range(7, 11)]
    sessions = [
        ("ada", {"word": word, "names": (f"Click {name}",), "words": words})
        for word, items in (("1a", codes), ("2b", rooms))
        for name, words in items
    ]
    seal(database, sessions, GraphIndexer())
    assert sorted(labels(database)) == ["Click Room #", "Click invoice link"]


def test_a_location_is_shared_before_it_is_shown(database: Database) -> None:
    sessions = [("ada", {"locations": (f"in inbox of {name}",)}) for name in ("Ada", "Bob", "Cy")]
    seal(database, sessions, GraphIndexer())
    assert labels(database) == ["Click button"]


@pytest.mark.parametrize(
    ("locations", "label"),
    [
        ([("near Total", "in cart")] * 3, "Click button near Total"),
        ([(f"near {name}", "in cart") for name in ("Ada", "Bob", "Cy")], "Click button in cart"),
        ([("on page with pay",)] * 3, "Click button on page with pay"),
        (
            [("near Year",), ("near Genre",), ("near Director",)] * 3,
            "Click button near Director, Genre or Year",
        ),
        ([(f"near Text {letter}", "in cart") for letter in "abcd"] * 3, "Click button in cart"),
        ([("in section ##",)] * 3, "Click button in section"),
    ],
)
def test_an_element_without_a_name_is_located_by_what_sessions_share(
    database: Database, locations: list[tuple[str, ...]], label: str
) -> None:
    seal(database, [("ada", {"locations": some}) for some in locations], GraphIndexer())
    assert labels(database) == [label]


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["Room 42"] * 4, "Click Room 42"),
        (["Room 42"] * 3 + ["Room 7"], "Click Room #"),
        (["Room 7"] + ["Room 42"] * 3, "Click Room #"),
        (["Room 9", "Room 42"] * 3, "Click Room 9 or 42"),
        (["Room 9", "Room 42", "Room 7"] * 3, "Click Room 7, 9 or 42"),
        (["Room 9", "Room 42", "Room 7", "Room 1"] * 3, "Click Room #"),
        (["1 of 2", "2 of 3"] * 3, "Click # of #"),
    ],
)
def test_digits_are_shown_where_they_never_vary_or_few_are_shared(
    database: Database, names: list[str], label: str
) -> None:
    seal(database, named(*names), GraphIndexer())
    assert labels(database) == [label]


def test_equal_labels_differ_by_location_then_kind_then_number(database: Database) -> None:
    def thrice(word: str, **texts: Any) -> list[tuple[str, dict[str, Any]]]:
        return [("ada", {"word": word, "names": ("Click Submit",), **texts}) for _ in range(3)]

    indexer = GraphIndexer()
    seal(database, thrice("1a", locations=("in login",)), indexer)
    seal(database, thrice("2b", locations=("in search",)), indexer)
    assert labels(database) == ["Click Submit in login", "Click Submit in search"]
    seal(database, thrice("3c", label="Click link"), indexer)
    seal(database, thrice("4d"), indexer)
    assert labels(database)[2:] == ["Click Submit (link)", "Click Submit (button)"]
    seal(database, thrice("5e"), indexer)
    assert labels(database)[3:] == ["Click Submit (button)", "Click Submit (button) (2)"]


def test_a_place_that_equal_labels_share_does_not_distinguish_them(database: Database) -> None:
    places = {"1a": ("in cart", "on page with pay"), "2b": ("in cart", "on page with send")}
    texts = [{"word": word, "names": ("Click Next",), "locations": places[word]} for word in places]
    seal(database, [("ada", dict(some)) for some in texts * 3], GraphIndexer())
    assert sorted(labels(database)) == ["Click Next on page with pay", "Click Next on page with send"]


@pytest.mark.parametrize("kind", ["removal", "purge"])
def test_a_session_that_goes_takes_its_names_along(database: Database, kind: str) -> None:
    indexer = GraphIndexer()
    seal(database, named("Approve", "Approve", "Approve"), indexer)
    gone = f"ses_{2:026d}"
    with database.transaction(write=True) as db:
        if kind == "purge":
            purge_sessions_from_graph(db, SCOPE, [gone])
        else:
            remove_session_from_graph(
                db,
                SessionRow(
                    id=gone,
                    workspace_id=SCOPE.workspace_id,
                    mode=SCOPE.mode,
                    workflow=SCOPE.workflow,
                    status="sealed",
                    created_at=START,
                ),
            )
    assert labels(database) == ["Click button"]
    seal(database, named("Approve"), indexer)
    assert labels(database) == ["Click Approve"]


@pytest.mark.parametrize("kind", ["anchored", "fresh"])
def test_a_rebuild_keeps_labels(database: Database, kind: Any) -> None:
    seal(database, named(*["Approve"] * 3), GraphIndexer())
    rebuild_graph(database, SCOPE, kind)
    assert labels(database) == ["Click Approve"]


def test_the_texts_that_are_kept_are_bounded(database: Database) -> None:
    indexer = GraphIndexer()
    seal(database, named(*(f"Name {chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(300))), indexer)
    seal(database, named(*["Name aa"] * 300), indexer)
    with database.transaction(write=False) as db:
        stored = db.connection().exec_driver_sql("SELECT count(*) FROM graph_labels").scalar_one()
    assert stored <= 9 * 5
