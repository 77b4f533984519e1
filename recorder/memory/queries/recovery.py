"""Anchors: the nodes from which sessions that failed came back to success. Spec §2.7, §4.2 (recovery_points).

In session: the first node that a session entered after its failure tag, where it then ended in success and
the node is also on a path of success. Where no session recovered so, across sessions: the last node that
failing sessions shared with such a path; successful sessions show how long success takes from there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from recorder.memory.graph.inverted_index import Ints
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.columns import OUTCOMES, GraphColumns, Mask

Basis = Literal["in_session", "cross_session"]
#: For rows (at least one), the times of their success tags, ascending; a row without any may be absent.
ReadSuccesses = Callable[[Ints], Mapping[int, Sequence[int]]]
_SUCCESS = OUTCOMES.index("success")
#: Witnesses of an anchor that are told: enough to find one whose step a frame shows.
WITNESSES = 5


class Witness(NamedTuple):
    """A session that went from an anchor to success, and the place of the step that entered the anchor."""

    row: int
    pos: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """A node from which sessions recover."""

    node: int
    basis: Basis
    #: Failing sessions that recovered here (across sessions: that left the path of success here).
    session_count: int
    #: Their share of all failing sessions.
    frequency: float
    median_recovery_ms: int
    #: A few: those whose time to success is nearest to the median first, then the newest, then by id.
    witnesses: tuple[Witness, ...]


@dataclass(frozen=True, slots=True)
class _Visits:
    """Nodes that sessions entered, in order, one entry for each."""

    #: Place of the session among the rows asked for, and its row.
    owner: Ints
    row: Ints
    node: Ints
    #: Place of the step that entered the node, and ms since the session's start.
    pos: Ints
    entered_ms: Ints

    def only(self, which: Mask | Ints | slice) -> "_Visits":
        return _Visits(*(getattr(self, name)[which] for name in self.__slots__))


def find_anchors(
    columns: GraphColumns,
    chosen: Mask,
    failed_ms: Mapping[int, int],
    read_successes: ReadSuccesses,
    *,
    witnesses: int = WITNESSES,
) -> list[Anchor]:
    """Return the anchors of failing sessions, the most frequent first, then by node id.

    Args:
        columns: the graph's columns.
        chosen: the sessions that paths of success are made of.
        failed_ms: when each failing session failed, by row: the time of its last failure tag.
        read_successes: returns the success tags of rows.
        witnesses: how many of each anchor are listed.
    """
    rows = np.array(sorted(failed_ms), dtype=np.int64)
    if not len(rows):
        return []
    failed = np.array([failed_ms[row] for row in rows.tolist()], dtype=np.int64)
    is_success_node = _success_nodes(columns, chosen)
    visits = _visits(columns, rows)
    recoveries = _in_session(columns, visits, failed, is_success_node)
    if len(recoveries.node):
        counts = np.bincount(recoveries.node, minlength=len(columns.nodes))
        return _anchors(columns, counts, recoveries, len(rows), "in_session", read_successes, witnesses)
    left = _left_at(visits, failed, is_success_node)
    counts = np.bincount(left.node, minlength=len(columns.nodes))
    succeeded = np.flatnonzero(chosen & (columns.outcome == _SUCCESS))
    passed = _first_visits(_visits(columns, np.setdiff1d(succeeded, rows)), counts > 0)
    return _anchors(columns, counts, passed, len(rows), "cross_session", read_successes, witnesses)


def _success_nodes(columns: GraphColumns, chosen: Mask) -> Mask:
    """Return for each node whether it is on a path of which a chosen session ended in success."""
    is_success_node = np.zeros(len(columns.nodes), dtype=np.bool_)
    taken = columns.path[chosen & (columns.outcome == _SUCCESS)]
    for number in np.unique(taken[taken != NO_PATH]).tolist():
        is_success_node[list(columns.paths[number].nodes)] = True
    return is_success_node


def _visits(columns: GraphColumns, rows: Ints) -> _Visits:
    trace, variant = columns.trace[rows], columns.variant[rows]
    sizes = columns.trace_start[trace + 1] - columns.trace_start[trace]
    owner = np.repeat(np.arange(len(rows)), sizes)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    pos = columns.trace_entry[columns.trace_start[trace][owner] + within]
    elapsed = np.concatenate([[0], np.cumsum(columns.step_ms)])
    begin = columns.time_start[rows][owner]
    return _Visits(
        owner=owner,
        row=rows[owner],
        node=columns.variant_nodes[columns.variant_start[variant][owner] + within],
        pos=pos,
        entered_ms=elapsed[begin + pos + 1] - elapsed[begin],
    )


def _in_session(columns: GraphColumns, visits: _Visits, failed: Ints, is_success_node: Mask) -> _Visits:
    """Return the first node after the failure of each successful session, if it is on a path of success."""
    is_later = visits.entered_ms > failed[visits.owner]
    later = visits.only(is_later & (columns.outcome[visits.row] == _SUCCESS))
    first = later.only(np.unique(later.owner, return_index=True)[1])
    return first.only(is_success_node[first.node])


def _left_at(visits: _Visits, failed: Ints, is_success_node: Mask) -> _Visits:
    """Return the last node on a path of success that each session entered before it failed, if any."""
    before = visits.only((visits.entered_ms <= failed[visits.owner]) & is_success_node[visits.node])
    last = before.only(slice(None, None, -1))
    return last.only(np.unique(last.owner, return_index=True)[1])


def _first_visits(visits: _Visits, is_wanted: Mask) -> _Visits:
    """Return the first visit of each session to each of some nodes."""
    wanted = visits.only(is_wanted[visits.node])
    keys = wanted.owner * len(is_wanted) + wanted.node
    return wanted.only(np.unique(keys, return_index=True)[1])


def _anchors(
    columns: GraphColumns,
    counts: Ints,
    witnessed: _Visits,
    failing: int,
    basis: Basis,
    read_successes: ReadSuccesses,
    limit: int,
) -> list[Anchor]:
    """One anchor for each node that was witnessed.

    Args:
        columns: the graph's columns.
        counts: failing sessions by node.
        witnessed: from where sessions went on to success, at most once for each node.
        failing: how many sessions failed.
        basis: kind of evidence for the anchors.
        read_successes: returns the success tags of rows.
        limit: how many witnesses of each are listed.
    """
    if not len(witnessed.row):
        return []
    times = _recovery_ms(columns, witnessed, read_successes(np.unique(witnessed.row)))
    by_node = np.argsort(witnessed.node, kind="stable")
    nodes, starts = np.unique(witnessed.node[by_node], return_index=True)
    anchors = []
    for node, mine in zip(nodes.tolist(), np.split(by_node, starts[1:]), strict=True):
        twice_median = _twice_median(times[mine])
        nearest = mine[_nearest(np.abs(2 * times[mine] - twice_median), columns, witnessed.row[mine], limit)]
        places = zip(witnessed.row[nearest].tolist(), witnessed.pos[nearest].tolist(), strict=True)
        count = int(counts[node])
        listed = tuple(Witness(row, pos) for row, pos in places)
        anchors.append(Anchor(node, basis, count, count / failing, twice_median // 2, listed))
    return sorted(anchors, key=lambda anchor: (-anchor.session_count, columns.nodes[anchor.node].node_id))


def _nearest(distance: Ints, columns: GraphColumns, rows: Ints, limit: int) -> Ints:
    """Places of the rows with the least distance, then the newest, then by id."""
    if not limit:
        return np.zeros(0, dtype=np.int64)
    last = min(limit, len(distance)) - 1
    # Only those that can be among the first are sorted: ids are slow to compare.
    near = np.flatnonzero(distance <= np.partition(distance, last)[last])
    rows = rows[near]
    order = np.lexsort((columns.session_id[rows], -columns.started_ms[rows], distance[near]))
    first: Ints = near[order[:limit]]
    return first


def _recovery_ms(columns: GraphColumns, visits: _Visits, successes: Mapping[int, Sequence[int]]) -> Ints:
    """Time from each visit to the first success tag at or after it, else to the stop."""
    ends = columns.duration_ms[visits.row]
    if successes:
        entered = zip(visits.row.tolist(), visits.entered_ms.tolist(), ends.tolist(), strict=True)
        ends = np.array(
            [
                next((t_ms for t_ms in successes.get(row, ()) if t_ms >= entered_ms), stop_ms)
                for row, entered_ms, stop_ms in entered
            ],
            dtype=np.int64,
        )
    # A step may lie behind the end of a session whose client's clock ran fast.
    times: Ints = np.maximum(ends - visits.entered_ms, 0)
    return times


def _twice_median(times: Ints) -> int:
    """Twice the median: a whole number also where it is the mean of two."""
    ordered = np.sort(times)
    middle = len(ordered) // 2
    return int(ordered[middle] + ordered[len(ordered) - 1 - middle])
