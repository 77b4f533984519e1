"""The rule of new nodes: one that the baseline lacks comes more often than rare ones do. Spec §6.1.

A first sight says little: in a varied workflow nodes that were merely rare turn up all the time. How many of
them are still to come is estimated from the baseline (Good and Turing), and so many sightings in 100 sessions
are asked for that none of them is likely to make an alarm.
"""

from dataclasses import dataclass

import numpy as np

from recorder.memory.building.postings import Ints
from recorder.memory.drift.history import History
from recorder.memory.drift.rules import Rules, sightings_needed, unseen_nodes
from recorder.memory.drift.terms import Term


@dataclass(frozen=True, slots=True)
class NodeNew:
    """A node that appeared: found at the session of this place."""

    place: int
    node: int
    #: How many sessions of the baseline lack it, from `baseline_start` on.
    baseline_start: int
    baseline: int
    #: Places of the sessions within the window that go through it, and the window's first place.
    sightings: Ints
    window_start: int
    needed: int


def find_new(
    history: History, term: Term, *, begin: int, end: int, told: set[int], rules: Rules
) -> list[NodeNew]:
    """The alarms about nodes at the sessions from place `begin` to before `end`, each node once for ever.

    Args:
        told: nodes of earlier alarms.
    """
    candidates = [node for node in history.nodes_since(term.known, end) if node not in told]
    if not candidates:
        return []
    unseen = unseen_nodes(history.node_counts(term.start, term.known))
    needed = sightings_needed(term.known - term.start, unseen, rules)
    found = (_find(history, node, term, begin, end, needed, rules) for node in candidates)
    return [alarm for alarm in found if alarm is not None]


def _find(
    history: History, node: int, term: Term, begin: int, end: int, needed: int, rules: Rules
) -> NodeNew | None:
    places = history.sessions_with(node, term.known, end)
    # At each sighting, how many there are in the window that ends with it.
    firsts = np.searchsorted(places, places - rules.window, side="right")
    counted = np.arange(1, len(places) + 1) - firsts
    for last in np.nonzero((counted >= needed) & (places >= begin))[0].tolist():
        sightings = places[firsts[last] : last + 1]
        if history.first_mixed(sightings) <= len(sightings):
            place = int(sightings[-1])
            start = max(term.known, place + 1 - rules.window)
            return NodeNew(place, node, term.start, term.known - term.start, sightings, start, needed)
    return None
