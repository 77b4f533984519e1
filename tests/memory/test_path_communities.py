"""Groups of variants: communities, variants without features, more than are grouped at once. Spec §2.6."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from recorder.memory.graph import communities
from recorder.memory.graph.bounds import GRAPH_BOUNDS, GraphBounds
from recorder.memory.graph.communities import find_nearest_neighbours, group_variants
from recorder.memory.graph.nodes import Node
from recorder.memory.graph.paths import PathIndex
from recorder.tenant import GraphScope, Tenant


def vectors_of(*rows: list[float]) -> csr_array:
    """Return the rows scaled to length 1; rows of zeros stay."""
    values = np.array(rows, dtype=np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return csr_array(np.divide(values, lengths, out=values, where=lengths > 0))


def groups_of(vectors: csr_array, bounds: GraphBounds = GRAPH_BOUNDS) -> list[int]:
    """Return the groups of vectors, each of a different sequence of one session."""
    count = vectors.shape[0]
    return group_variants(vectors, [(row,) for row in range(count)], [1] * count, bounds).tolist()


def test_alike_vectors_are_a_group_and_one_without_features_is_alone() -> None:
    vectors = vectors_of([1, 0.1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0.1, 1], [0, 0, 0])
    assert groups_of(vectors) == [0, 1, 0, 2, 1, 3]


def test_two_groups_that_one_link_joins_stay_apart() -> None:
    first = [[1, 0, part / 20] for part in range(5)]
    other = [[0, 1, part / 20] for part in range(5)]
    # The last of each are linked, their cosine is .64.
    vectors = vectors_of(*first, [0.6, 0, 0.8], *other, [0, 0.6, 0.8])
    assert groups_of(vectors) == [0] * 6 + [1] * 6
    assert groups_of(vectors) == groups_of(vectors)


def test_variants_beyond_those_grouped_at_once_join_the_nearest() -> None:
    vectors = vectors_of([1, 0, 0], [0, 1, 0], [1, 0.1, 0], [0, 0, 1], [0, 0.1, 1], [0.1, 1, 0])
    assert groups_of(vectors, GraphBounds(grouped=2)) == [0, 1, 0, 2, 2, 1]


def test_variants_that_are_apart_after_some_rounds_are_grouped_among_their_own() -> None:
    rows = [[float(column == number) for column in range(6)] for number in (0, 1, 2, 3, 4, 2, 3, 4)]
    assert groups_of(vectors_of(*rows), GraphBounds(grouped=2, rounds=1)) == [0, 1, 2, 3, 4, 2, 3, 4]


def test_the_nearest_is_the_first_of_equals() -> None:
    known, unseen = vectors_of([1, 0], [1, 0], [0, 1]), vectors_of([2, 0], [0, 3], [0, 0])
    places, cosines = find_nearest_neighbours(known, unseen, max_mebibytes=3e-5)
    assert (places.tolist(), cosines.tolist()) == ([0, 2, 0], [1.0, 1.0, 0.0])


def test_later_variants_are_compared_with_those_of_some_rounds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def find(known: csr_array, vectors: csr_array) -> object:
        compared.append(vectors.shape[0])
        return find_nearest_neighbours(known, vectors)

    monkeypatch.setattr(communities, "find_nearest_neighbours", find)
    bounds = GraphBounds(grouped=10, rounds=2)
    assert sorted(groups_of(csr_array(np.identity(200)), bounds)) == list(range(200))
    assert compared == [190, 180]


def test_a_new_variant_is_compared_with_those_of_most_sessions() -> None:
    nodes = [Node(number, f"nde_{number}", "", "click", number, number, number, ()) for number in range(6)]
    scope = GraphScope(Tenant("wsp_paths", "live"), "checkout")
    index = PathIndex(scope, GraphBounds(path_exemplars=2))
    index.add({key: ((key,), sessions) for key, sessions in ((0, 3), (1, 9), (2, 6))}, nodes)
    variants, new_paths = index.add({4: ((0, 0), 1), 5: ((1, 1), 1)}, nodes)
    assert [variant.path for variant in variants] == [3, index.variants[1].path]
    assert [path.number for path in new_paths] == [3]
