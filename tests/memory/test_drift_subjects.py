"""Subjects of drift, as counted by hand from random variants; their memory. Docs: docs/drift.md."""

import tracemalloc
from collections import defaultdict
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from recorder.memory.drift.drift_subjects import KINDS, SubjectKind, list_drift_subjects
from recorder.memory.graph.paths import NO_PATH


@pytest.mark.parametrize("seed", range(20))
def test_each_subject_has_the_variants_that_hold_it(seed: int) -> None:
    chance = Random(seed)
    variants = [
        [node for node, before in pairwise([*(chance.randrange(4) for _ in range(6)), -1]) if node != before]
        for _ in range(chance.randrange(8))
    ]
    variants = [nodes[: chance.randrange(7)] for nodes in variants]
    paths = [chance.randrange(3) if nodes else NO_PATH for nodes in variants]
    held: defaultdict[tuple[SubjectKind, tuple[int, ...]], set[int]] = defaultdict(set)
    for number, (nodes, path) in enumerate(zip(variants, paths, strict=True)):
        if nodes:
            held["path", (path,)].add(number)
        for node in nodes:
            held["node", (node,)].add(number)
        for edge in pairwise(nodes):
            held["edge", edge].add(number)
    subjects = list_drift_subjects(
        np.array(paths, dtype=np.int64),
        np.cumsum([0, *map(len, variants)], dtype=np.int64),
        np.array([node for nodes in variants for node in nodes], dtype=np.int64),
    )
    described = [subjects.describe(number) for number in range(len(subjects))]
    listed = [(subject.kind, subject.key) for subject in described]
    assert listed == sorted(held, key=lambda subject: (KINDS.index(subject[0]), subject[1]))
    for number, subject in enumerate(described):
        having = subjects.variants_with(number)
        assert set(np.flatnonzero(having).tolist()) == held[subject.kind, subject.key]
        assert subjects.find(subject) == number


def test_subjects_take_memory_in_proportion_to_the_nodes_of_variants() -> None:
    count, length = 500, 100
    nodes = np.random.default_rng(1).integers(0, 3_000, count * length)
    tracemalloc.start()
    try:
        list_drift_subjects(np.arange(count) % 50, np.arange(count + 1) * length, nodes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 250 * count * length
