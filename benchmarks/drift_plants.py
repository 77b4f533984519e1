"""Changes put into a stream of sessions: a path, node or edge that stops, is halved, or is new."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Literal

import numpy as np

from benchmarks.drift_streams import Route, Sample

Kind = Literal["path", "node", "edge"]
How = Literal["stopped", "halved", "new"]
#: Share of the sessions that have what is new.
NEW_SHARE = 0.11


@dataclass(frozen=True)
class Planted:
    """A sample with a change, and the share of the sessions that had its subject before."""

    sample: Sample
    share: float


def plant_change(
    sample: Sample, kind: Kind, how: How, *, at: int, seed: int, is_eligible: Callable[[float], bool]
) -> Planted | None:
    """Return the sample with one change; None if no subject is eligible.

    What stops or is halved is drawn from the subjects of the sessions before the change. A path or an edge is
    replaced: other sessions without it take the places. A node is left out of the sessions that visit it.

    Args:
        sample: the sessions.
        kind: kind of the subject.
        how: what happens to it.
        at: position of the first session with the change.
        seed: seed of all draws.
        is_eligible: whether a subject with this share of the sessions may be drawn.
    """
    draw = np.random.default_rng(seed)
    if how == "new":
        return Planted(_add_new(sample, kind, at, draw), 0.0)
    counts = Counter(subject for route in sample.routes[:at] for subject in _list_subjects(route, kind))
    eligible = sorted(subject for subject, count in counts.items() if is_eligible(count / at))
    if not eligible:
        return None
    subject = eligible[int(draw.integers(len(eligible)))]
    others = [route for route in sample.routes if subject not in _list_subjects(route, kind)]
    if kind != "node" and not others:
        return None
    keep = 0.5 if how == "halved" else 0.0

    def change(route: Route) -> Route:
        if subject not in _list_subjects(route, kind) or draw.random() < keep:
            return route
        if kind == "node":
            return _collapse([node for node in route if node != subject[0]])
        return others[int(draw.integers(len(others)))]

    routes = [*sample.routes[:at], *(change(route) for route in sample.routes[at:])]
    return Planted(replace(sample, routes=routes), counts[subject] / at)


def _list_subjects(route: Route, kind: Kind) -> set[tuple[int, ...]]:
    if kind == "path":
        return {route}
    return set(pairwise(route)) if kind == "edge" else {(node,) for node in route}


def _collapse(nodes: Sequence[int]) -> Route:
    return tuple(node for node, _ in groupby(nodes))


def _add_new(sample: Sample, kind: Kind, at: int, draw: np.random.Generator) -> Sample:
    """Give a share of the later sessions a new node, a new edge, or a new path of known nodes."""
    edges = {edge for route in sample.routes for edge in pairwise(route)}
    visits = Counter(node for route in sample.routes[:at] for node in set(route))
    common = [node for node, count in visits.most_common() if count >= NEW_SHARE * at]
    new_node = max(visits) + 1_000_000
    nodes = sorted(visits)
    path = _collapse(draw.permutation(nodes)[: min(6, len(nodes))].tolist())
    source = common[int(draw.integers(len(common)))]
    targets = [node for node in nodes if (source, node) not in edges and node != source]
    target = new_node if kind == "node" or not targets else targets[int(draw.integers(len(targets)))]
    # So that the share of all sessions is the same, however many visit the node that the new one follows.
    odds = min(1.0, NEW_SHARE / (visits[source] / at))

    def change(route: Route) -> Route:
        if kind == "path":
            return path if draw.random() < NEW_SHARE else route
        if source not in route or draw.random() >= odds:
            return route
        index = route.index(source) + 1
        return _collapse([*route[:index], target, *route[index:]])

    return replace(sample, routes=[*sample.routes[:at], *(change(route) for route in sample.routes[at:])])
