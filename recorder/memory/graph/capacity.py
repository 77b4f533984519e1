"""Capacity of a graph: its memory bound, and the stand-in steps for what is beyond it. Spec §2.6.

A graph without room keeps what it has. An unseen micro-state then counts as the exemplar of the nearest node,
or as a node for other steps of its kind, and a session that goes an unseen way counts without its way. So
what is stored stays what a graph is made of: a rebuild, a query and an erasure need no rule of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from recorder import limits
from recorder.memory.graph.bounds import GRAPH_BOUNDS, GraphBounds
from recorder.memory.steps.action_tokens import hash_texts
from recorder.memory.steps.session_steps import Step

#: Postings that may be read to find the nearest nodes of a batch's unseen micro-states: 1 to 3 s of CPU.
#: Where all screens of 10,000 new states share a part, it takes 30 s without this bound.
_COMPARISONS = 300_000_000
#: Steps of all traces of a graph: they take no memory while sessions are sealed, but do in a rebuild.
_TRACE_STEPS = 30_000_000
#: Trace of the sessions whose ways were not kept; it has no steps.
UNKEPT_TRACE = hash_texts("way that was not kept")

#: Estimated bytes of objects in memory, as measured on CPython 3.12 and 64 bits: an integer in a tuple
#: with its entry there, and each kind of object without what it lists. A rebuild also holds the features of a
#: micro-state.
NUMBER_BYTES = 40
STATE_BYTES, NODE_BYTES, TEXT_BYTES = 2_000, 1_500, 800
TRACE_BYTES, VARIANT_BYTES, PATH_BYTES, FEATURE_BYTES = 120, 600, 600, 300
#: An edge of a view of the whole graph; a sealing run takes 100 bytes for it.
EDGE_BYTES = 600


@dataclass(frozen=True, slots=True)
class GraphCapacity:
    """Most that one graph takes."""

    #: Bytes of nodes, micro-states and the texts that name nodes.
    state_bytes: int
    #: Bytes of traces, variants and paths, and of their features.
    way_bytes: int
    trace_steps: int = _TRACE_STEPS
    #: Postings that one batch may read to compare screens.
    comparisons: int = _COMPARISONS
    bounds: GraphBounds = GRAPH_BOUNDS

    @classmethod
    def of_megabytes(cls, megabytes: int) -> "GraphCapacity":
        """Return the capacity of a graph of this size: a third for its states, the rest for its ways."""
        total = megabytes * 1_000_000
        return cls(state_bytes=total // 3, way_bytes=total - total // 3)


DEFAULT_CAPACITY = GraphCapacity.of_megabytes(limits.GRAPH_MEMORY_MB)


def compute_act_beyond_capacity(kind: str) -> int:
    """Return the act of the node for other steps of a kind: no step has it, as no type holds a space."""
    return hash_texts("other steps", kind)


def make_step_beyond_capacity(step: Step) -> Step:
    """Return a step reduced to its kind, for a full graph: without its element, screen and texts."""
    kind = step.action.partition(":")[0]
    return replace(
        step,
        micro_key=compute_act_beyond_capacity(kind),
        screen_key="",
        action=kind,
        target="",
        label=f"Other {kind.replace('_', ' ').replace('.', ' ')} steps",
        features=(),
        names=(),
        locations=(),
        words="",
    )


def replace_step_beyond_capacity(step: Step, stand_ins: Mapping[int, int | None]) -> Step:
    """Return the step as what counts for it.

    Args:
        step: the step.
        stand_ins: for each micro-state that is not kept one that is; None if it is one of the other steps.
    """
    if step.micro_key not in stand_ins:
        return step
    stand_in = stand_ins[step.micro_key]
    return make_step_beyond_capacity(step) if stand_in is None else replace(step, micro_key=stand_in)
