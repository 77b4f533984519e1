"""Graphs as other programs read them; labels stay labels, whatever they hold. Contract §4 (graph)."""

import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from xml.etree import ElementTree

import networkx as nx
import orjson
import pytest

from recorder.memory.views.formats import (
    FORMATS,
    format_graph_as_dot,
    format_graph_as_graphml,
    format_graph_as_json,
    format_graph_as_mermaid,
    format_graph_view,
)
from recorder.memory.views.graph_view import GraphView
from recorder.memory.views.label_lines import (
    LABEL_LENGTH,
    break_label_into_lines,
    estimate_text_width,
    one_line,
)
from tests.support.databases import part_is_missing
from tests.support.graph_columns import invoices, view_for

HOSTILE = (
    'x"] --> n9["y',
    "</text><script>alert(1)</script>",
    "</title><svg onload=alert(1)>",
    'a\\" , label="b\\N',
    "&lt;b&gt; &#34; ]]>",
    "tab\there\x00\x1b[31m\nline",
    "pay \u202eevil\u2066\u200f",
    "half \ud800 pair \ufffe",
    "`**md**` %%{init: {}}%% #quot; 1. <br/>",
    "w" * 5000,
    "שלום عالم 支払う 👩‍💻",
    "\u200b",
)


def hostile() -> GraphView:
    """Return a view whose nodes have these labels."""
    safe = view_for([("abcdefghijkl", "success", 5), ("ba", "error", 1)])
    nodes = tuple(replace(node, label=label) for node, label in zip(safe.nodes, HOSTILE, strict=True))
    return replace(safe, workflow='w"];</title>', nodes=nodes)


def labels_of(view: GraphView) -> dict[str, str]:
    """Return the expected attributes of each node."""
    return {node.node_id: one_line(node.label) for node in view.nodes}


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_utf8_deterministic_and_says_what_it_is(format: str) -> None:
    for view in (invoices(), hostile(), view_for([])):
        content, media_type = format_graph_view(view, format)  # type: ignore[arg-type]
        assert content.decode()
        assert (content, media_type) == format_graph_view(view, format)  # type: ignore[arg-type]


def test_json_holds_every_figure_and_loads_in_networkx() -> None:
    body = orjson.loads(format_graph_as_json(invoices()))
    assert {name: body[name] for name in ("workflow", "graph_version", "sessions", "outcomes")} == {
        "workflow": "approve_invoice",
        "graph_version": 1,
        "sessions": 412,
        "outcomes": {"success": 375, "error": 18, "abandoned": 19},
    }
    graph = nx.node_link_graph(body)
    assert graph.nodes["nde_Bad credentials"]["left"] == 6
    assert graph.edges["nde_Confirm", "nde_Approved"]["median_ms"] == 1000
    assert graph.edges["start", "nde_Sign in"]["frequency"] == 1


def test_json_keeps_labels_whole() -> None:
    body = json.loads(format_graph_as_json(hostile()))
    assert [node["label"] for node in body["nodes"][2:]] == [
        label.encode("utf-8", "replace").decode() for label in HOSTILE
    ]


def test_a_pressed_key_may_be_any_character() -> None:
    safe = invoices()
    odd = replace(safe.nodes[0], kind="press:0:\x01\x02\ud800")
    view = replace(safe, nodes=(odd, *safe.nodes[1:]))
    graph = nx.read_graphml(io.BytesIO(format_graph_as_graphml(view)))
    assert graph.nodes[odd.node_id]["kind"] == "press:0:"
    assert orjson.loads(format_graph_as_json(view))["nodes"][2]["kind"] == "press:0:\x01\x02?"


def test_graphml_loads_in_networkx_with_the_same_figures() -> None:
    graph = nx.read_graphml(io.BytesIO(format_graph_as_graphml(invoices())))
    expected = {"workflow": "approve_invoice", "graph_version": 1, "sessions": 412}
    assert expected.items() <= graph.graph.items()
    assert graph.nodes["nde_Second approver"]["new"] is True
    assert graph.nodes["nde_Server error"]["error"] == 12
    assert graph.edges["nde_Approve", "nde_Confirm"]["n"] == 392


def test_graphml_gives_hostile_labels_back_as_text() -> None:
    graph = nx.read_graphml(io.BytesIO(format_graph_as_graphml(hostile())))
    assert {node: graph.nodes[node]["label"] for node in labels_of(hostile())} == labels_of(hostile())


def test_mermaid_draws_the_nodes_and_their_shares() -> None:
    text = format_graph_as_mermaid(invoices()).decode()
    assert text.startswith("flowchart LR\n")
    assert re.search(r'n\d+\["Write note<br/>299"\]', text)
    assert '-->|"86%"|' in text and "shown" not in text


def test_mermaid_keeps_to_sixty_edges_and_says_so() -> None:
    ways = [(f"{first}{second}z", "success", 1) for first in "abcdefghijkl" for second in "mnopqrs"]
    text = format_graph_as_mermaid(view_for(ways)).decode()
    assert text.count("-->") == 60
    assert "%% 60 of 91 edges shown" in text


def test_hostile_labels_cannot_break_out_of_mermaid() -> None:
    lines = format_graph_as_mermaid(hostile()).decode().splitlines()
    shape = re.compile(r'  (n\d+\["([\w ,./#;-]|[^\x00-\x7f])*<br/>\d+"\]|n\d+ -->\|"(#lt;)?\d+%"\| n\d+)$')
    rest = [line for line in lines[1:] if not shape.match(line)]
    assert all(line.startswith(("  classDef ", "  class ")) for line in rest)
    assert not any(mark in "".join(lines) for mark in ("\u202e", "\x1b", "\ud800", "script>"))


def test_graphviz_reads_dot_and_gives_hostile_labels_back() -> None:
    if shutil.which("dot") is None:
        part_is_missing("Graphviz is not installed (apt-get install graphviz).")
    done = subprocess.run(
        ["dot", "-Tsvg"], input=format_graph_as_dot(hostile()), capture_output=True, check=True, timeout=60
    )
    shown = {
        text.text for text in ElementTree.fromstring(done.stdout).iter("{http://www.w3.org/2000/svg}text")
    }
    assert set(labels_of(hostile()).values()) <= {(text or "").replace("\xa0", " ") for text in shown}
    assert b"<script" not in done.stdout and not done.stderr


def test_dot_has_every_edge_once() -> None:
    assert format_graph_as_dot(invoices()).decode().count(" -> ") == len(invoices().edges)


def test_a_label_is_one_line_of_what_can_be_seen() -> None:
    assert one_line("  Save\n\tas \u202e… ") == "Save as …"
    assert one_line("\u200b\x00") == "(no label)"
    assert len(one_line("x" * 1000)) == LABEL_LENGTH
    assert one_line("Choose the supplier of the invoice (2)", 24) == "Choose the supplier… (2)"


def test_labels_are_broken_into_lines_that_fit() -> None:
    lines = break_label_into_lines("Choose the supplier of the invoice from the list", 100, 12)
    assert len(lines) == 2 and lines[1].endswith("…")
    assert all(estimate_text_width(line, 12) <= 100 for line in lines)
    assert break_label_into_lines("Choose the supplier of the invoice from the list (2)", 100, 12)[
        -1
    ].endswith("… (2)")
    assert break_label_into_lines("支払いを承認するボタンを押してください", 100, 12)[0].endswith("…")


def test_the_json_says_what_the_structure_holds() -> None:
    ways = [("abcbd", "success", 4), ("acd", "success", 2), ("ab", "error", 1), ("", "abandoned", 3)]
    graph = orjson.loads(format_graph_as_json(view_for(ways)))
    assert (graph["sessions"], graph["sessions_without_steps"]) == (10, 3)
    assert [sorted(loop) for loop in graph["loops"]] == [["nde_b", "nde_c"]]
    assert graph["required_nodes"] == ["nde_a", "nde_d"]
    assert graph["likeliest_path"] == ["nde_a", "nde_b", "nde_d"]
