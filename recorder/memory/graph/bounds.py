"""Bounds from which on the time of a graph grows no faster than its sessions. Spec §2.6."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraphBounds:
    """Numbers of things of one graph that are compared with each other."""

    #: Exemplars that a new micro-state is compared with, the oldest of its act (and of all screens): where
    #: every one is new and all share a part, time must not go with their square.
    exemplars: int = 4_000
    #: An act of more nodes than this keeps all of them when others are merged: the time goes with their
    #: square.
    merged_nodes: int = 600
    #: Variants that a new one is compared with, those of most sessions: a batch takes no longer where each
    #: session of a workflow is a path of its own.
    path_exemplars: int = 16_000
    #: Variants that are grouped at once, those of most sessions first; the others join the nearest.
    grouped: int = 2_000
    #: Rounds of so many variants that all later ones are compared with; what is still apart then is grouped
    #: among its own, so that a graph of ever new variants takes time in proportion to them.
    rounds: int = 4


GRAPH_BOUNDS = GraphBounds()
