"""`recorder graph`: memory graphs as drawings, texts and data. Contract §4 (graph), §9."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer

from recorder.cli.options import (
    DEFAULT_URL,
    KeyOption,
    Url,
    Where,
    open_client_for_command,
    print_json,
    read_filter_options,
)
from recorder.memory.views.path_texts import describe_path, join_node_names
from recorder.number_formats import format_count

_FORMATS = ("svg", "text", "json", "graphml", "mermaid", "dot")
#: Endings of files, each with the format that is written to them.
_ENDINGS = {
    ".svg": "svg",
    ".txt": "text",
    ".json": "json",
    ".graphml": "graphml",
    ".mmd": "mermaid",
    ".dot": "dot",
}
#: Paths and loops that `--format text` lists, and the columns of its lines.
_LISTED, _WIDTH = 12, 80
#: Parameters of the graph that are no filters, each with what sets it.
_SET_ELSEWHERE = {"workflow": "WORKFLOW", "format": "--format", "min_frequency": "--min-frequency"}


def graph(
    workflow: Annotated[str, typer.Argument(help="The workflow.")],
    key: KeyOption,
    url: Url = DEFAULT_URL,
    format: Annotated[
        str | None,
        typer.Option(
            help="svg, text, json, graphml, mermaid or dot. \\[default: by the ending of --out, else svg]",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write. \\[default: stdout]")] = None,
    where: Where = None,
    min_frequency: Annotated[
        float, typer.Option(min=0, max=1, help="Hide nodes and edges below this share of sessions.")
    ] = 0.0,
) -> None:
    """Print the memory graph of a workflow, or write it to a file."""

    format = _choose_graph_format(format, out)
    filters = read_filter_options(where, set_elsewhere=_SET_ELSEWHERE)
    if out is not None and (out.is_dir() or not out.resolve().parent.is_dir()):
        raise typer.BadParameter("takes a file in a folder that exists", param_hint="--out")
    with open_client_for_command(url, key) as client:
        if format == "text":
            body = client.memory_graph(workflow, min_frequency=min_frequency, **filters)
            assert isinstance(body, dict)
            paths = client.memory_paths(workflow, min_frequency=min_frequency, limit=_LISTED, **filters)
            drawn: object = _format_graph_as_text(body, paths)
        else:
            drawn = client.memory_graph(workflow, format=format, min_frequency=min_frequency, **filters)
    if out is not None:
        _write_graph_to_file(out, drawn)
    elif isinstance(drawn, str):
        typer.echo(drawn, nl=False)
    else:
        print_json(drawn)


def _choose_graph_format(format: str | None, out: Path | None) -> str:
    """Return the format that is named, else the one of the file's ending, else `svg`.

    Raises:
        typer.BadParameter: if there is no such format, or the ending names none.
    """
    if format is None and out is not None:
        format = _ENDINGS.get(out.suffix.lower())
        if format is None:
            raise typer.BadParameter(
                f"takes a file that ends in {', '.join(_ENDINGS)}; or name a --format", param_hint="--out"
            )
    if format not in (None, *_FORMATS):
        raise typer.BadParameter(f"takes one of {', '.join(_FORMATS)}", param_hint="--format")
    return format or "svg"


def _format_graph_as_text(body: Mapping[str, Any], paths: Sequence[Mapping[str, Any]]) -> str:
    """Return the structure of a graph and its paths as lines of text."""
    names = {node["id"]: node["label"] for node in body["nodes"]}
    nodes = [node for node in body["nodes"] if node["id"] not in ("start", "end")]
    without, hidden = body["sessions_without_steps"], body["hidden_nodes"]
    lines = [
        format_count(body["sessions"], "session")
        + (f", {without:,} of them without steps" if without else ""),
        *_format_graph_limit_line(body),
        format_count(len(nodes), "node") + (f", {hidden:,} more left out" if hidden else ""),
        f"likeliest path: {join_node_names(body['likeliest_path'], names) or '-'}",
        f"required for success: {join_node_names(body['required_nodes'], names) or '-'}",
        *(f"loop: {join_node_names(loop, names)}" for loop in body["loops"][:_LISTED]),
    ]
    if len(body["loops"]) > _LISTED:
        lines.append(format_count(len(body["loops"]) - _LISTED, "more loop"))
    lines = [_wrap_graph_line(line, indent="  ") for line in lines]
    lines.append("\nfrequency  exactly so  variants  sessions")
    for path in paths:
        lines.append(
            f"{path['frequency']:9.1%}  {path['exact_frequency']:10.1%}  {path['variants']:8,}  "
            f"{path['session_count']:8,}"
        )
        for text in _describe_graph_path(path, paths[0]):
            lines.append(_wrap_graph_line(f"    {text}", indent="      "))
    if len(paths) > 1:
        lines.append("\n− and +: steps left out and added, against the first path")
    return "\n".join(lines) + "\n"


def _describe_graph_path(path: Mapping[str, Any], common: Mapping[str, Any]) -> list[str]:
    """Return the steps of the most frequent path, or another one's differences; and the optional steps."""
    names = dict(zip(common["node_ids"], common["labels"], strict=True))
    names |= zip(path["node_ids"], path["labels"], strict=True)
    if path is common:
        texts = [join_node_names(path["node_ids"], names) or "(no steps)"]
    else:
        texts = describe_path(common["node_ids"], path["node_ids"], names)
    optional = join_node_names(path["optional_node_ids"], names, separator=", ")
    return [*texts, f"optional: {optional}"] if optional else texts


def _wrap_graph_line(line: str, *, indent: str) -> str:
    return fill(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _format_graph_limit_line(body: Mapping[str, Any]) -> list[str]:
    """Return the line that says what a graph had no room for; none for a graph with room."""
    if not body.get("limited"):
        return []
    beyond = body["sessions_beyond_limit"]
    return [f"the graph is full (RECORDER_GRAPH_MEMORY_MB): {beyond:,} of them counted without their way"]


def _write_graph_to_file(out: Path, drawn: object) -> None:
    import orjson

    content = drawn.encode() if isinstance(drawn, str) else orjson.dumps(drawn)
    try:
        out.write_bytes(content)
    except OSError as error:
        typer.echo(f"Cannot write {out}: {error.strerror}.", err=True)
        raise typer.Exit(1) from error
    typer.echo(out)
    typer.echo(f"{len(content):,} bytes.", err=True)
