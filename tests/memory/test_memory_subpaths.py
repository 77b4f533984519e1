"""Sub-paths: nodes one directly after the other, wherever in a session; ids through merges. Contract §4."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from sqlmodel import col, select, update

from recorder.errors import NotFound
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.common_paths import list_paths
from recorder.memory.queries.path_selection import PathSelection, find_variants_with_subpath, select_path
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.session_paths import read_path_ids
from recorder.models.memory import GraphPathRow
from recorder.storage.database import Database
from recorder.tenant import Tenant
from tests.support.databases import create_file
from tests.support.graph_columns import columns_of
from tests.support.graph_sessions import index_words, make_row, make_scope, make_steps

COLUMNS = columns_of(
    [
        ("ABCD", "success", 1),
        ("ABD", "success", 1),
        ("C", "error", 1),
        ("", "success", 1),
        ("BCBCD", "error", 2),
    ]
)


@pytest.mark.parametrize(
    ("nodes", "held_by"),
    [
        ("BC", [0, 4]),
        ("ABD", [1]),
        ("A", [0, 1]),
        ("D", [0, 1, 4]),
        ("BCD", [0, 4]),
        ("CB", [4]),
        ("AC", []),
        ("DC", []),
        ("BCBCD", [4]),
        ("BCBCDA", []),
        ("", [3]),
    ],
)
def test_nodes_are_looked_for_side_by_side(nodes: str, held_by: list[int]) -> None:
    numbers = ["ABCD".index(node) for node in nodes]
    assert np.flatnonzero(find_variants_with_subpath(COLUMNS, numbers)).tolist() == held_by


def test_a_sequence_does_not_run_from_one_variant_into_the_next() -> None:
    columns = columns_of([("AB", "success", 1), ("CD", "success", 1)])
    assert not find_variants_with_subpath(columns, [1, 2]).any()
    assert not find_variants_with_subpath(columns, [3, 0]).any()


def test_long_sequences_are_found_wherever_they_are() -> None:
    chance = Random(3)
    ways = ["".join(chance.choices("AB", k=chance.randrange(15, 80))) for _ in range(60)]
    ways += [way[:40] + "C" + way[40:] for way in ways]
    columns = columns_of([(way, "success", 1) for way in ways])
    order = "".join(node.label for node in columns.nodes)
    for way in ways:
        for length in (15, 16, 17, 40):
            part = way[3 : 3 + length]
            held = find_variants_with_subpath(columns, [order.index(node) for node in part])
            assert held.tolist() == [part in other for other in ways]


def test_an_empty_graph_holds_nothing() -> None:
    assert find_variants_with_subpath(GraphColumns(), [0]).tolist() == []


def test_filters_and_a_bound_choose_among_the_sessions_of_a_path() -> None:
    path = PathSelection("checkout", COLUMNS, find_variants_with_subpath(COLUMNS, (1, 2)))
    assert path.session_ids() == ["ses_0", "ses_4", "ses_5"]
    assert path.session_ids(outcome="error") == ["ses_4", "ses_5"]
    assert path.session_ids(below="ses_5") == ["ses_0", "ses_4"]
    assert path.session_ids(actor_kind="human") == []


def test_a_path_that_was_merged_into_another_stands_for_that_one(tmp_path: Path) -> None:
    database = Database(create_file(tmp_path))
    with database.transaction(write=True) as db:
        scope = make_scope(db)
        rows = [make_row(scope), make_row(scope)]
        steps = {row.id: make_steps(words) for row, words in zip(rows, ("1a 2b", "7g 8h"), strict=True)}
        indexer = GraphIndexer()
        indexer.commit(db, indexer.prepare(db, rows, steps), rows)
        older, younger = db.exec(select(GraphPathRow.path_id).order_by(col(GraphPathRow.number)))
        db.exec(update(GraphPathRow).where(col(GraphPathRow.number) == 1).values(merged_into=0))
    with database.transaction(write=False) as db:
        ids, other = (select_path(db, tenant=scope.tenant, path=path_id) for path_id in (younger, older))
        assert ids is not None and other is not None
        assert ids.columns is other.columns and ids.variants.tolist() == other.variants.tolist()
        held = select_path(db, tenant=scope.tenant, subpath=younger)
        assert held is not None and len(held.session_ids()) == 1
        assert select_path(db, tenant=scope.tenant) is None
        with pytest.raises(NotFound):
            select_path(db, tenant=Tenant(scope.workspace_id, "test"), path=older)
    database.close()


def test_a_path_selects_the_sessions_that_its_count_counts_and_a_subpath_those_with_its_nodes(
    tmp_path: Path,
) -> None:
    database = Database(create_file(tmp_path))
    with database.transaction(write=True) as db:
        scope = make_scope(db)
    rows = index_words(database, scope, *["1a 2b 3c 4d"] * 3, "1a 2b 4d", "9x 8y 1a 2b 3c 4d 7z 9x 6w 5v", "")
    with database.transaction(write=False) as db:
        paths = list_paths(db, tenant=scope.tenant, workflow=scope.workflow)
        ids = read_path_ids(db, [row.id for row in rows])
        for path in paths:
            selection = select_path(db, tenant=scope.tenant, path=path.path_id)
            assert selection is not None
            assert len(selection.session_ids()) == path.session_count
            assert selection.session_ids() == sorted(
                key for key, value in ids.items() if value == path.path_id
            )
        held = select_path(db, tenant=scope.tenant, subpath=paths[0].path_id)
        both = select_path(db, tenant=scope.tenant, path=paths[0].path_id, subpath=paths[0].path_id)
        assert held is not None and held.session_ids() == sorted(row.id for row in (*rows[:3], rows[4]))
        assert both is not None and both.session_ids() == sorted(row.id for row in rows[:3])
    assert rows[5].id not in ids
    database.close()
