"""Graphs for tests of what is made from them: columns written down by hand, one word for each node."""

from collections.abc import Sequence

import numpy as np

from recorder.memory.graph.directly_follows import OUTCOMES
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.structure import NodeInfo, PathInfo
from recorder.memory.views.graph_view import GraphView, graph_view_of

#: Labels of the nodes on the way, its outcome, how many went it.
Way = tuple[Sequence[str], str, int]

_USUAL = (
    "Sign in",
    "Open invoices",
    "Invoice",
    "Set cost centre",
    "Write note",
    "Tick match",
    "Approve",
    "Confirm",
    "Approved",
)
_START, _END = _USUAL[:3], _USUAL[3:]
#: The workflow of the console's drawing: 412 sessions.
INVOICES: tuple[Way, ...] = (
    (_USUAL, "success", 190),
    ([name for name in _USUAL if name != "Write note"], "success", 84),
    ([*_START[:2], "Search supplier", "Invoice", *_END], "success", 43),
    (["Sign in", "Bad credentials", *_USUAL], "success", 28),
    ([*_START, "Reject", "Rejected"], "success", 21),
    ([*_USUAL[:8], "Second approver"], "abandoned", 17),
    ([*_USUAL[:8], "Server error"], "error", 12),
    ([*_USUAL[:8], "Server error", "Approve", "Confirm", "Approved"], "success", 9),
    (["Sign in", "Bad credentials"], "error", 6),
    ([*_START[:2], "Search supplier"], "abandoned", 2),
)


def columns_of(ways: Sequence[Way], step_ms: Sequence[Sequence[int]] | None = None) -> GraphColumns:
    """Return columns in which each way is a trace, variant and path of its own; ids are `nde_<label>`.

    Args:
        step_ms: the times of each session, in the order of the ways; by default a second each.
    """
    names = list(dict.fromkeys(name for nodes, _, _ in ways for name in nodes))
    routes = [tuple(names.index(name) for name in nodes) for nodes, _, _ in ways]
    lengths = np.array([len(route) for route in routes], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    trace = np.repeat(np.arange(len(ways)), [count for _, _, count in ways])
    times = [[1000] * (int(lengths[index]) + 1) for index in trace] if step_ms is None else step_ms
    flat = np.array([time for session_times in times for time in session_times], dtype=np.int64)
    rows = len(trace)
    return GraphColumns(
        version=1,
        nodes=[NodeInfo(f"nde_{name}", name, "click", number) for number, name in enumerate(names)],
        paths=[PathInfo(f"pth_{number:02}", route, number) for number, route in enumerate(routes)],
        variant_path=np.arange(len(ways)),
        variant_start=starts,
        variant_nodes=np.array([node for route in routes for node in route], dtype=np.int64),
        trace_variant=np.arange(len(ways)),
        trace_start=starts,
        trace_entry=np.array([index for route in routes for index in range(len(route))], dtype=np.int64),
        session_id=np.array([f"ses_{row}".encode() for row in range(rows)], dtype="S30"),
        added=np.ones(rows, dtype=np.int64),
        removed=np.full(rows, np.iinfo(np.int64).max),
        trace=trace,
        outcome=np.array([OUTCOMES.index(ways[index][1]) for index in trace.tolist()], dtype=np.int64),
        actor=np.zeros(rows, dtype=np.int64),
        duration_ms=np.array([sum(session_times) for session_times in times], dtype=np.int64),
        started_ms=np.arange(rows),
        sealed_ms=np.arange(rows),
        seal_seq=np.arange(rows),
        time_start=np.concatenate(
            [
                np.zeros(1, dtype=np.int64),
                np.cumsum([len(session_times) for session_times in times], dtype=np.int64),
            ]
        ),
        step_ms=flat,
        order=np.arange(rows),
    )


def view_for(ways: Sequence[Way], **members: object) -> GraphView:
    """Return the view of all sessions of these ways."""
    columns = columns_of(ways)
    return graph_view_of(columns, columns.current(), **{"workflow": "approve_invoice", **members})  # type: ignore[arg-type]


def invoices() -> GraphView:
    """Return the view of the console's drawing, with its two recovery points and its new node."""
    return view_for(
        INVOICES,
        recovery=frozenset(["nde_Invoice", "nde_Tick match"]),
        new=frozenset(["nde_Second approver"]),
    )
