"""Nodes of the memory graph: micro-states that are one action on one kind of screen. Spec §2.6 (node_ids).

A node is made once, from its exemplar; later micro-states join the nearest exemplar with the same action
and target whose screen is similar enough. Ids are content-addressed at creation and then only stored. A
rebuild may merge a node into an older one, which then represents both; only a fresh one moves micro-states
otherwise.
"""

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recorder import ids
from recorder.hashing import canonical_json
from recorder.memory.graph.arrays import Floats
from recorder.memory.graph.bounds import GRAPH_BOUNDS, GraphBounds
from recorder.memory.graph.capacity import NODE_BYTES, NUMBER_BYTES, STATE_BYTES, compute_act_beyond_capacity
from recorder.memory.graph.exemplars import SCREEN_JACCARD, ExemplarIndex
from recorder.memory.graph.inverted_index import InvertedIndex
from recorder.memory.steps.action_tokens import hash_texts
from recorder.memory.steps.session_steps import ALGO_VERSION, Step
from recorder.tenant import GraphScope

#: Of a larger screen the smallest hashes are compared: a sample, equal on all screens that share them.
COMPARED_FEATURES = 256


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its exemplar; `number` counts from 0 in the order of creation."""

    number: int
    node_id: str
    #: Action and kind of element, or the name of an activity or tool; empty once a purge has removed a name.
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
    #: Number of the node that stands for this one since a rebuild.
    merged_into: int | None = None


def make_content_id(prefix: str, *content: object) -> str:
    """Return an id made of the first 100 bits of BLAKE2 over some content, such as `nde_…`."""
    digest = hashlib.blake2b(canonical_json(content), digest_size=16).digest()
    return f"{prefix}_{ids.encode_ulid(int.from_bytes(digest, 'big') >> 28)[6:]}"


def select_compared_features(features: Sequence[int]) -> tuple[int, ...]:
    """Return the features of a screen that are compared and stored."""
    return tuple(features[:COMPARED_FEATURES])


def make_unused_graph_id(prefix: str, scope: GraphScope, taken: Container[str], *content: object) -> str:
    """Return an id for a new node or path; existing ones keep theirs.

    After a rebuild an id may belong to a thing whose content has changed; then a number is counted in.
    """
    names = (scope.workspace_id, scope.mode, scope.workflow)
    made = make_content_id(prefix, *names, *content)
    again = 0
    while made in taken:
        again += 1
        made = make_content_id(prefix, *names, *content, again)
    return made


def find_representative_node(nodes: Sequence[Node], number: int) -> int:
    """Return the node that represents this one: itself, or the one it was merged into, through all merges."""
    merged_into = nodes[number].merged_into
    while merged_into is not None:
        number = merged_into
        merged_into = nodes[number].merged_into
    return number


class NodeIndex:
    """The nodes of one graph, and which micro-states belong to each."""

    def __init__(self, scope: GraphScope, bounds: GraphBounds = GRAPH_BOUNDS) -> None:
        self.scope = scope
        self._most_exemplars = bounds.exemplars
        self.nodes: list[Node] = []
        #: Numbers of the nodes without a label.
        self.unnamed: set[int] = set()
        self.number_of: dict[int, int] = {}
        self._ids: set[str] = set()
        self._by_act: dict[int, ExemplarIndex] = {}
        self._screens = ExemplarIndex(bounds.exemplars)
        self._node_bytes = 0
        #: Number of postings that were read to find nodes.
        self.comparisons = 0

    @property
    def nbytes(self) -> int:
        """Estimated memory, that of a rebuild included."""
        return self._node_bytes + STATE_BYTES * len(self.number_of)

    def restore(self, nodes: Iterable[Node], micro_states: Iterable[tuple[int, int]]) -> None:
        """Load stored nodes, in order, and `(micro_key, node number)` pairs."""
        for node in nodes:
            self._keep_node(node)
        self.number_of.update(micro_states)

    def assign(self, step: Step) -> Node | None:
        """Give a micro-state its node; returns the node if it had to be made."""
        act, features = hash_texts(step.action, step.target), select_compared_features(step.features)
        number = self.nearest(act, features)
        if number is not None:
            self.number_of[step.micro_key] = number
            return None
        return self._make_node(step, act, features)

    def name_node(self, number: int, label: str) -> None:
        """Give a node a label."""
        self.nodes[number] = replace(self.nodes[number], label=label)
        self.unnamed.discard(number)

    def find_stand_in(self, step: Step) -> int | None:
        """Return the exemplar of the node that a micro-state would join; None if it would join none."""
        act, features = hash_texts(step.action, step.target), select_compared_features(step.features)
        number = self.nearest(act, features)
        return None if number is None else self.nodes[number].micro_key

    def make_other_node(self, other: Step) -> Node:
        """Make the node for the other steps of a kind (`capacity.make_step_beyond_capacity`)."""
        return self._make_node(other, compute_act_beyond_capacity(other.action), ())

    def _make_node(self, step: Step, act: int, features: tuple[int, ...]) -> Node:
        number = len(self.nodes)
        node = Node(
            number=number,
            node_id=make_unused_graph_id("nde", self.scope, self._ids, ALGO_VERSION, act, features),
            label=step.label,
            kind=step.action,
            micro_key=step.micro_key,
            act=act,
            screen=self.screen_of(number, features),
            features=features,
        )
        self._keep_node(node)
        self.number_of[step.micro_key] = number
        return node

    def nearest(self, act: int, features: Sequence[int], jaccard_min: float = SCREEN_JACCARD) -> int | None:
        """Return the number of the node of this act whose exemplar is nearest, if one is near enough."""
        exemplars = self._by_act.get(act)
        return self._find_nearest_node(exemplars, features, jaccard_min) if exemplars is not None else None

    def screen_of(self, number: int, features: Sequence[int]) -> int:
        """Return the group of similar screens of a new node; it leads its own group where none is near."""
        leader = self._find_nearest_node(self._screens, features, SCREEN_JACCARD)
        return number if leader is None else leader

    def _find_nearest_node(
        self, exemplars: ExemplarIndex, features: Sequence[int], jaccard_min: float
    ) -> int | None:
        """Return the number of the nearest exemplar, and count the comparisons."""
        before = exemplars.comparisons
        number = exemplars.nearest(features, jaccard_min)
        self.comparisons += exemplars.comparisons - before
        return number

    def _keep_node(self, node: Node) -> None:
        self.nodes.append(node)
        if not node.label:
            self.unnamed.add(node.number)
        self._ids.add(node.node_id)
        self._node_bytes += NODE_BYTES + NUMBER_BYTES * len(node.features)
        if node.merged_into is not None:
            return
        by_act = self._by_act.setdefault(node.act, ExemplarIndex(self._most_exemplars))
        self._node_bytes += by_act.add(node.number, node.features)
        if node.screen == node.number:
            self._node_bytes += self._screens.add(node.number, node.features)


#: Mean Jaccard similarity of the screens of two nodes from which on they are merged.
MERGE_JACCARD = 0.45
#: Screens of one act that are compared with each other; of more, each node is judged by a share of its own.
_MAX_SCREENS = 2_000
#: Features of a screen that count here: the smallest hashes, a sample.
_MAX_FEATURES = 128
#: Similarity that stands for "cannot be merged": a node with itself, or with a merged node.
_APART = -1.0


@dataclass(frozen=True, slots=True)
class MergeCandidate:
    """A micro-state as merging sees it: whose it is, and the hashed tokens of its screen."""

    node: int
    act: int
    micro_key: int
    features: Sequence[int]


def find_merged_nodes(shown: Iterable[MergeCandidate], bounds: GraphBounds = GRAPH_BOUNDS) -> dict[int, int]:
    """Return the nodes that are merged, each with the older node that it is merged into."""
    by_act: defaultdict[int, list[MergeCandidate]] = defaultdict(list)
    for state in shown:
        by_act[state.act].append(state)
    merged: dict[int, int] = {}
    for states in by_act.values():
        nodes = sorted({state.node for state in states})
        if 1 < len(nodes) <= bounds.merged_nodes:
            merged |= _merge_alike_nodes(nodes, *_measure_node_similarity(nodes, states))
    return merged


def _measure_node_similarity(nodes: Sequence[int], states: Iterable[MergeCandidate]) -> tuple[Floats, Floats]:
    """Return the mean Jaccard similarity of the screens of any two nodes, and each one's screen count."""
    share = max(1, _MAX_SCREENS // len(nodes))
    chosen: list[MergeCandidate] = []
    held: defaultdict[int, int] = defaultdict(int)
    for state in sorted(states, key=lambda state: (state.node, state.micro_key)):
        held[state.node] += 1
        if held[state.node] <= share:
            chosen.append(state)
    postings = InvertedIndex()
    for state in chosen:
        postings.add(state.features[:_MAX_FEATURES])
    totals = postings.totals()
    starts = np.searchsorted([state.node for state in chosen], nodes)
    sizes = np.diff(np.append(starts, len(chosen))).astype(np.float64)
    sums = np.zeros((len(nodes), len(nodes)))
    positions = np.repeat(np.arange(len(nodes)), sizes.astype(np.int64))
    for index, state in zip(positions, chosen, strict=True):
        features = state.features[:_MAX_FEATURES]
        shared = postings.overlaps(features)
        union = totals + len(features) - shared
        jaccard = np.divide(shared, union, out=np.ones_like(shared), where=union > 0)
        sums[index] += np.add.reduceat(jaccard, starts)
    return sums / np.outer(sizes, sizes), sizes


def _merge_alike_nodes(nodes: Sequence[int], likeness: Floats, sizes: Floats) -> dict[int, int]:
    """Merge similar nodes, the most similar pair first (the oldest of several); return them by number."""
    # Rounded: the order in which floats were summed must not decide.
    likeness = np.round(likeness, 9)
    np.fill_diagonal(likeness, _APART)
    merged: dict[int, int] = {}
    while True:
        older, newer = divmod(int(np.argmax(likeness)), len(nodes))
        if likeness[older, newer] < MERGE_JACCARD:
            break
        # The mean over the screens of both (Lance and Williams' update for average linkage).
        total = sizes[older] + sizes[newer]
        both = np.round((sizes[older] * likeness[older] + sizes[newer] * likeness[newer]) / total, 9)
        both[likeness[older] == _APART] = _APART
        both[newer] = _APART
        likeness[older], likeness[:, older] = both, both
        likeness[newer], likeness[:, newer] = _APART, _APART
        sizes[older] = total
        merged[nodes[newer]] = nodes[older]
    return {node: _resolve_merged_node(merged, node) for node in merged}


def _resolve_merged_node(merged: dict[int, int], node: int) -> int:
    """Return the node that a node was merged into, over several merges; the same node without any."""
    while node in merged:
        node = merged[node]
    return node
