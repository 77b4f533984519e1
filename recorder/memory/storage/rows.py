"""Parts of a graph as rows and back: which member is which column. Spec §2.6."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from recorder.memory.grouping.graph import MicroState, Trace
from recorder.memory.grouping.nodes import Node, compared
from recorder.memory.grouping.paths import Path, Variant


def packed(numbers: Iterable[int]) -> bytes:
    """Numbers as little-endian int64."""
    return np.fromiter(numbers, dtype="<i8").tobytes()


def unpacked(data: bytes) -> tuple[int, ...]:
    """What `packed` packed."""
    return tuple(np.frombuffer(data, dtype="<i8").tolist())


def node_of(row: Any) -> Node:
    """The node of a row of `graph_nodes`."""
    return Node(
        number=row.number,
        node_id=row.node_id,
        label=row.label,
        kind=row.kind,
        micro_key=row.micro_key,
        act=row.act,
        screen=row.screen,
        # An earlier release kept more of a large screen.
        features=compared(unpacked(row.features)),
        merged_into=row.merged_into,
    )


def node_values(node: Node) -> dict[str, Any]:
    """The columns of a node."""
    return {
        "number": node.number,
        "node_id": node.node_id,
        "label": node.label,
        "kind": node.kind,
        "micro_key": node.micro_key,
        "act": node.act,
        "screen": node.screen,
        "features": packed(node.features),
        "merged_into": node.merged_into,
    }


def micro_state_of(row: Any) -> MicroState:
    """The micro-state of a row of `graph_micro_states`."""
    features = None if row.features is None else unpacked(row.features)
    return MicroState(row.micro_key, row.node, features)


def micro_state_values(state: MicroState) -> dict[str, Any]:
    """The columns of a micro-state."""
    features = None if state.features is None else packed(state.features)
    return {"micro_key": state.micro_key, "node": state.node, "features": features}


def trace_values(trace: Trace) -> dict[str, Any]:
    """The columns of a trace, but for its count."""
    return {
        "trace_key": trace.trace_key,
        "steps": packed(trace.steps),
        "variant_key": trace.variant_key,
    }


def variant_values(variant: Variant) -> dict[str, Any]:
    """The columns of a variant."""
    return {"variant_key": variant.variant_key, "nodes": variant.nodes, "path": variant.path}


def path_of(row: Any) -> Path:
    """The path of a row of `graph_paths`."""
    return Path(row.number, row.path_id, row.leader, tuple(row.nodes), row.merged_into)


def path_values(path: Path) -> dict[str, Any]:
    """The columns of a path."""
    return {
        "number": path.number,
        "path_id": path.path_id,
        "leader": path.leader,
        "nodes": path.nodes,
        "merged_into": path.merged_into,
    }
