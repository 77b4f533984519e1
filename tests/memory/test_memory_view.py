"""Views for pictures and formats: counts and medians worked out by hand. Spec §2.6."""

import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from statistics import median

import numpy as np

from recorder.memory.graph.directly_follows import OUTCOMES
from recorder.memory.queries.structure import PathInfo
from recorder.memory.views.graph_view import GraphView, ViewEdge, ViewNode, graph_view_of
from tests.support.graph_columns import Way, columns_of, invoices, view_for

#: Four sessions: a b c twice, a b a c, and a alone.
WAYS: tuple[Way, ...] = (("abc", "success", 2), ("abac", "error", 1), ("a", "abandoned", 1))
TIMES = ([1, 10, 20, 5], [3, 30, 40, 5], [2, 12, 7, 8, 1], [9, 100])


def view() -> GraphView:
    """Return the view of the four sessions."""
    columns = columns_of(WAYS, TIMES)
    return graph_view_of(columns, columns.current(), workflow="checkout")


def node(view: GraphView, name: str) -> ViewNode:
    """Return a node by its label."""
    return next(node for node in view.nodes if node.label == name)


def edge(view: GraphView, source: str | None, target: str | None) -> ViewEdge:
    """Return an edge by the labels of its ends."""
    ends = tuple(None if name is None else f"nde_{name}" for name in (source, target))
    return next(edge for edge in view.edges if (edge.source, edge.target) == ends)


def test_nodes_count_sessions_and_visits_and_who_left() -> None:
    assert node(view(), "a") == ViewNode("nde_a", "a", "click", 4, 5, (2, 1, 1), 1)
    assert node(view(), "b") == ViewNode("nde_b", "b", "click", 3, 3, (2, 1, 0), 0)
    assert node(view(), "c") == ViewNode("nde_c", "c", "click", 3, 3, (2, 1, 0), 1)


def test_edges_count_sessions_and_crossings_with_exact_medians() -> None:
    assert edge(view(), "a", "b") == ViewEdge("nde_a", "nde_b", 3, 3, 12, (2, 1, 0), 3 / 5)
    assert edge(view(), "b", "c") == ViewEdge("nde_b", "nde_c", 2, 2, (20 + 40) // 2, (2, 0, 0), 2 / 3)
    assert edge(view(), "b", "a").median_ms == 7


def test_start_and_end_are_edges_too() -> None:
    assert edge(view(), None, "a") == ViewEdge(None, "nde_a", 4, 4, (2 + 3) // 2, (2, 1, 1), 1.0)
    assert edge(view(), "c", None) == ViewEdge("nde_c", None, 3, 3, 5, (2, 1, 0), 1.0)
    assert edge(view(), "a", None).median_ms == 100


def test_the_spine_is_the_most_common_path() -> None:
    assert view().spine == ("nde_a", "nde_b", "nde_c")
    assert (view().sessions, view().outcomes) == (4, (2, 1, 1))


def test_a_path_of_many_variants_is_shown_by_its_own_nodes_if_any_session_went_them() -> None:
    ways: list[Way] = [
        ("abxc", "success", 9),
        ("", "error", 20),
        ("adc", "success", 3),
        ("abc", "success", 1),
    ]
    columns = columns_of(ways)
    path_nodes, other = columns.paths[3].nodes, tuple(reversed(columns.paths[3].nodes))
    for nodes, spine in ((path_nodes, "abc"), (other, "abxc"), ((*path_nodes, path_nodes[0]), "abxc")):
        path = PathInfo("pth_00", nodes, 0)
        merged = replace(columns, paths=[path], variant_path=np.zeros(len(ways), dtype=np.int64), derived={})
        made = graph_view_of(merged, merged.current(), workflow="checkout")
        assert made.spine == tuple(f"nde_{name}" for name in spine)


def test_a_path_that_no_session_went_with_any_step_is_shown_by_its_own_nodes() -> None:
    columns = columns_of([("", "error", 2), ("ab", "success", 1)])
    merged = replace(columns, variant_path=np.array([1, 1]), derived={})
    chosen = graph_view_of(merged, merged.trace == 0, workflow="checkout", min_frequency=0)
    assert (chosen.sessions, chosen.spine) == (2, ())


def test_only_the_chosen_sessions_count() -> None:
    columns = columns_of(WAYS, TIMES)
    chosen = graph_view_of(columns, columns.outcome == OUTCOMES.index("error"), workflow="checkout")
    assert (chosen.sessions, node(chosen, "a").visits, chosen.spine) == (
        1,
        2,
        ("nde_a", "nde_b", "nde_a", "nde_c"),
    )


def test_a_minimum_drops_nodes_and_edges_and_leaves_the_figures_of_the_others() -> None:
    columns = columns_of(WAYS, TIMES)
    most = graph_view_of(columns, columns.current(), workflow="checkout", min_frequency=0.6)
    assert [(edge.source, edge.target) for edge in most.edges] == [
        (None, "nde_a"),
        ("nde_a", "nde_b"),
        ("nde_c", None),
    ]
    assert edge(most, "a", "b") == edge(view(), "a", "b")
    assert view_for(WAYS, min_frequency=0.8).hidden == 2


def test_nothing_chosen_is_an_empty_view() -> None:
    columns = columns_of(WAYS, TIMES)
    empty = graph_view_of(columns, np.zeros(4, dtype=np.bool_), workflow="checkout")
    assert (empty.sessions, empty.nodes, empty.edges, empty.spine) == (0, (), (), ())
    assert view_for([]).nodes == ()


def test_sessions_without_steps_go_from_start_to_end() -> None:
    (only,) = view_for([("", "abandoned", 3)]).edges
    assert (only.source, only.target, only.sessions) == (None, None, 3)


def test_marks_of_nodes_that_are_not_there_are_dropped() -> None:
    marked = view_for(WAYS, recovery=frozenset(["nde_b", "nde_z"]), new=frozenset(["nde_z"]))
    assert (marked.recovery, marked.new) == ({"nde_b"}, frozenset())


def test_the_invoices_have_the_figures_of_the_drawing() -> None:
    figures = {node.label: (node.sessions, node.left) for node in invoices().nodes}
    assert (figures["Sign in"], figures["Write note"], figures["Approved"]) == ((412, 0), (299, 0), (354, 0))
    assert (figures["Second approver"], figures["Server error"], figures["Bad credentials"]) == (
        (17, 17),
        (21, 12),
        (34, 6),
    )
    assert edge(invoices(), "Confirm", "Approved").sessions == 354


def test_all_figures_equal_a_count_session_by_session() -> None:
    rng = random.Random(4)
    ways: list[Way] = []
    for _ in range(40):
        letters = "".join(rng.choices("abcdef", k=rng.randrange(8)))
        steps = [letter for index, letter in enumerate(letters) if letters[index - 1 : index] != letter]
        ways.append((steps, rng.choice(OUTCOMES), rng.randrange(1, 5)))
    taken = [steps for steps, _, count in ways for _ in range(count)]
    times = [[rng.randrange(1000) for _ in range(len(steps) + 1)] for steps in taken]
    columns = columns_of(ways, times)
    crossed: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    sessions: Counter[tuple[str | None, str | None]] = Counter()
    for steps, step_times in zip(taken, times, strict=True):
        ends = list(pairwise([None, *(f"nde_{step}" for step in steps), None]))
        sessions.update(set(ends))
        for pair, ms in zip(ends, step_times, strict=True):
            crossed[pair].append(ms)
    made = graph_view_of(columns, columns.current(), workflow="checkout").edges
    assert {(edge.source, edge.target): (edge.sessions, edge.n, edge.median_ms) for edge in made} == {
        pair: (sessions[pair], len(all_ms), int(median(all_ms))) for pair, all_ms in crossed.items()
    }
