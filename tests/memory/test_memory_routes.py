"""Edges of the drawn graph against its labels, as lines and boxes of the SVG itself. Contract §4 (graph)."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest

from examples.demo_workflows import demo_recordings
from recorder.memory.graph.nodes import GraphScope
from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.steps.session_steps import session_steps
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.views.geometry import Box
from recorder.memory.views.graph_view import MAX_NODES, GraphView, graph_view_of
from recorder.memory.views.label_lines import estimate_text_width
from recorder.memory.views.picture import draw_graph
from recorder.memory.views.routing import find_crossed_boxes
from recorder.tenant import Tenant
from tests.memory.test_memory_svg import SVG, wandering
from tests.support.graph_columns import Way, invoices, view_for
from tests.support.graph_sessions import database_with, make_row


class Line(NamedTuple):
    """A drawn edge: the labels of its ends, points all along it, and its width."""

    source: str
    target: str
    points: np.typing.NDArray[np.float64]
    width: float


def branching(seed: int) -> GraphView:
    """Return a workflow of up to 40 nodes in which sessions leave out, repeat and exchange steps."""
    rng = random.Random(seed)
    usual = [f"{rng.choice(['Open', 'Fill in', 'Confirm'])} field {index}" for index in range(8 + seed % 7)]
    ways: list[Way] = [(usual, "success", 80)]
    for number in range(MAX_NODES - len(usual)):
        at = rng.randrange(1, len(usual))
        back = max(0, min(len(usual) - 1, at + rng.choice([-3, -1, 0, 1, 2, 4])))
        way = [*usual[:at], f"Choose option {number}", *usual[back:]]
        ways.append((way, rng.choice(["success", "success", "error", "abandoned"]), rng.randrange(1, 12)))
    return view_for(ways, recovery=frozenset([f"nde_{usual[2]}"]))


def crowded(seed: int) -> GraphView:
    """Return a workflow in which sessions begin, end and go anywhere, with short, long and wide labels."""
    rng = random.Random(seed)
    count = rng.randrange(3, MAX_NODES + 1)
    form = (
        "N{}",
        "Type into the very long field number {} of the form",
        "אבג 漢字漢字漢字 {}",
        "W" * 60 + "{}",
    )
    names = [form[seed % 4].format(index) for index in range(count)]
    ways: list[Way] = [(names[: rng.randrange(1, count + 1)], "success", 50)]
    for _ in range(rng.randrange(5, 120)):
        way = [rng.randrange(count)]
        for _ in range(rng.randrange(12)):
            goal = rng.randrange(count)
            way += [goal] if goal != way[-1] else []
        outcome = rng.choice(["success", "error", "abandoned"])
        ways.append(([names[number] for number in way], outcome, rng.randrange(1, 200)))
    return view_for(ways)


VIEWS = {
    "invoices": invoices(),
    **{f"crowded {seed}": crowded(seed) for seed in (2, 9, 23, 40)},
    **{f"wandering {seed}": wandering(10 + 6 * seed, seed) for seed in range(1, 6)},
    **{f"branching {seed}": branching(seed) for seed in range(1, 6)},
}


def lines_of(root: ElementTree.Element) -> Iterator[Line]:
    """Yield the drawn edges."""
    for group in root.iter(f"{SVG}g"):
        title, path = group.find(f"{SVG}title"), group.find(f"{SVG}path")
        ends = re.match(r"(.*) → (.*): \S+ of sessions", "" if title is None else str(title.text))
        if ends is None or path is None:
            continue
        numbers = [float(text) for text in re.findall(r"-?[\d.]+", path.get("d", ""))]
        corners = np.array(numbers).reshape(-1, 2)
        t = np.linspace(0, 1, 60)[:, None]
        pieces = [
            (1 - t) ** 3 * a + 3 * t * (1 - t) ** 2 * b + 3 * t**2 * (1 - t) * c + t**3 * d
            for a, b, c, d in (corners[first : first + 4] for first in range(0, len(corners) - 1, 3))
        ]
        width = float(path.get("stroke-width", "0"))
        yield Line(ends[1], ends[2], np.concatenate(pieces), width)


def labels_of(root: ElementTree.Element) -> Iterator[tuple[str, Box]]:
    """Yield the texts of nodes, each with the label of its node."""
    for group in root.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is None or " · " not in str(title.text):
            continue
        for text in group.iter(f"{SVG}text"):
            size, x, y = (float(text.get(name, "0")) for name in ("font-size", "x", "y"))
            width = estimate_text_width(text.text or "", size)
            left = x - {"middle": width / 2, "end": width}.get(text.get("text-anchor", ""), 0.0)
            yield str(title.text).split(" · ")[0], Box(left, y - 0.75 * size, left + width, y + 0.2 * size)


def crossings(svg: str) -> list[tuple[str, str, str]]:
    """Return the edges that cross a text of a node, that of their own ends included."""
    root = ElementTree.fromstring(svg)
    labels = list(labels_of(root))
    boxes = np.array([(box.left, box.top, box.right, box.bottom) for _, box in labels])
    return [
        (line.source, line.target, labels[index][0])
        for line in lines_of(root)
        for index in np.flatnonzero(find_crossed_boxes(line.points, boxes, line.width / 2)).tolist()
    ]


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_no_edge_crosses_a_label(view: GraphView) -> None:
    assert len(view.nodes) <= MAX_NODES
    svg = draw_graph(view)
    assert len(list(lines_of(ElementTree.fromstring(svg)))) >= len(view.nodes) / 2
    assert crossings(svg) == []


@pytest.mark.parametrize("workflow", ["approve_invoice", "onboard_customer"])
def test_no_edge_crosses_a_label_in_the_graphs_of_the_demo(workflow: str, tmp_path: Path) -> None:
    scope = GraphScope(Tenant("wsp_a", "live"), workflow)
    recordings = [recording for recording in demo_recordings(60) if recording.workflow == workflow]
    steps = {}
    for recording in recordings:
        row = make_row(scope)
        events = [{"id": f"evt_{index:04}", **event} for index, event in enumerate(recording.events)]
        steps[row.id] = (row, session_steps(events, []))
    rows = [row for row, _ in steps.values()]
    for database in database_with(scope, tmp_path):
        indexer = GraphIndexer()
        with database.transaction(write=True) as db:
            prepared = indexer.prepare(db, rows, {key: walked for key, (_, walked) in steps.items()})
            indexer.commit(db, prepared, rows)
        with database.transaction(write=False) as db:
            columns = read_newest_columns(db, scope)
    view = graph_view_of(columns, columns.current(), workflow=workflow)
    assert 10 < len(view.nodes) <= MAX_NODES
    assert crossings(draw_graph(view)) == []


def test_a_line_is_found_to_cross_a_box_only_where_it_does() -> None:
    boxes = np.array([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    line = np.array([[-5.0, 5.0], [15.0, 5.0], [15.0, 30.0]])
    assert find_crossed_boxes(line, boxes).tolist() == [True, False]
    assert find_crossed_boxes(line, boxes, margin=5.5).tolist() == [True, True]
    assert find_crossed_boxes(line + np.array([0.0, 10.0]), boxes).tolist() == [False, False]
