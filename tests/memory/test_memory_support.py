"""Less of a large graph: what is kept, and how much work it is. Spec §2.6."""

from dataclasses import astuple, replace
from typing import ClassVar

from recorder.memory.views.graph_view import MAX_NODES, ViewEdge, most_supported_view
from tests.support.graph_columns import Way, view_for


class CountedEdge(ViewEdge):
    """An edge that counts how often it is compared."""

    compared: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        CountedEdge.compared += 1
        return isinstance(other, CountedEdge) and astuple(self) == astuple(other)

    __hash__ = ViewEdge.__hash__


def test_edges_are_not_compared_with_each_other() -> None:
    ways: list[Way] = [([f"step {number}"], "success", 1) for number in range(200)]
    view = view_for(ways)
    counted = replace(view, edges=tuple(CountedEdge(*astuple(edge)) for edge in view.edges))
    shown = most_supported_view(counted)
    assert [astuple(edge) for edge in shown.edges] == [
        astuple(edge) for edge in most_supported_view(view).edges
    ]
    assert len({edge.source for edge in shown.edges if edge.target is None}) == MAX_NODES
    assert CountedEdge.compared < len(view.edges)
