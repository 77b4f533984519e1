"""Anchors: the nodes from which sessions that failed returned to success. Spec §2.7, §4.2 (recovery_points).

In session: the first node that a session entered after its failure tag from which it followed a path of
success to its end. Where no session recovered so, across sessions: the last node of a failing session before
the chance of success drops; successful sessions show how long success takes from there.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from recorder.memory.graph.arrays import Bools, Ints, sort_distinct
from recorder.memory.graph.directly_follows import SUCCESS
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.success_evidence import SuccessEvidence, compute_success_evidence

Basis = Literal["in_session", "cross_session"]
#: Times of success tags by row, ascending; a row without any may be absent.
SuccessTimes = Mapping[int, Sequence[int] | Ints]
#: Returns the times of rows (at least one).
ReadSuccesses = Callable[[Ints], SuccessTimes]
#: Witnesses of an anchor that are told: enough to find one whose step a frame shows.
WITNESSES = 5
#: A smaller fall of the chance of success is chance itself.
_LEAST_FALL = 0.1
#: Decimals of a chance: the order in which floats were summed must decide no tie.
_DECIMALS = 9


class Witness(NamedTuple):
    """A session that went from an anchor to success, and the position of the step that entered the anchor."""

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
    #: A few that were not purged: those whose time to success is nearest to the median first, then the
    #: newest, then by id.
    witnesses: tuple[Witness, ...]


@dataclass(frozen=True, slots=True)
class NodeEntries:
    """Nodes that sessions entered, in order, one entry for each."""

    #: Position of the session among the rows asked for, and its row.
    owner: Ints
    row: Ints
    node: Ints
    #: Position of the step that entered the node, and ms since the session's start.
    pos: Ints
    entered_ms: Ints

    def only(self, which: Bools | Ints | slice) -> "NodeEntries":
        """Return some of the entries."""
        return NodeEntries(*(getattr(self, name)[which] for name in self.__slots__))


def find_recovery_anchors(
    columns: GraphColumns,
    chosen: Bools,
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
    evidence = compute_success_evidence(columns, chosen, rows)
    entries = list_node_entries(columns, rows)
    recoveries = _find_returns(columns, entries, failed, evidence)
    if len(recoveries.node):
        counts = np.bincount(recoveries.node, minlength=len(columns.nodes))
        return _list_recovery_anchors(
            columns, counts, recoveries, len(rows), "in_session", read_successes, witnesses
        )
    left = _find_anchor_before_failure(entries, failed, evidence)
    counts = np.bincount(left.node, minlength=len(columns.nodes))
    succeeded = np.flatnonzero(chosen & (columns.outcome == SUCCESS))
    passed = _find_first_entries(list_node_entries(columns, np.setdiff1d(succeeded, rows)), counts > 0)
    return _list_recovery_anchors(
        columns, counts, passed, len(rows), "cross_session", read_successes, witnesses
    )


def list_node_entries(columns: GraphColumns, rows: Ints) -> NodeEntries:
    """Return the nodes that some sessions entered, in order."""
    trace, variant = columns.trace[rows], columns.variant[rows]
    sizes = columns.trace_start[trace + 1] - columns.trace_start[trace]
    owner = np.repeat(np.arange(len(rows)), sizes)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    pos = columns.trace_entry[columns.trace_start[trace][owner] + within]
    elapsed = np.concatenate([[0], np.cumsum(columns.step_ms)])
    begin = columns.time_start[rows][owner]
    return NodeEntries(
        owner=owner,
        row=rows[owner],
        node=columns.variant_nodes[columns.variant_start[variant][owner] + within],
        pos=pos,
        entered_ms=elapsed[begin + pos + 1] - elapsed[begin],
    )


def _find_returns(
    columns: GraphColumns, entries: NodeEntries, failed: Ints, evidence: SuccessEvidence
) -> NodeEntries:
    """Return for each successful session the first node after its failure that the path of success follows.

    That is: one path of success holds both the node and the next one. A stray act is on no such path, and
    from the last node of a session nothing is left to do.
    """
    is_later = entries.entered_ms > failed[entries.owner]
    later = entries.only(is_later & (columns.outcome[entries.row] == SUCCESS))
    goes_on = later.owner[1:] == later.owner[:-1]
    here = later.only(np.flatnonzero(goes_on))
    back = here.only(evidence.are_on_shared_path(here.node, later.node[1:][goes_on]))
    return back.only(np.unique(back.owner, return_index=True)[1])


def _find_anchor_before_failure(entries: NodeEntries, failed: Ints, evidence: SuccessEvidence) -> NodeEntries:
    """Return for each session the last node before its failure at which its chance of success was good.

    The chance falls most from that node to the next one, of equal falls the last. Where it hardly falls, it
    is the last node before the failing act. Nodes that nothing follows in successful sessions are left out.
    """
    before = entries.only(entries.entered_ms <= failed[entries.owner])
    is_last = np.append(before.owner[1:] != before.owner[:-1], True)[: len(before.owner)]
    failing_act = np.zeros(len(failed), dtype=np.int64)
    failing_act[before.owner[is_last]] = before.node[is_last]
    chance = evidence.chance[before.node]
    fall = np.round(chance - np.append(chance[1:], 0.0)[: len(chance)], _DECIMALS)
    fall[fall < _LEAST_FALL] = 0.0
    eligible = np.flatnonzero(~is_last & (before.node != failing_act[before.owner]))
    candidates, fall = before.only(eligible), fall[eligible]
    order = np.lexsort((-eligible, -fall, candidates.owner))
    ranked = candidates.only(order)
    last = ranked.only(np.unique(ranked.owner, return_index=True)[1])
    return last.only(evidence.is_followed[last.node])


def _find_first_entries(entries: NodeEntries, is_wanted: Bools) -> NodeEntries:
    """Return the first visit of each session to each of some nodes."""
    wanted = entries.only(is_wanted[entries.node])
    keys = wanted.owner * len(is_wanted) + wanted.node
    return wanted.only(np.unique(keys, return_index=True)[1])


def _list_recovery_anchors(
    columns: GraphColumns,
    counts: Ints,
    witnessed: NodeEntries,
    failing: int,
    basis: Basis,
    read_successes: ReadSuccesses,
    limit: int,
) -> list[Anchor]:
    """Return one anchor for each node that was witnessed.

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
    times = measure_recoveries(columns, witnessed, read_successes(sort_distinct(witnessed.row)))
    by_node = np.argsort(witnessed.node, kind="stable")
    nodes, starts = np.unique(witnessed.node[by_node], return_index=True)
    anchors = []
    for node, mine in zip(nodes.tolist(), np.split(by_node, starts[1:]), strict=True):
        twice_median = compute_twice_recovery_median(times[mine])
        nearest = mine[
            _find_nearest_anchor_witnesses(
                np.abs(2 * times[mine] - twice_median), columns, witnessed.row[mine], limit
            )
        ]
        positions = zip(witnessed.row[nearest].tolist(), witnessed.pos[nearest].tolist(), strict=True)
        count = int(counts[node])
        listed = tuple(Witness(row, pos) for row, pos in positions)
        anchors.append(Anchor(node, basis, count, count / failing, twice_median // 2, listed))
    return sorted(anchors, key=lambda anchor: (-anchor.session_count, columns.nodes[anchor.node].node_id))


def _find_nearest_anchor_witnesses(distance: Ints, columns: GraphColumns, rows: Ints, limit: int) -> Ints:
    """Return positions of the rows with the least distance, then the newest, then by id.

    Purged sessions are left out: no step of theirs is recorded.
    """
    recorded = np.flatnonzero(~columns.is_anonymous[rows])
    if not limit or not len(recorded):
        return np.zeros(0, dtype=np.int64)
    last = min(limit, len(recorded)) - 1
    # Only those that can be among the first are sorted: ids are slow to compare.
    near = recorded[distance[recorded] <= np.partition(distance[recorded], last)[last]]
    rows = rows[near]
    order = np.lexsort((columns.session_id[rows], -columns.started_ms[rows], distance[near]))
    first: Ints = near[order[:limit]]
    return first


def measure_recoveries(columns: GraphColumns, entries: NodeEntries, successes: SuccessTimes) -> Ints:
    """Return the time from each visit to the first success tag at or after it, else to the stop."""
    ends = columns.duration_ms[entries.row]
    if successes:
        entered = zip(entries.row.tolist(), entries.entered_ms.tolist(), ends.tolist(), strict=True)
        ends = np.array(
            [
                _find_first_success(successes.get(row, ()), entered_ms, stop_ms)
                for row, entered_ms, stop_ms in entered
            ],
            dtype=np.int64,
        )
    # A step may lie behind the end of a session whose client's clock ran fast.
    times: Ints = np.maximum(ends - entries.entered_ms, 0)
    return times


def _find_first_success(times: Sequence[int] | Ints, entered_ms: int, stop_ms: int) -> int:
    """Return the first of the ascending times at or after an instant, else the stop."""
    index = bisect_left(times, entered_ms)
    return int(times[index]) if index < len(times) else stop_ms


def compute_twice_recovery_median(times: Ints) -> int:
    """Return twice the median: a whole number also where it is the mean of two."""
    ordered = np.sort(times)
    middle = len(ordered) // 2
    return int(ordered[middle] + ordered[len(ordered) - 1 - middle])
