"""The sessions of a workflow in the order in which they were sealed, as columns. Contract §4 (`seal_seq`).

That order never changes, so what was judged once stays judged. A recording of the past that is brought in
later keeps its position; `alarm_rules` knows that it says nothing of the present.
"""

from dataclasses import dataclass

import numpy as np

from recorder.memory.graph.inverted_index import Ints

DAY_MS = 86_400_000
#: Code of the actor of sessions that name none.
NO_ACTOR = -1


@dataclass(frozen=True, slots=True)
class History:
    """One row for each session; its position counts from 0. Paths, variants and nodes are numbers."""

    seal_seq: Ints
    path: Ints
    variant: Ints
    started_ms: Ints
    #: One number for each actor.
    actor: Ints
    #: Each node of each variant once: `visit_node[i]` is on variant `visit_variant[i]`.
    visit_variant: Ints
    visit_node: Ints

    def __len__(self) -> int:
        return len(self.seal_seq)

    def after(self, seal_seq: int) -> int:
        """Return the position of the first session that was sealed later."""
        return int(np.searchsorted(self.seal_seq, seal_seq, side="right"))

    def at(self, seal_seq: int) -> int:
        """Return the position of the first session that was sealed with this number or later."""
        return int(np.searchsorted(self.seal_seq, seal_seq, side="left"))

    def node_counts(self, start: int, end: int) -> Ints:
        """For each node how many of the sessions from position `start` to before `end` go through it."""
        taken = np.bincount(self.variant[start:end], minlength=self._variants())
        return np.bincount(self.visit_node, weights=taken[self.visit_variant]).astype(np.int64)

    def nodes_since(self, start: int, end: int) -> list[int]:
        """Return the nodes that sessions from `start` to before `end` visit, and none before `start` does."""
        before, now = self.node_counts(0, start), self.node_counts(start, end)
        return np.nonzero((now > 0) & (before == 0))[0].tolist()

    def sessions_with(self, node: int, start: int, end: int) -> Ints:
        """Return the positions, from `start` to before `end`, of the sessions that visit a node."""
        has_node = np.zeros(self._variants(), dtype=np.bool_)
        has_node[self.visit_variant[self.visit_node == node]] = True
        return np.nonzero(has_node[self.variant[start:end]])[0] + start

    def actors_and_days(self, places: Ints) -> tuple[int, int]:
        """Return the number of actors of these sessions, and of UTC days on which they began."""
        return len(set(self.actor[places].tolist())), len(set((self.started_ms[places] // DAY_MS).tolist()))

    def first_mixed(self, places: Ints) -> int:
        """Return how many of these sessions it takes to see two actors or days; all + 1 if none do.

        One actor's busy afternoon is no drift of the workflow, however many sessions it makes.
        """
        actors, days = self.actor[places], self.started_ms[places] // DAY_MS
        differs = (actors != actors[0]) | (days != days[0])
        return int(differs.argmax()) + 1 if differs.any() else len(places) + 1

    def _variants(self) -> int:
        last = max(self.variant.max(initial=-1), self.visit_variant.max(initial=-1))
        return int(last) + 1


def unique_visits(variant: Ints, node: Ints) -> tuple[Ints, Ints]:
    """Each pair of variant and node once, of all that a variant's sequence visits."""
    pairs = np.unique(np.stack([variant, node]), axis=1)
    return pairs[0], pairs[1]
