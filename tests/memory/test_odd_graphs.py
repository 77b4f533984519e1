"""Graphs of odd shape: every question is answered, in the service's own database. Contract §4 (memory)."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.common_paths import describe_common_paths
from recorder.memory.queries.outliers import find_outliers
from recorder.memory.queries.recovery_anchors import find_recovery_anchors
from recorder.memory.queries.similarity import index_similarity
from recorder.memory.steps.session_steps import session_steps
from recorder.memory.storage.rebuilds import rebuild_graph
from recorder.memory.views.formats import GraphFormat, format_graph_view
from recorder.memory.views.graph_view import graph_view_of
from recorder.storage.database import Database
from recorder.tenant import GraphScope, Tenant
from tests.support.graph_columns import columns_of
from tests.support.graph_sessions import database_with, index_words

SCOPE = GraphScope(Tenant("wsp_a", "live"), "checkout")
FORMATS = get_args(GraphFormat)
_LONG = " ".join(f"{index}a" for index in range(512))
#: Sessions by the shape of the graph, with the number of its paths if that is certain.
SHAPES: dict[str, tuple[list[str], int | None]] = {
    "one session": (["1a 2b 3c"], 1),
    "one session without steps": ([""], 0),
    "equal sessions": (["1a 2b 3c"] * 500, 1),
    "sessions of one step": (["1a"] * 6 + ["2b"] * 3, 2),
    "sessions of 512 steps": ([_LONG] * 3 + [_LONG + " 600b"], 1),
    "every session differs": ([f"{index}a {index}{chr(98 + index % 25)}" for index in range(100)], None),
}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Yield a database with one empty workflow."""
    yield from database_with(SCOPE, tmp_path)


def read_columns(database: Database) -> GraphColumns:
    """Return the graph as queries see it."""
    with database.transaction(write=False) as db:
        return read_newest_columns(db, SCOPE)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_question_about_a_graph_of_odd_shape_is_answered(shape: str, database: Database) -> None:
    words, path_count = SHAPES[shape]
    index_words(database, SCOPE, *words)
    rebuild_graph(database, SCOPE, "anchored")
    columns = read_columns(database)
    chosen = columns.current()
    with_steps = sum(1 for text in words if text)
    paths = describe_common_paths(columns, chosen, min_frequency=0.0, limit=500)
    assert path_count in (None, len(paths))
    assert sum(path.session_count for path in paths) == with_steps
    assert all(0 < path.frequency <= 1 and path.node_ids for path in paths)
    assert len(find_outliers(columns, chosen, rank="typicality").rows) == len(words)
    assert np.isfinite(find_outliers(columns, chosen, rank="typicality").typicality).all()
    similar = index_similarity(columns).nearest(0, 20)
    assert len(similar) >= min(20, words.count(words[0]) - 1)
    assert all(0 < other.similarity <= 1 for other in similar)
    assert find_recovery_anchors(columns, chosen, {0: 10_000}, lambda rows: {}) is not None
    view = graph_view_of(columns, chosen, workflow=SCOPE.workflow)
    assert all(format_graph_view(view, form)[0] for form in FORMATS)


def test_10000_equal_sessions_are_one_path_and_none_is_an_outlier() -> None:
    columns = columns_of([(("Open", "Edit", "Save"), "success", 10_000)])
    chosen = columns.current()
    (path,) = describe_common_paths(columns, chosen, min_frequency=0.0, limit=500)
    assert (path.session_count, path.frequency, path.variants) == (10_000, 1.0, 1)
    assert not len(find_outliers(columns, chosen).rows)
    similar = index_similarity(columns).nearest(0, 20)
    assert [(other.row, other.similarity) for other in similar] == [(9_999 - n, 1.0) for n in range(20)]
    assert graph_view_of(columns, chosen, workflow=SCOPE.workflow).nodes[0].sessions == 10_000


@pytest.mark.parametrize(
    "text", ["x" * 65_536, "\u202e\u05e9\u05dc\u05d5\u05dd\u2066", "a\x00\x1b[31m\x07b\r\n", "\ud800"]
)
def test_a_label_of_any_text_is_short_in_the_graph_and_drawn_in_every_format(text: str) -> None:
    target = {"role": "button", "name": text, "tag": "button", "text": text, "near": text}
    event = {"id": "evt_1", "t_ms": 0, "type": "click", "target": target, "title": text}
    (step,) = session_steps([event], [])
    texts = [step.label, step.own_label, step.words, *step.names, *step.locations]
    assert all(len(label) <= 200 for label in texts)
    columns = columns_of([("AB", "success", 3)])
    columns.nodes = [node._replace(label=step.own_label) for node in columns.nodes]
    view = graph_view_of(columns, columns.current(), workflow=SCOPE.workflow)
    drawn = {form: format_graph_view(view, form)[0] for form in FORMATS}
    assert all(len(content) < 20_000 for content in drawn.values())
    assert all(mark not in drawn["svg"].decode() for mark in ("\u202e", "\x1b", "\x07"))
