"""Edges of the memory graph: how often, and in what time, sessions went from node to node. Spec §2.6.

The counters of the directly-follows graph, by day, outcome and kind of actor; additive, so a session can be
taken out exactly as it was put in.
"""

from collections.abc import Sequence
from datetime import UTC
from itertools import pairwise
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder.memory.nodes import GraphScope
from recorder.memory.versions import place_of
from recorder.models.memory import GraphEdgeRow

#: Ends of the edges that lead into a session and out of it.
START, END = -1, -2
_KEYS = ("day", "from_node", "to_node", "outcome", "actor_kind")


class EdgeCounts:
    """What one change adds to the counters of a graph."""

    def __init__(self, scope: GraphScope) -> None:
        self._scope = scope
        self._moved: dict[tuple[str, int, int, str, str], list[int]] = {}

    def add(self, session_path: dict[str, Any], nodes: Sequence[int], sign: int) -> None:
        """Count the edges of one session up (1) or down (-1).

        Args:
            session_path: values of its `SessionPathRow`.
            nodes: the numbers of its variant.
        """
        day = session_path["started_at"].astimezone(UTC).strftime("%Y-%m-%d")
        rest = (session_path["outcome"], session_path["actor_kind"] or "")
        ends = pairwise((START, *nodes, END))
        for (source, goal), ms in zip(ends, session_path["edge_ms"], strict=True):
            moved = self._moved.setdefault((day, source, goal, *rest), [0, 0])
            moved[0] += sign
            moved[1] += sign * ms

    def save(self, db: DbSession) -> None:
        """Add what moved to the stored counters, in one statement."""
        place = place_of(self._scope)
        rows = [
            {**place, **dict(zip(_KEYS, key, strict=True)), "n": n, "sum_ms": sum_ms}
            for key, (n, sum_ms) in sorted(self._moved.items())
            if n or sum_ms
        ]
        if not rows:
            return
        dialect: Any = postgresql if db.get_bind().dialect.name == "postgresql" else sqlite
        statement = dialect.insert(GraphEdgeRow)
        added = {
            name: col(getattr(GraphEdgeRow, name)) + statement.excluded[name] for name in ("n", "sum_ms")
        }
        upsert = statement.on_conflict_do_update(index_elements=[*place, *_KEYS], set_=added)
        db.connection().execute(upsert, rows)
