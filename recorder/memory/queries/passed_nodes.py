"""Nodes that a failed session passed before its failure, with what the graph counts about each. Spec §4.6.

Candidates of a recovery: nodes that carry a tag of the session, or that no success gets round. Counts are
those of the sessions that failed after the node; where none of them succeeded later, those of all sessions
that passed the node.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash

from recorder.event_types import find_event_type_traits
from recorder.memory.graph.arrays import Bools, Ints, sort_distinct
from recorder.memory.graph.directly_follows import SUCCESS
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.recovery_anchors import (
    Basis,
    NodeEntries,
    ReadSuccesses,
    Witness,
    compute_twice_recovery_median,
    list_node_entries,
    measure_recoveries,
)
from recorder.memory.queries.similarity import index_similarity
from recorder.memory.queries.success_evidence import compute_success_evidence

#: Candidates: of more, those passed last.
_CANDIDATES = 50
#: Donors of a node that are listed: enough to find one that is still recorded.
_DONORS = 20


class _PassedNodeCounts(NamedTuple):
    hits: int
    successes: int
    median_recovery_ms: int | None


@dataclass(frozen=True, slots=True)
class PassedNode:
    """A node from which a failed session may be recovered."""

    node: int
    #: Position and time of the step with which the failed session entered it last; None if it never did.
    pos: int | None
    entered_ms: int | None
    basis: Basis
    #: Sessions that failed after the node (across sessions: that passed it), and those that succeeded later.
    hits: int
    successes: int
    median_recovery_ms: int | None
    #: Sessions that took the most frequent way from the node to success, the most similar first.
    donors: tuple[Witness, ...]


class PassedNodes:
    """Recovery candidates of a failed session: nodes that it passed, with sessions that failed alike.

    Args:
        columns: the graph's columns.
        row: the failed session.
        failed_ms: when sessions failed in the same way, by row; the failed session is among them.
        read_successes: returns the success tags of rows.
    """

    def __init__(
        self,
        columns: GraphColumns,
        row: int,
        failed_ms: Mapping[int, int],
        read_successes: ReadSuccesses,
    ) -> None:
        self._columns, self._row = columns, row
        self._read_successes = read_successes
        rows = np.array(sorted(failed_ms), dtype=np.int64)
        failed = np.array([failed_ms[row] for row in rows.tolist()], dtype=np.int64)
        entries = list_node_entries(columns, rows)
        is_before = entries.entered_ms <= failed[entries.owner]
        self._before, self._after = entries.only(is_before), entries.only(~is_before)
        chosen = columns.current()
        self._required = frozenset(compute_success_evidence(columns, chosen, rows).network.required_nodes)
        succeeded = chosen & (columns.outcome == SUCCESS)
        succeeded[rows] = False
        #: Node entries of the sessions that succeeded without failing so.
        self._clean = list_node_entries(columns, np.flatnonzero(succeeded))

    def list_candidates(self, tag_times: Collection[int]) -> list[PassedNode]:
        """Return the nodes that the session passed and that carry a tag or that no success gets round.

        The node of the failing act is none of them.

        Args:
            tag_times: times of the session's tags; a tag is that of the first step at or after it.
        """
        nodes = self._columns.nodes
        # An error event is a step, and neither the act that failed nor one to repeat.
        is_act = np.array(
            [find_event_type_traits(node.kind).event_class != "system" for node in nodes], dtype=np.bool_
        )
        is_own_act = (self._before.row == self._row) & is_act[self._before.node]
        own_visits = self._before.only(is_own_act)
        if not len(own_visits.node):
            return []
        times = np.array(sorted(tag_times), dtype=np.int64)
        at_tags = np.searchsorted(own_visits.entered_ms, times)
        tagged = frozenset(own_visits.node[at_tags[at_tags < len(own_visits.node)]].tolist())
        failing_act = int(own_visits.node[-1])
        last = {node: visit for visit, node in enumerate(own_visits.node.tolist()) if node != failing_act}
        wanted = [
            (node, visit)
            for node, visit in sorted(last.items(), key=lambda item: item[1])
            if node in tagged or nodes[node].node_id in self._required
        ][-_CANDIDATES:]
        positions = {
            node: (int(own_visits.pos[visit]), int(own_visits.entered_ms[visit])) for node, visit in wanted
        }
        in_session: list[_PassedNodeCounts] = [self._count_returns(node) for node in positions]
        is_returned = any(successes for _, successes, _ in in_session)
        counts = in_session if is_returned else [self._count_passes(node) for node in positions]
        basis: Basis = "in_session" if is_returned else "cross_session"
        return [
            PassedNode(node, pos, entered_ms, basis, *count, self.list_donors(node))
            for (node, (pos, entered_ms)), count in zip(positions.items(), counts, strict=True)
        ]

    def describe(self, node: int) -> PassedNode:
        """Return what the graph counts about one node, whether the session passed it or not."""
        own_visits = self._before.only((self._before.row == self._row) & (self._before.node == node))
        returns = self._count_returns(node)
        basis: Basis = "in_session" if returns[1] else "cross_session"
        hits, successes, median = returns if returns[1] else self._count_passes(node)
        pos = int(own_visits.pos[-1]) if len(own_visits.pos) else None
        entered_ms = int(own_visits.entered_ms[-1]) if len(own_visits.pos) else None
        return PassedNode(node, pos, entered_ms, basis, hits, successes, median, self.list_donors(node))

    def list_donors(self, node: int) -> tuple[Witness, ...]:
        """Return sessions that took the most frequent way from a node to success, with their last visit.

        Purged sessions are left out. Of equally frequent ways the shortest counts. The sessions most similar
        to the failed one come first, then the newest, then by id.
        """
        is_recorded = ~self._columns.is_anonymous
        entries = _last_entries(self._clean.only(is_recorded[self._clean.row]), node)
        if not len(entries.row):
            recovered = self._after.only(self._columns.outcome[self._after.row] == SUCCESS)
            entries = _last_entries(recovered, node)
        if not len(entries.row):
            return ()
        mine = entries.only(np.flatnonzero(self._took_best_way(entries)))
        columns = self._columns
        similarity = index_similarity(columns).compare(self._row, mine.row)
        order = np.lexsort((columns.session_id[mine.row], -columns.started_ms[mine.row], -similarity))
        first = mine.only(order[:_DONORS])
        return tuple(map(Witness, first.row.tolist(), first.pos.tolist()))

    def _took_best_way(self, entries: NodeEntries) -> Bools:
        """Return which entries took the most frequent way to the end of their session.

        Ways are compared by digest: a graph may have many and long ones, and one copy of each is too much.
        """
        numbers: dict[bytes, int] = {}
        ways: list[Ints] = []
        known: dict[tuple[int, int], int] = {}
        taken = np.empty(len(entries.row), dtype=np.int64)
        for index, (row, pos) in enumerate(zip(entries.row.tolist(), entries.pos.tolist(), strict=True)):
            key = (int(self._columns.trace[row]), pos)
            if key not in known:
                way = self._read_way(*key)
                digest = xxhash.xxh3_128_digest(way.tobytes())
                if digest not in numbers:
                    numbers[digest] = len(ways)
                    ways.append(way)
                known[key] = numbers[digest]
            taken[index] = known[key]
        counts = np.bincount(taken, minlength=len(ways))
        first = min(
            np.flatnonzero(counts == counts.max()).tolist(),
            key=lambda number: (len(ways[number]), ways[number].tolist()),
        )
        return np.asarray(taken == first, dtype=np.bool_)

    def _read_way(self, trace: int, pos: int) -> Ints:
        """Return the nodes of a trace from a step to its end, as a part of the graph's columns."""
        columns = self._columns
        start, end = columns.trace_start[trace : trace + 2]
        within = int(np.searchsorted(columns.trace_entry[start:end], pos))
        begin = int(columns.variant_start[columns.trace_variant[trace]]) + within
        return columns.variant_nodes[begin : begin + int(end - start) - within]

    def _count_returns(self, node: int) -> _PassedNodeCounts:
        """Count sessions that failed after the node, those that succeeded later, and the time from it."""
        hit = sort_distinct(self._before.row[self._before.node == node])
        recovered = hit[self._columns.outcome[hit] == SUCCESS]
        again = self._after.only((self._after.node == node) & np.isin(self._after.row, recovered))
        first = again.only(np.unique(again.owner, return_index=True)[1])
        return _PassedNodeCounts(len(hit), len(recovered), self._compute_median_recovery_ms(first))

    def _count_passes(self, node: int) -> _PassedNodeCounts:
        """Count sessions that passed the node, those that succeeded without failing, and the time from it."""
        failed = len(sort_distinct(self._before.row[self._before.node == node]))
        passed = _last_entries(self._clean, node)
        return _PassedNodeCounts(
            failed + len(passed.row), len(passed.row), self._compute_median_recovery_ms(passed)
        )

    def _compute_median_recovery_ms(self, entries: NodeEntries) -> int | None:
        if not len(entries.row):
            return None
        times = measure_recoveries(self._columns, entries, self._read_successes(sort_distinct(entries.row)))
        return compute_twice_recovery_median(times) // 2


def find_passed_node(columns: GraphColumns, row: int, t_ms: int) -> int | None:
    """Return the node that a session was on at a time; None before its first step."""
    entries = list_node_entries(columns, np.array([row], dtype=np.int64))
    last = int(np.searchsorted(entries.entered_ms, t_ms, side="right")) - 1
    return int(entries.node[last]) if last >= 0 else None


def _last_entries(entries: NodeEntries, node: int) -> NodeEntries:
    """Return the last visit of each session to a node."""
    mine = entries.only(entries.node == node)
    is_last: Bools | Ints = np.append(mine.owner[1:] != mine.owner[:-1], True)[: len(mine.owner)]
    return mine.only(is_last)
