"""Questions to the structure of a graph: loops, what no success gets round, the likeliest way. Spec §2.6."""

import pytest

from recorder.memory.views.network import END, START, likeliest_path, loops, success_dominators, to_networkx
from tests.support.graph_columns import invoices, view_for


def names(node_ids: list[str] | tuple[str, ...]) -> list[str]:
    """Labels of nodes."""
    return [node_id.removeprefix("nde_") for node_id in node_ids]


def test_the_graph_carries_every_figure_as_plain_attributes() -> None:
    graph = to_networkx(invoices())
    figures = graph.nodes["nde_Invoice"]
    assert (figures["sessions"], figures["success"], figures["recovery_point"]) == (404, 375, True)
    edge = graph.edges["nde_Confirm", "nde_Approved"]
    assert (edge["sessions"], edge["median_ms"]) == (354, 1000)
    assert edge["probability"] == pytest.approx(354 / 392)
    assert all(
        isinstance(value, int | float | str) for _, own in graph.nodes(data=True) for value in own.values()
    )


def test_probabilities_of_the_ways_out_of_a_node_sum_to_one() -> None:
    graph = to_networkx(invoices())
    for node in graph:
        leaving = [figures["probability"] for _, _, figures in graph.out_edges(node, data=True)]
        assert node == END or sum(leaving) == pytest.approx(1)


def test_loops_are_the_groups_one_can_go_round_in() -> None:
    found = [set(names(loop)) for loop in loops(to_networkx(invoices()))]
    assert found == [{"Approve", "Confirm", "Server error"}, {"Bad credentials", "Sign in"}]
    assert loops(to_networkx(view_for([("abc", "success", 1)]))) == []


def test_no_success_gets_round_its_dominators() -> None:
    graph = to_networkx(invoices())
    assert names(success_dominators(graph)) == ["Sign in", "Open invoices", "Invoice"]
    assert success_dominators(to_networkx(view_for([("abc", "error", 3)]))) == []


def test_the_likeliest_way_leads_from_start_to_end() -> None:
    ways = [("abd", "success", 4), ("abe", "success", 4), ("acd", "success", 5)]
    assert names(likeliest_path(to_networkx(view_for(ways)))) == ["a", "c", "d"]
    assert names(likeliest_path(to_networkx(invoices()))) == list(names(invoices().spine))
    assert likeliest_path(to_networkx(view_for([]))) == []


def test_start_and_end_hold_all_sessions() -> None:
    graph = to_networkx(invoices())
    assert graph.nodes[START]["sessions"] == graph.nodes[END]["sessions"] == 412
