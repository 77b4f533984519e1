"""Questions to the structure of a graph: loops, what no success gets round, the likeliest way. Spec §2.6."""

import gc
import threading
import weakref
from collections.abc import Sequence
from itertools import pairwise, permutations
from random import Random

import networkx as nx
import pytest

from recorder.lazy_property import lazy_property
from recorder.memory.views.dominators import find_immediate_dominators
from recorder.memory.views.graph_view import graph_view_of
from recorder.memory.views.network_cache import NetworkCache, network_of
from recorder.memory.views.networkx_graph import END, START, Network
from tests.support.graph_columns import INVOICES, Way, columns_of, invoices, view_for


def names(node_ids: Sequence[str]) -> list[str]:
    """Return the labels of nodes."""
    return [node_id.removeprefix("nde_") for node_id in node_ids]


def network(ways: Sequence[Way] = INVOICES) -> Network:
    """Return the network of all sessions of these ways."""
    columns = columns_of(ways)
    return network_of(columns, columns.current())


def test_the_network_is_a_directed_graph_with_every_figure() -> None:
    graph = network().graph
    assert isinstance(graph, nx.DiGraph)
    figures = graph.nodes["nde_Invoice"]
    assert (figures["sessions"], figures["outcomes"], figures["left"]) == (404, (375, 12, 17), 0)
    edge = graph.edges["nde_Confirm", "nde_Approved"]
    assert (edge["sessions"], edge["median_ms"], edge["outcomes"]) == (354, 1000, (354, 0, 0))
    assert edge["probability"] == pytest.approx(354 / 392)


def test_probabilities_of_the_ways_out_of_a_node_sum_to_one() -> None:
    graph = network().graph
    for node in graph:
        leaving = [figures["probability"] for _, _, figures in graph.out_edges(node, data=True)]
        assert node == END or sum(leaving) == pytest.approx(1)


def test_loops_are_the_groups_one_can_go_round_in() -> None:
    groups = [set(names(loop)) for loop in network().loops]
    assert groups == [{"Approve", "Confirm", "Server error"}, {"Bad credentials", "Sign in"}]
    assert network([("abc", "success", 1)]).loops == ()


def test_no_success_gets_round_required_nodes() -> None:
    assert names(network().required_nodes) == ["Sign in", "Open invoices", "Invoice"]
    assert network([("abc", "error", 3)]).required_nodes == ()
    assert network([("abc", "error", 3), ("", "success", 1)]).required_nodes == ()


def test_a_step_skips_what_all_successes_go_through_before() -> None:
    succeeding = network([("abcd", "success", 8), ("akbcd", "success", 2), ("abx", "error", 1)])
    steps = [
        (*step, succeeding.skips_required(f"nde_{step[0]}", f"nde_{step[1]}"))
        for step in ("kc", "ac", "kb", "ab")
    ]
    assert steps == [("k", "c", True), ("a", "c", True), ("k", "b", False), ("a", "b", False)]
    assert not succeeding.skips_required("nde_c", "nde_a") and not succeeding.skips_required("nde_a", "nde_x")


def test_skipped_nodes_are_those_of_a_climb_in_any_graph() -> None:
    chance = Random(7)
    for _ in range(20):
        ways = [("".join(chance.choices("abcdefgh", k=5)), "success", 1) for _ in range(4)]
        succeeding = network([*ways, ("xyz", "error", 1)])
        above = succeeding._dominators
        for node, next_node in permutations([*succeeding.graph.nodes], 2):
            needed, climbed, before = above.get(next_node, START), set(), node
            while before in above and before != START:
                climbed.add(before)
                before = above[before]
            is_skipped = needed not in (START, node) and needed not in climbed
            assert succeeding.skips_required(node, next_node) == is_skipped


def test_dominators_are_those_of_networkx_in_any_graph() -> None:
    chance = Random(8)
    for size in [*range(1, 10)] * 30 + [60, 200]:
        graph = nx.gnm_random_graph(size, 3 * size, seed=chance.randrange(2**32), directed=True)
        named = nx.relabel_nodes(graph, str)
        expected = {**nx.immediate_dominators(named, "0"), "0": "0"}
        assert find_immediate_dominators(named.adj, "0") == expected


def test_dominators_of_a_graph_that_takes_an_iteration_long() -> None:
    # Sixteen sessions can record it; the iteration of NetworkX goes 600 times round 1,400 nodes.
    chain, joins = [f"c{n}" for n in range(20_000)], [f"j{n}" for n in range(20_000)]
    successors = {"start": [chain[0], *joins]}
    successors |= {above: [below] for above, below in pairwise(chain)}
    successors[chain[-1]] = joins
    successors |= {below: [above] for above, below in pairwise(joins)}
    dominators = find_immediate_dominators(successors, "start")
    assert {dominators[node] for node in joins} == {"start"}
    assert [dominators[node] for node in chain] == ["start", *chain[:-1]]


def test_one_graph_waits_for_no_other() -> None:
    # `functools.cached_property` of Python 3.11 has one lock for all graphs.
    began, may_end = threading.Event(), threading.Event()

    class Slow:
        @lazy_property
        def value(self) -> int:
            """Return 1, at once or when it may."""
            if threading.current_thread() is not threading.main_thread():
                began.set()
                assert may_end.wait(10)
            return 1

    slow, other = Slow(), Slow()
    waiting = threading.Thread(target=lambda: slow.value)
    waiting.start()
    assert began.wait(10) and other.value == 1
    may_end.set()
    waiting.join()
    assert vars(slow) == vars(other) == {"value": 1}


def test_the_likeliest_way_leads_from_start_to_end() -> None:
    ways = [("abd", "success", 4), ("abe", "success", 4), ("acd", "success", 5)]
    assert names(network(ways).likeliest_path) == ["a", "c", "d"]
    assert names(network().likeliest_path) == list(names(invoices().spine))
    assert network([]).likeliest_path == ()


def test_one_session_that_is_not_shown_still_decides_what_is_required() -> None:
    view = view_for([("abc", "success", 200), ("ac", "success", 1)], min_frequency=0.01)
    assert ("nde_a", "nde_c") not in {(edge.source, edge.target) for edge in view.edges}
    assert names(view.required) == ["a", "c"]
    assert names(view.likeliest) == ["a", "b", "c"]


def test_of_the_structure_what_is_not_shown_is_left_out() -> None:
    ways: list[Way] = [("abcbd", "success", 60), ("abcxbd", "success", 1), ("azad", "success", 1)]
    whole, most = view_for(ways), view_for(ways, min_frequency=0.1)
    assert [names(loop) for loop in whole.loops] == [["b", "c", "x"], ["a", "z"]]
    assert [names(loop) for loop in most.loops] == [["b", "c"]]
    rare = view_for([("abd", "error", 99), ("axd", "success", 1)], min_frequency=0.1)
    assert names(rare.required) == ["a", "d"] and rare.hidden == 1


def test_a_network_is_built_once_for_a_version_and_its_sessions() -> None:
    columns = columns_of(INVOICES)
    failed = columns.outcome == 1
    first = network_of(columns, columns.current())
    assert network_of(columns, columns.current()) is first
    assert network_of(columns, failed) is not first and network_of(columns, failed).sessions == 18
    graph_view_of(columns, columns.current(), workflow="w", min_frequency=0.5)
    assert network_of(columns, columns.current()) is first


def test_networks_of_all_graphs_and_selections_share_one_bound() -> None:
    size = network().size
    cache = NetworkCache(max_size=3 * size)
    graphs = [columns_of(INVOICES) for _ in range(4)]
    for columns in graphs:
        for outcome in range(3):
            cache.read(columns, columns.outcome == outcome)
        assert cache.size <= 3 * size
    latest = cache.read(graphs[-1], graphs[-1].outcome == 2)
    assert cache.read(graphs[-1], graphs[-1].outcome == 2) is latest
    assert cache.read(graphs[0], graphs[0].outcome == 2) is not latest
    whole = graphs[0].current()
    small = NetworkCache(max_size=size - 1)
    assert small.read(graphs[0], whole).sessions == 412 and small.size == 0


def test_networks_of_an_earlier_version_are_freed_with_its_columns() -> None:
    cache, columns = NetworkCache(), columns_of(INVOICES)
    freed = weakref.ref(cache.read(columns, columns.current()))
    gc.collect()
    assert freed() is not None
    del columns
    gc.collect()
    assert freed() is None


def test_start_and_end_are_nodes_of_their_own() -> None:
    graph = network().graph
    assert graph.edges[START, "nde_Sign in"]["sessions"] == 412
    assert sum(figures["sessions"] for _, _, figures in graph.in_edges(END, data=True)) == 412


def test_the_last_edge_takes_until_the_stop() -> None:
    edges = network([("AB", "success", 3)]).graph.edges
    assert [edges[way]["median_ms"] for way in (("nde_A", "nde_B"), ("nde_B", END))] == [1_000, 1_000]
