"""What Dagster's pages show of a memory graph: the picture, figures, and how its paths differ. Design §3."""

import base64
from collections.abc import Sequence

import dagster as dg

from recorder.memory.views.geometry import duration_text, percent_text
from recorder.memory.views.graph_view import GraphView
from recorder.memory.views.labels import describe_path, one_line
from recorder.memory.views.picture import draw_graph
from recorder.models.memory import MemoryPath

#: Rows of the table of paths, the most frequent first.
_PATHS = 12
_BAR = 10


def graph_metadata(view: GraphView, paths: Sequence[MemoryPath] = ()) -> dict[str, dg.MetadataValue]:
    """Metadata of a graph: its picture as Markdown, its figures, and its paths against the common one.

    Args:
        paths: paths of the same sessions, the most frequent first; without any there is no table.
    """
    made: dict[str, dg.MetadataValue] = {
        "graph": dg.MetadataValue.md(_picture(view)),
        "graph_version": dg.MetadataValue.int(view.version),
        "sessions": dg.MetadataValue.int(view.sessions),
        "nodes": dg.MetadataValue.int(len(view.nodes) + view.hidden),
        "edges": dg.MetadataValue.int(sum(None not in (edge.source, edge.target) for edge in view.edges)),
    }
    if paths:
        made["paths"] = dg.MetadataValue.md(paths_table(view, paths))
    return made


def paths_table(view: GraphView, paths: Sequence[MemoryPath]) -> str:
    """A table as Markdown, one row for each of the first paths."""
    names = {node.node_id: node.label for node in view.nodes}
    rows = [
        "| path | frequency | sessions | outcomes | median | compared with the common path |",
        "| --- | --- | ---: | --- | ---: | --- |",
    ]
    for path in paths[:_PATHS]:
        ended = [(name, share) for name, share in path.outcomes.model_dump().items() if share]
        cells = [
            f"`{path.path_id}`",
            f"{_bar(path.frequency)}&nbsp;{percent_text(path.frequency)}",
            f"{path.session_count:,}",
            ", ".join(f"{percent_text(share)}&nbsp;{name}" for name, share in ended),
            duration_text(path.median_duration_ms).replace(" ", "&nbsp;"),
            " · ".join(_cell(text) for text in describe_path(paths[0].node_ids, path.node_ids, names)),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    if len(paths) > _PATHS:
        rows.append(f"\n{_PATHS} of {len(paths)} paths shown.")
    return "\n".join(rows)


def _picture(view: GraphView) -> str:
    """The drawing as a data address: Dagster's pages show images of Markdown and no markup of ours."""
    data = base64.b64encode(draw_graph(view).encode()).decode()
    return f"![memory graph](data:image/svg+xml;base64,{data})"


def _bar(share: float) -> str:
    filled = round(share * _BAR)
    return "█" * filled + "░" * (_BAR - filled)


def _cell(text: str) -> str:
    """Text of recorded pages in a cell: neither Markdown nor markup may come out of it."""
    safe = one_line(text, 400).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{mark}" if mark in "\\`*_{}[]()#!|~" else mark for mark in safe)
