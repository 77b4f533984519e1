"""The drawn graph: well-formed, inside its frame, without overlapping labels. Spec §2.6, contract §4."""

import random
import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from recorder.memory.views.graph_view import GraphView
from recorder.memory.views.layout import lay_out_graph
from recorder.memory.views.picture import draw_graph
from recorder.memory.views.svg_parts import INK, VIOLET
from tests.memory.test_memory_formats import hostile
from tests.support.graph_columns import Way, invoices, view_for

SVG = "{http://www.w3.org/2000/svg}"


def wandering(nodes: int, seed: int, *, length: int = 14) -> GraphView:
    """Return a workflow in which sessions go back and forth between many nodes."""
    rng = random.Random(seed)
    names = [f"{rng.choice(['Open', 'Check', 'Confirm the'])} item {index}" for index in range(nodes)]
    ways: list[Way] = [(names[:8], "success", 60)]
    for _ in range(3 * nodes):
        here, way = 0, [names[0]]
        for _ in range(rng.randrange(1, length)):
            here = min(nodes - 1, max(0, here + rng.choice([1, 1, 2, -1, -3, 9])))
            if names[here] != way[-1]:
                way.append(names[here])
        ways.append((way, rng.choice(["success", "error", "abandoned"]), rng.randrange(1, 9)))
    return view_for(ways, recovery=frozenset([f"nde_{names[2]}"]), new=frozenset([f"nde_{names[-1]}"]))


VIEWS = {
    "invoices": invoices(),
    "hostile": hostile(),
    "loops": wandering(9, 1, length=40),
    "forty": wandering(40, 2),
    "eighty": wandering(80, 3),
    "one node": view_for([("a", "abandoned", 3)]),
    "no steps": view_for([("", "success", 3)]),
    "empty": view_for([]),
}


def words(svg: str) -> list[str]:
    """Return all text that is shown."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_pictures_are_well_formed_self_contained_and_told_to_screen_readers(view: GraphView) -> None:
    svg = draw_graph(view)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    texts = [root.find(f"{SVG}title"), root.find(f"{SVG}desc")]
    assert [element.get("id") for element in texts if element is not None and element.text] == str(
        root.get("aria-labelledby")
    ).split()
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "rect", "g", "path", "circle", "text"}
    names = {name for element in root.iter() for name in element.attrib}
    assert not [name for name in names if name.startswith("on") or "href" in name or name == "style"]
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "") and "url(" not in svg


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_everything_drawn_lies_inside_the_frame(view: GraphView) -> None:
    root = ElementTree.fromstring(draw_graph(view))
    width, height = (float(value) for value in str(root.get("viewBox")).split()[2:])
    (moved,) = root.findall(f"{SVG}g") or [ElementTree.Element("g")]
    right, down = (float(value) for value in re.findall(r"[-\d.]+", moved.get("transform", "0 0")))
    for element in moved.iter():
        pairs = re.findall(r"(-?[\d.]+) (-?[\d.]+)", re.split(r"[hvl]", element.get("d", ""))[0])
        corners = [(float(x), float(y)) for x, y in pairs if "C" not in element.get("d", "")]
        corners += [(float(x), float(y)) for x, y in pairs[:1] + pairs[-1:]]
        at = element.get("cx") or element.get("x"), element.get("cy") or element.get("y")
        corners += [(float(at[0]), float(at[1]))] if at[0] and at[1] else []
        assert all(0 <= x + right <= width and 0 <= y + down <= height for x, y in corners), element.attrib


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_nodes_and_labels_do_not_overlap(view: GraphView) -> None:
    drawn_nodes = lay_out_graph(view).drawn_nodes.values() if view.nodes else ()
    for first, other in combinations(drawn_nodes, 2):
        assert not any(box.overlaps(theirs) for box in first.boxes() for theirs in other.boxes()), (
            first,
            other,
        )


def test_equal_views_give_equal_bytes() -> None:
    assert draw_graph(invoices()) == draw_graph(invoices())
    assert draw_graph(wandering(60, 5)) == draw_graph(wandering(60, 5))


def test_the_drawing_shows_shares_counts_exits_and_marks() -> None:
    shown = words(draw_graph(invoices()))
    for wrong in (
        "99%",
        "73%",
        "20%",
        "299",
        "6 left",
        "17 left",
        "12 left",
        "2 left",
        "new",
        "recovery point",
    ):
        assert wrong in shown
    assert "width = share of sessions · number under a node = sessions" in shown


def test_required_nodes_have_an_outline_and_edges_back_in_a_loop_a_colour() -> None:
    root = ElementTree.fromstring(draw_graph(invoices()))
    groups = {str(group.findtext(f"{SVG}title")): group for group in root.iter(f"{SVG}g")}
    outlined = [
        title.split(" · ")[0]
        for title, group in groups.items()
        if any(circle.get("stroke") == INK for circle in group.findall(f"{SVG}circle"))
    ]
    assert sorted(outlined) == ["Invoice", "Open invoices", "Sign in"]
    assert all("required for success" in title for title in groups if title.startswith("Invoice ·"))
    back = {
        title.split(":")[0]
        for title, group in groups.items()
        if any(path.get("stroke") == VIOLET for path in group.findall(f"{SVG}path"))
    }
    assert back == {"Bad credentials → Sign in", "Server error → Approve"}
    assert {"required for success", "back in a loop"} <= set(words(draw_graph(invoices())))


def test_the_common_path_is_a_straight_line_as_wide_as_its_share() -> None:
    layout = lay_out_graph(invoices())
    spine = [layout.drawn_nodes[node_id] for node_id in layout.view.spine]
    assert {drawn.y for drawn in spine} == {0.0}
    assert [drawn.x for drawn in spine] == sorted(drawn.x for drawn in spine)
    widths = [
        float(width)
        for label, width in re.findall(
            r"<title>([^<]*)</title><path[^>]*stroke-width=\"([\d.]+)", draw_graph(invoices())
        )
        if label.startswith(("Sign in → Open", "Set cost centre → Write"))
    ]
    assert sorted(widths) == [10.8, 14.3]


def test_only_what_most_sessions_support_is_shown_of_a_large_graph_and_it_says_so() -> None:
    view = wandering(80, 3)
    (caption,) = [text for text in words(draw_graph(view)) if "shown" in text]
    assert f"40 of {len(view.nodes)} nodes shown" in caption
    assert set(view.spine) <= set(lay_out_graph(view).drawn_nodes)
    dropped = view_for([("ab", "success", 9), ("ac", "success", 1)], min_frequency=0.5)
    assert any("2 of 3 nodes shown" in text for text in words(draw_graph(dropped)))


def test_an_empty_graph_says_so() -> None:
    assert "No paths to show yet" in words(draw_graph(view_for([])))
    assert any("3 sessions" in text for text in words(draw_graph(view_for([("", "success", 3)]))))


def test_the_picture_in_the_documentation_is_what_is_drawn() -> None:
    kept = Path(__file__).parents[2] / "docs" / "images" / "memory_graph.svg"
    assert kept.read_text() == draw_graph(invoices()), "write draw_graph(invoices()) to this file"


def test_markup_in_labels_is_only_text() -> None:
    svg = draw_graph(hostile())
    assert "<script" not in svg and "onload=" not in re.sub(r">[^<]*<", "><", svg)
    assert any("</text><script>" in text for text in words(svg))
