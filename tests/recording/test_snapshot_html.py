"""DOM snapshots as inert HTML: what is written, what is left out, and how much work it takes. Contract §8."""

import re
from typing import Any

import orjson
import pytest

from recorder import limits
from recorder.recording.snapshot_html import MAX_CHARACTERS, MAX_NODES, render_snapshot_as_html
from tests.support.hostile_snapshots import make_snapshots

EVIL = "http://evil.example"
CUT = "A part of this snapshot is left out"


def render(html: Any) -> str:
    """Return the document of a root node."""
    document = render_snapshot_as_html(orjson.dumps({"v": 1, "format": "nodes", "html": html}))
    assert document is not None
    return document


def render_body(*children: Any) -> str:
    """Return the content of the body."""
    return render(["html", {}, ["body", {}, *children]]).partition("<body>")[2].removesuffix("</body></html>")


def test_elements_texts_and_states_are_written() -> None:
    assert render_body(["p", {"id": "a", "class": "b c"}, "1 < 2 & ", ["b", "x"]]) == (
        '<p id="a" class="b c">1 &lt; 2 &amp; <b>x</b></p>'
    )
    assert render_body(["input", {"type": "password", "__v": "•"}]) == '<input type="password" value="•">'
    assert render_body(["input", {"type": "checkbox", "__c": True}], ["p", {"__h": True}, "x"]) == (
        '<input type="checkbox" checked=""><p hidden="">x</p>'
    )
    assert render_body(["textarea", {"__v": "</textarea>"}, "old"]) == (
        "<textarea>&lt;/textarea&gt;</textarea>"
    )
    assert render_body(["p", {"aria-label": "Pay", "style": "color: rgb(1, 2, 3)"}]) == (
        '<p aria-label="Pay" style="color: rgb(1, 2, 3)"></p>'
    )
    assert render_body(["own-element", {"id": "x"}, "text"]) == '<div id="x">text</div>'
    assert "<title>A &lt;b&gt;</title>" in render(["html", ["head", ["title", "A <b>"]], ["body", "x"]])


def test_pictures_are_data_of_a_type_without_scripts() -> None:
    assert render_body(["img", {"src": "data:image/png;base64,AAAA"}]) == (
        '<img src="data:image/png;base64,AAAA">'
    )
    for src in (f"{EVIL}/a.png", "/a.png", "data:image/svg+xml;base64,AAAA", "data:text/html,x", ""):
        assert render_body(["img", {"src": src}]) == "<img>"


@pytest.mark.parametrize("name", sorted(make_snapshots(EVIL)))
def test_a_hostile_snapshot_keeps_no_address_outside_of_texts(name: str) -> None:
    document = render_snapshot_as_html(orjson.dumps(make_snapshots(EVIL)[name]))
    assert document is not None
    tags = re.findall(r"<[^>]*>", document.replace('<link rel="icon" href="data:,">', ""))
    outside_of_values = re.sub(r'"[^"]*"', '""', " ".join(tags)).lower()
    assert not re.search(r"evil|script|\bon\w+=|src|href|action|url|iframe|svg|<style", outside_of_values)


@pytest.mark.parametrize(
    "stored",
    [{}, {"v": 1}, {"format": "rrweb", "html": ["p"]}, {"format": "nodes"}, {"format": "nodes", "html": {}}],
)
def test_other_formats_have_no_document(stored: Any) -> None:
    assert render_snapshot_as_html(orjson.dumps(stored)) is None


@pytest.mark.parametrize("node", [[], [[]], [1, 2], [None], [["p"], "x"], [[1.5, 0]], ["p", [], 7, None, {}]])
def test_a_node_of_another_form_is_left_out(node: Any) -> None:
    assert render_body(node) in ("", "<p></p>")


def test_a_text_stands_for_a_part_that_another_frame_holds() -> None:
    assert (
        render_body(["p", {}, "a", [[1, 0]]])
        == "<p>a[a part that the snapshot of an earlier frame holds]</p>"
    )


def _fill(piece: Any) -> Any:
    count = (limits.DOM_BYTES - 200) // (len(orjson.dumps(piece)) + 1)
    return ["html", ["body", *[piece] * count]]


@pytest.mark.parametrize(
    ("root", "is_cut"),
    [
        (_fill(["p"]), True),
        (_fill([]), False),
        (_fill(["script"]), False),
        (_fill("x"), True),
        (_fill("&" * 1000), True),
        (_fill(["p", {"title": "'" * 1000}]), True),
        (["html", ["body", ["p", {"style": "a(" * (limits.DOM_BYTES // 4)}]]], False),
        (["html", ["body", ["p", {f"a{n}": "" for n in range(300_000)}]]], False),
    ],
    ids=["elements", "empty", "dropped", "texts", "escaped", "attributes", "style", "names"],
)
def test_a_snapshot_of_the_largest_size_is_written_within_bounds(root: Any, is_cut: bool) -> None:
    document = render(root)
    assert len(document) < MAX_CHARACTERS + 20 * MAX_NODES
    assert (CUT in document) == is_cut


def test_what_is_deeper_than_any_request_is_left_out() -> None:
    node: Any = ["b", "deep"]
    for _ in range(200):
        node = ["div", node]
    assert "deep" not in render_body(node)
