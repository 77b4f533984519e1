"""Clusterings of the benchmark: every method groups a planted workflow, whose truth is known."""

import numpy as np
import pytest

from benchmarks.memory.clustering_methods import METHODS
from benchmarks.memory.clusterings import TaskSet, judge, planted_set

#: They chain or leave alone what lies between two paths.
_ROUGH = {"connected components", "leaders, Jaccard .5"}


@pytest.fixture(scope="module")
def planted() -> TaskSet:
    """Return a planted workflow of 300 sessions."""
    return planted_set(300, 1)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_groups_all_variants(planted: TaskSet, name: str) -> None:
    groups = METHODS[name](planted.variants)
    assert len(groups) == len(planted.variants.sequences)
    assert groups.min() >= 0
    assert (groups == METHODS[name](planted.variants)).all()


@pytest.mark.parametrize("name", sorted(METHODS.keys() - _ROUGH))
def test_methods_find_planted_paths(planted: TaskSet, name: str) -> None:
    judged = judge(METHODS[name], planted)
    assert judged.ari > 0.6
    assert judged.purity > 0.7


def test_exact_variants_are_pure_and_many(planted: TaskSet) -> None:
    judged = judge(lambda variants: np.arange(len(variants.sequences)), planted)
    assert judged.paths_per_task > 5
    assert judged.within_one_edit == 1
