"""Graphs on Dagster's pages. Design §3."""

import base64
from xml.etree import ElementTree

import dagster as dg

from pipelines.memory_metadata import make_graph_metadata, make_paths_table
from recorder.memory.queries.common_paths import describe_common_paths
from recorder.models.memory import MemoryPath
from tests.memory.test_memory_formats import hostile
from tests.support.graph_columns import INVOICES, columns_of, invoices, view_for


def paths() -> list[MemoryPath]:
    """Return the paths of the console's drawing."""
    columns = columns_of(INVOICES)
    return describe_common_paths(columns, columns.current())


def test_the_picture_is_a_whole_svg_inside_markdown() -> None:
    value = make_graph_metadata(invoices())["graph"]
    assert isinstance(value, dg.MarkdownMetadataValue) and value.md_str is not None
    start = "![memory graph](data:image/svg+xml;base64,"
    assert value.md_str.startswith(start)
    assert ElementTree.fromstring(base64.b64decode(value.md_str.removeprefix(start)[:-1])).tag.endswith("svg")


def test_figures_stand_beside_it_and_paths_where_they_are_given() -> None:
    made = make_graph_metadata(invoices(), paths())
    assert (made["sessions"].value, made["nodes"].value, made["edges"].value) == (412, 15, 18)
    assert "paths" in made and "paths" not in make_graph_metadata(invoices())


def test_figures_of_the_structure_stand_beside_it() -> None:
    made = make_graph_metadata(invoices())
    assert made["loops"].value == "- Approve › Confirm › Server error\n- Bad credentials › Sign in"
    assert made["required_nodes"].value == "- Sign in › Open invoices › Invoice"
    assert str(made["likeliest_path"].value).startswith("- Sign in › Open invoices › Invoice › ")
    empty = make_graph_metadata(view_for([("", "success", 3), ("ab", "error", 1)]))
    assert empty["sessions_without_steps"].value == 3
    assert "loops" not in empty and "required_nodes" not in empty


def test_the_table_shows_how_exact_a_path_is() -> None:
    path = paths()[0]
    loose = path.model_copy(
        update={"exact_frequency": 0.25, "variants": 7, "optional_node_ids": path.node_ids[4:6]}
    )
    row = make_paths_table(invoices(), [loose]).splitlines()[2]
    assert "| 9.0&nbsp;s | 25% | 7 | Write note › Tick match | the common path" in row.replace("10.0", "9.0")


def test_the_table_tells_how_paths_differ() -> None:
    rows = make_paths_table(invoices(), paths()).splitlines()
    assert "| █████░░░░░&nbsp;46% | 190 |" in rows[2]
    assert "the common path: 9 steps, Sign in … Approved" in rows[2]
    assert rows[3].endswith("| 84 | 100%&nbsp;success | 9.0&nbsp;s | 0% | 1 |  | − Write note |")
    assert rows[7].split("|")[4].strip() == "100%&nbsp;abandoned"


def test_labels_cannot_break_the_table() -> None:
    view = hostile()
    path = paths()[0].model_copy(update={"node_ids": [node.node_id for node in view.nodes]})
    other = path.model_copy(update={"node_ids": path.node_ids[::-1]})
    rows = make_paths_table(view, [path, other]).splitlines()
    assert len(rows) == 4
    assert all(row.count("|") - row.count("\\|") == 10 for row in rows)
    assert "<" not in rows[3]


def test_an_empty_graph_has_its_picture_too() -> None:
    assert make_graph_metadata(view_for([]))["sessions"].value == 0
