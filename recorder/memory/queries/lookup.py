"""From the id of a session to its row in a graph's columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recorder.memory.building.postings import Ints
from recorder.memory.queries.columns import GraphColumns, Strings

#: Row of a session that is not in the graph.
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class SessionLookup:
    """The sessions that are in a graph, by id."""

    #: Ascending, each with its row.
    ids: Strings
    rows: Ints

    def find(self, session_ids: Sequence[str]) -> Ints:
        """The row of each session; NOWHERE for one that is not in the graph."""
        if not len(self.ids):
            return np.full(len(session_ids), NOWHERE, dtype=np.int64)
        sought = np.array([session_id.encode() for session_id in session_ids], dtype=np.bytes_)
        places = np.minimum(np.searchsorted(self.ids, sought), len(self.ids) - 1)
        found: Ints = np.where(self.ids[places] == sought, self.rows[places], NOWHERE)
        return found


def lookup_of(columns: GraphColumns) -> SessionLookup:
    """The look-up of a graph; made once for each version."""
    return columns.derive("lookup", _lookup)


def _lookup(columns: GraphColumns) -> SessionLookup:
    rows = np.flatnonzero(columns.current())
    rows = rows[np.argsort(columns.session_id[rows])]
    return SessionLookup(columns.session_id[rows], rows)
