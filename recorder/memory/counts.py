"""How large the graphs of workflows are: what is in them now, not what ever was. Contract §4 (workflow)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.memory import GraphEdgeRow, GraphVariantRow, GraphVersionRow
from recorder.models.workflow import WorkflowGraph


def count_graphs(
    db: DbSession, workspace_id: str, mode: str, workflows: Sequence[str]
) -> dict[str, WorkflowGraph]:
    """Version, nodes, edges and paths of each workflow's graph.

    Nodes, edges and paths whose sessions were all deleted are not counted, nor are the edges that lead into
    a session and out of it.
    """

    def own(table: Any) -> Iterator[Any]:
        yield table.workspace_id == workspace_id
        yield table.mode == mode
        yield col(table.workflow).in_(workflows)

    versions = select(GraphVersionRow.workflow, func.max(GraphVersionRow.version)).where(
        *own(GraphVersionRow)
    )
    paths = select(GraphVariantRow.workflow, func.count(func.distinct(GraphVariantRow.path))).where(
        *own(GraphVariantRow), col(GraphVariantRow.n) > 0
    )
    edges = select(GraphEdgeRow.workflow, GraphEdgeRow.from_node, GraphEdgeRow.to_node).where(
        *own(GraphEdgeRow), col(GraphEdgeRow.n) > 0
    )
    version_of = dict(db.exec(versions.group_by(col(GraphVersionRow.workflow))).all())
    paths_of = dict(db.exec(paths.group_by(col(GraphVariantRow.workflow))).all())
    edges_of: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for workflow, source, goal in db.exec(edges.distinct()):
        edges_of[workflow].add((source, goal))
    return {
        workflow: WorkflowGraph(
            version=version_of.get(workflow, 0),
            nodes=len({node for edge in edges_of[workflow] for node in edge if node >= 0}),
            edges=sum(min(edge) >= 0 for edge in edges_of[workflow]),
            paths=paths_of.get(workflow, 0),
        )
        for workflow in workflows
    }
