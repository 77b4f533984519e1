"""Sessions of a path: those that are counted on it, and those that hold its nodes. Contract §2, §4.

`path` selects the sessions that `session_count` of the path counts, `subpath` those that took its nodes one
directly after the other, with any steps around them (spec §4.3). Both are filters of `GET /v1/sessions` and
of an export.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder.errors import NotFound
from recorder.memory.graph.arrays import Bools, Ints
from recorder.memory.queries.chosen_sessions import read_newest_columns, select_session_rows
from recorder.memory.queries.columns import GraphColumns
from recorder.models.memory import GraphPathRow
from recorder.models.wire import ActorKind, Outcome
from recorder.storage.conditions import has_text, in_tenant
from recorder.tenant import GraphScope, Tenant

#: Nodes of a sequence that are looked for in all variants at once; the others in the variants that are left.
_NARROWING_NODES = 16


@dataclass(frozen=True, slots=True)
class PathSelection:
    """A choice of variants, and the graph at the version it was made in."""

    workflow: str
    columns: GraphColumns
    #: For each variant whether its sessions are selected.
    variants: Bools

    def session_ids(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        outcome: Outcome | None = None,
        actor_kind: ActorKind | None = None,
        below: str | None = None,
    ) -> list[str]:
        """Return the ids of the sessions in the graph that are selected and match the filters, ascending.

        Args:
            since: only sessions that started at this instant or later.
            until: only sessions that started before this instant.
            outcome: only sessions that ended so.
            actor_kind: only sessions of such actors.
            below: only ids that come before this one.
        """
        parts = self.iterate_session_ids(
            since=since, until=until, outcome=outcome, actor_kind=actor_kind, below=below
        )
        return [session_id for part in reversed(list(parts)) for session_id in part]

    def iterate_session_ids(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        outcome: Outcome | None = None,
        actor_kind: ActorKind | None = None,
        below: str | None = None,
        at_once: int = 2_000,
    ) -> Iterator[list[str]]:
        """Yield the ids of `session_ids` in parts of at most `at_once`, the newest part first.

        Each part is ascending. A reader that ends early pays for the parts that it took.
        """
        chosen = select_session_rows(
            self.columns, since=since, until=until, outcome=outcome, actor_kind=actor_kind
        )
        ids = self.columns.session_id[chosen & self.variants[self.columns.variant]]
        if below is not None:
            ids = ids[ids < np.bytes_(below.encode())]
        ids = np.sort(ids)
        for end in range(len(ids), 0, -at_once):
            yield [session_id.decode() for session_id in ids[max(end - at_once, 0) : end]]


def select_path(
    db: DbSession, *, tenant: Tenant, path: str | None = None, subpath: str | None = None
) -> PathSelection | None:
    """Return the sessions on a path, or with its nodes, or both; None without either.

    A path that was merged into another is replaced by that one.

    Raises:
        NotFound: if there is no path of such an id in the workspace and mode.
    """
    selections = []
    if path is not None:
        workflow, columns, number = _read_selected_path(db, tenant, path)
        selections.append(PathSelection(workflow, columns, columns.variant_path == number))
    if subpath is not None:
        workflow, columns, number = _read_selected_path(db, tenant, subpath)
        held = find_variants_with_subpath(columns, columns.paths[number].nodes)
        selections.append(PathSelection(workflow, columns, held))
    if not selections:
        return None
    first, last = selections[0], selections[-1]
    if first.workflow != last.workflow:
        return replace(first, variants=np.zeros_like(first.variants))
    return replace(first, variants=first.variants & last.variants)


def _read_selected_path(db: DbSession, tenant: Tenant, path_id: str) -> tuple[str, GraphColumns, int]:
    """Return the workflow and the graph of a path, and the number of the path that represents it."""
    workflow, number = _find_workflow_and_number_of_path(db, tenant, path_id)
    columns = read_newest_columns(db, GraphScope(tenant, workflow))
    return workflow, columns, columns.paths[number].representative


def workflow_of_path(db: DbSession, *, tenant: Tenant, path_id: str) -> str:
    """Return the workflow in whose graph a path is; the graph itself is not read.

    Raises:
        NotFound: if there is no path of this id in the workspace and mode.
    """
    return _find_workflow_and_number_of_path(db, tenant, path_id)[0]


def _find_workflow_and_number_of_path(db: DbSession, tenant: Tenant, path_id: str) -> tuple[str, int]:
    statement = select(GraphPathRow.workflow, GraphPathRow.number).where(
        has_text(GraphPathRow.path_id, path_id), *in_tenant(GraphPathRow, tenant)
    )
    path = db.exec(statement).one_or_none()
    if path is None:
        raise NotFound("path")
    return path


def find_variants_with_subpath(columns: GraphColumns, nodes: Sequence[int]) -> Bools:
    """Return for each variant whether it holds these nodes, one directly after the other.

    No nodes are held by the variants that have none: a session without steps is a way of its own.
    """
    sizes = np.diff(columns.variant_start)
    if not nodes:
        return np.equal(sizes, 0)
    flat, starts = columns.variant_nodes, columns.variant_start
    first = nodes[:_NARROWING_NODES]
    # Each node leaves fewer positions at which the sequence may begin.
    begins = np.flatnonzero(flat[: max(len(flat) - len(first) + 1, 0)] == first[0])
    for offset, node in enumerate(first[1:], start=1):
        begins = begins[flat[begins + offset] == node]
    owner = np.searchsorted(starts, begins, side="right") - 1
    ends_inside = begins + len(nodes) <= starts[owner + 1]
    held = np.zeros(len(sizes), dtype=np.bool_)
    held[owner[ends_inside]] = True
    if len(nodes) > len(first):
        held[held] = _contain_path_nodes(columns, np.flatnonzero(held), nodes)
    return held


def _contain_path_nodes(columns: GraphColumns, variants: Ints, nodes: Sequence[int]) -> list[bool]:
    """Return for each of some variants whether it holds these nodes, in time that goes with its length.

    Nodes become letters: the search in a text takes no longer where a sequence goes round in loops.
    """
    letters = np.zeros(len(columns.nodes), dtype="<u4")
    distinct = np.unique(np.array(nodes, dtype=np.int64))
    letters[distinct] = np.arange(1, len(distinct) + 1)

    def spell(numbers: Ints | list[int]) -> str:
        return letters[numbers].tobytes().decode("utf-32-le", "surrogatepass")

    sequence, flat, starts = spell(list(nodes)), columns.variant_nodes, columns.variant_start
    return [sequence in spell(flat[starts[variant] : starts[variant + 1]]) for variant in variants.tolist()]
