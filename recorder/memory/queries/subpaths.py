"""Sessions that took a path's nodes one directly after the other, with any steps around them. Contract §4.

Spec §4.3 calls it a subpath: `GET /v1/sessions?path=` and the `path` of an export's filter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder.errors import NotFound
from recorder.memory.graph.nodes import GraphScope
from recorder.memory.queries.columns import GraphColumns, Mask
from recorder.memory.queries.paths import filter_rows, read_graph
from recorder.models.memory import GraphPathRow
from recorder.models.wire import ActorKind, Outcome
from recorder.tenant import Tenant


@dataclass(frozen=True, slots=True)
class SubPath:
    """A path to search for, and the graph at the version it is searched in."""

    workflow: str
    columns: GraphColumns
    nodes: tuple[int, ...]

    @classmethod
    def read(cls, db: DbSession, *, tenant: Tenant, path_id: str) -> Self:
        """Return the path of this id; of a merged path the one it was merged into.

        Raises:
            NotFound: if there is none of this id in the workspace and mode.
        """
        workflow, number = _find(db, tenant, path_id)
        columns = read_graph(db, GraphScope(tenant, workflow))
        return cls(workflow, columns, columns.paths[columns.paths[number].live].nodes)

    def session_ids(
        self,
        *,
        outcome: Outcome | None = None,
        actor_kind: ActorKind | None = None,
        below: str | None = None,
    ) -> list[str]:
        """Return the ids of the sessions in the graph that took this path and match the filters, ascending.

        Args:
            outcome: only sessions that ended so.
            actor_kind: only sessions of such actors.
            below: only ids that come before this one.
        """
        chosen = filter_rows(self.columns, outcome=outcome, actor_kind=actor_kind)
        ids = self.columns.session_id[chosen & containing(self.columns, self.nodes)[self.columns.variant]]
        if below is not None:
            ids = ids[ids < np.bytes_(below.encode())]
        return [session_id.decode() for session_id in np.sort(ids)]


def workflow_of_path(db: DbSession, *, tenant: Tenant, path_id: str) -> str:
    """Return the workflow in whose graph a path is; the graph itself is not read.

    Raises:
        NotFound: if there is no path of this id in the workspace and mode.
    """
    return _find(db, tenant, path_id)[0]


def _find(db: DbSession, tenant: Tenant, path_id: str) -> tuple[str, int]:
    statement = select(GraphPathRow.workflow, GraphPathRow.number).where(
        GraphPathRow.path_id == path_id,
        GraphPathRow.workspace_id == tenant.workspace_id,
        GraphPathRow.mode == tenant.mode,
    )
    path = db.exec(statement).one_or_none()
    if path is None:
        raise NotFound("path")
    return path


def containing(columns: GraphColumns, nodes: Sequence[int]) -> Mask:
    """For each variant whether it holds these nodes, one directly after the other.

    No nodes are held by the variants that have none: a session without steps is a way of its own.
    """
    sizes = np.diff(columns.variant_start)
    if not nodes:
        return np.equal(sizes, 0)
    flat = columns.variant_nodes
    # Each node leaves fewer places at which the sequence may begin.
    begins = np.flatnonzero(flat[: max(len(flat) - len(nodes) + 1, 0)] == nodes[0])
    for offset, node in enumerate(nodes[1:], start=1):
        begins = begins[flat[begins + offset] == node]
    owner = np.searchsorted(columns.variant_start, begins, side="right") - 1
    ends_inside = begins + len(nodes) <= columns.variant_start[owner + 1]
    held = np.zeros(len(sizes), dtype=np.bool_)
    held[owner[ends_inside]] = True
    return held
