"""Nodes of the memory graph: micro-states that are one action on one kind of screen. Spec §2.6 (node_ids).

A node is made once, from its exemplar; later micro-states join the nearest exemplar with the same action and
target whose screen is similar enough. Ids are content-addressed at creation and then only stored.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from recorder import ids
from recorder.digest import canonical_json
from recorder.memory.postings import Postings
from recorder.memory.steps import ALGO_VERSION, Step
from recorder.memory.tokens import key_of

#: Jaccard similarity of two screens from which on they are one (the knee of the measurements: .907 NMI).
SCREEN_JACCARD = 0.60


@dataclass(frozen=True, slots=True)
class GraphScope:
    """Whose graph it is: one for each workspace, mode and workflow."""

    workspace_id: str
    mode: str
    workflow: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its exemplar; `number` counts from 0 in the order of creation."""

    number: int
    node_id: str
    label: str
    #: Action of its steps.
    kind: str
    #: Micro-state of the exemplar.
    micro_key: int
    #: Key of action and target.
    act: int
    #: Number of the node whose exemplar leads the group of similar screens this one belongs to.
    screen: int
    #: Hashed tokens of the exemplar's screen, sorted.
    features: tuple[int, ...]


def content_id(prefix: str, *content: object) -> str:
    """An id made of the first 100 bits of BLAKE2 over some content, such as `nde_…`."""
    digest = hashlib.blake2b(canonical_json(content), digest_size=16).digest()
    return f"{prefix}_{ids.encode(int.from_bytes(digest, 'big') >> 28)[6:]}"


@dataclass(slots=True)
class _Likeness:
    """Exemplar screens among which the nearest is looked for."""

    postings: Postings = field(default_factory=Postings)
    numbers: list[int] = field(default_factory=list)

    def nearest(self, features: Sequence[int]) -> int | None:
        """Number of the most similar exemplar at or above the threshold; the older one of equals."""
        if not self.numbers:
            return None
        shared = self.postings.overlaps(features)
        union = self.postings.totals() + len(features) - shared
        # Two screens of which nothing is known are alike.
        jaccard = np.divide(shared, union, out=np.ones_like(shared), where=union > 0)
        best = int(np.argmax(jaccard))
        return self.numbers[best] if jaccard[best] >= SCREEN_JACCARD else None

    def add(self, number: int, features: Sequence[int]) -> None:
        self.postings.add(features)
        self.numbers.append(number)


class NodeIndex:
    """The nodes of one graph, and which micro-states belong to each."""

    def __init__(self, scope: GraphScope) -> None:
        self.scope = scope
        self.nodes: list[Node] = []
        self.number_of: dict[int, int] = {}
        self._by_act: dict[int, _Likeness] = {}
        self._screens = _Likeness()

    def restore(self, nodes: Iterable[Node], micro_states: Iterable[tuple[int, int]]) -> None:
        """Take back stored nodes, in order, and `(micro_key, node number)` pairs."""
        for node in nodes:
            self._keep(node)
        self.number_of.update(micro_states)

    def assign(self, step: Step) -> Node | None:
        """Give a micro-state its node; returns the node if it had to be made."""
        act = key_of(step.action, step.target)
        likeness = self._by_act.get(act)
        number = likeness.nearest(step.features) if likeness is not None else None
        if number is not None:
            self.number_of[step.micro_key] = number
            return None
        node = self._new_node(step, act)
        self._keep(node)
        self.number_of[step.micro_key] = node.number
        return node

    def _new_node(self, step: Step, act: int) -> Node:
        number = len(self.nodes)
        leader = self._screens.nearest(step.features)
        scope = self.scope
        return Node(
            number=number,
            node_id=content_id(
                "nde",
                scope.workspace_id,
                scope.mode,
                scope.workflow,
                ALGO_VERSION,
                step.action,
                step.target,
                step.features,
            ),
            label=step.label,
            kind=step.action,
            micro_key=step.micro_key,
            act=act,
            screen=number if leader is None else leader,
            features=step.features,
        )

    def _keep(self, node: Node) -> None:
        self.nodes.append(node)
        self._by_act.setdefault(node.act, _Likeness()).add(node.number, node.features)
        if node.screen == node.number:
            self._screens.add(node.number, node.features)
