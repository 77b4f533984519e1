"""Metadata of memory graphs in Dagster: picture, figures, paths and their differences. Design §3."""

import base64
from collections.abc import Sequence

import dagster as dg
from sqlmodel import Session as DbSession
from sqlmodel import func, select

from recorder.memory.queries.common_paths import list_paths
from recorder.memory.storage.sizes import read_graph_sizes
from recorder.memory.storage.versions import in_scope
from recorder.memory.views.graph_view import GraphView
from recorder.memory.views.label_lines import one_line
from recorder.memory.views.path_texts import describe_path, join_node_names
from recorder.memory.views.picture import draw_graph
from recorder.memory.views.svg_parts import format_percent
from recorder.memory_service.graph_requests import read_graph_view
from recorder.models.memory import MemoryPath, SessionPathRow
from recorder.number_formats import format_duration
from recorder.runtime import Runtime
from recorder.tenant import GraphScope

#: Rows of the table of paths, the most frequent first.
_PATHS = 12
#: Loops that are listed, the largest first.
_LOOPS = 10
_BAR = 10


def read_graph_metadata(
    runtime: Runtime, scope: GraphScope, *, max_sessions: int | None = None
) -> dict[str, dg.MetadataValue]:
    """Return the metadata of a stored graph: picture, figures and paths.

    Args:
        runtime: parts of the deployment.
        scope: the graph.
        max_sessions: a graph of more sessions is not loaded; its metadata are its figures alone.
    """
    with runtime.database.transaction(write=False) as db:
        if max_sessions is not None and _has_too_many_for_picture(db, scope, max_sessions):
            counts = read_graph_sizes(db, scope.tenant, [scope.workflow])[scope.workflow]
            return {name: dg.MetadataValue.int(count) for name, count in counts.model_dump().items()}
        view = read_graph_view(db, tenant=scope.tenant, workflow=scope.workflow)
        paths = list_paths(db, tenant=scope.tenant, workflow=scope.workflow)
    return make_graph_metadata(view, paths)


def _has_too_many_for_picture(db: DbSession, scope: GraphScope, max_sessions: int) -> bool:
    rows = select(SessionPathRow.session_id).where(*in_scope(SessionPathRow, scope)).limit(max_sessions + 1)
    return db.exec(select(func.count()).select_from(rows.subquery())).one() > max_sessions


def make_graph_metadata(view: GraphView, paths: Sequence[MemoryPath] = ()) -> dict[str, dg.MetadataValue]:
    """Return the metadata of a graph: its picture, its figures, and its paths compared with the common one.

    Args:
        view: nodes and edges.
        paths: paths of the same sessions, the most frequent first; without any there is no table.
    """
    made: dict[str, dg.MetadataValue] = {
        "graph": dg.MetadataValue.md(_embed_graph_picture(view)),
        "graph_version": dg.MetadataValue.int(view.version),
        "sessions": dg.MetadataValue.int(view.sessions),
        "sessions_without_steps": dg.MetadataValue.int(view.without_steps),
        "nodes": dg.MetadataValue.int(len(view.nodes) + view.hidden),
        "edges": dg.MetadataValue.int(sum(None not in (edge.source, edge.target) for edge in view.edges)),
        **_describe_graph_structure(view),
    }
    if view.is_limited:
        made["sessions_beyond_limit"] = dg.MetadataValue.int(view.beyond_limit)
    if paths:
        made["paths"] = dg.MetadataValue.md(make_paths_table(view, paths))
    return made


def _describe_graph_structure(view: GraphView) -> dict[str, dg.MetadataValue]:
    """Return loops, required nodes and the likeliest path by label; what there is none of is left out."""
    names = {node.node_id: node.label for node in view.nodes}
    groups = {
        "loops": view.loops[:_LOOPS],
        "required_nodes": [view.required],
        "likeliest_path": [view.likeliest],
    }
    made: dict[str, dg.MetadataValue] = {}
    for name, sequences in groups.items():
        rows = [_escape_cell_text(join_node_names(nodes, names)) for nodes in sequences if nodes]
        if name == "loops" and len(view.loops) > _LOOPS:
            rows.append(f"{len(view.loops) - _LOOPS} more")
        if rows:
            made[name] = dg.MetadataValue.md("\n".join(f"- {row}" for row in rows))
    return made


def make_paths_table(view: GraphView, paths: Sequence[MemoryPath]) -> str:
    """Return a Markdown table with one row for each of the first paths."""
    names = {node.node_id: node.label for node in view.nodes}
    rows = [
        "| path | frequency | sessions | outcomes | median | exactly so | variants | optional nodes "
        "| compared with the common path |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for path in paths[:_PATHS]:
        ended = [(name, share) for name, share in path.outcomes.model_dump().items() if share]
        cells = [
            f"`{path.path_id}`",
            f"{_draw_share_bar(path.frequency)}&nbsp;{format_percent(path.frequency)}",
            f"{path.session_count:,}",
            ", ".join(f"{format_percent(share)}&nbsp;{name}" for name, share in ended),
            format_duration(path.median_duration_ms).replace(" ", "&nbsp;"),
            format_percent(path.exact_frequency),
            f"{path.variants:,}",
            _escape_cell_text(join_node_names(path.optional_node_ids, names))
            if path.optional_node_ids
            else "",
            " · ".join(
                _escape_cell_text(text) for text in describe_path(paths[0].node_ids, path.node_ids, names)
            ),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    if len(paths) > _PATHS:
        rows.append(f"\n{_PATHS} of {len(paths)} paths shown.")
    return "\n".join(rows)


def _embed_graph_picture(view: GraphView) -> str:
    """Return the drawing as a data URL: Dagster's pages show images in Markdown, but no HTML."""
    data = base64.b64encode(draw_graph(view).encode()).decode()
    return f"![memory graph](data:image/svg+xml;base64,{data})"


def _draw_share_bar(share: float) -> str:
    filled = round(share * _BAR)
    return "█" * filled + "░" * (_BAR - filled)


def _escape_cell_text(text: str) -> str:
    """Escape text of recorded pages for a cell: neither Markdown nor markup may come out of it."""
    safe = one_line(text, 400).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{mark}" if mark in "\\`*_{}[]()#!|~" else mark for mark in safe)
