"""`recorder graph` and `recorder log`: memory graphs, and event logs of sessions. Contract §4 (graph), §9."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer

from recorder.cli.options import (
    DEFAULT_URL,
    AsJson,
    KeyOption,
    Url,
    Where,
    open_client_for_command,
    print_json,
    read_filter_options,
)
from recorder.memory.views.label_lines import one_line
from recorder.memory.views.path_texts import describe_path, join_node_names
from recorder.plurals import format_count

_FORMATS = ("svg", "text", "json", "graphml", "mermaid", "dot")
#: Paths and loops that `--format text` lists, and the columns of its lines.
_LISTED, _WIDTH = 12, 80


def graph(
    workflow: Annotated[str, typer.Argument(help="The workflow.")],
    key: KeyOption,
    url: Url = DEFAULT_URL,
    format: Annotated[str, typer.Option(help="svg, text, json, graphml, mermaid or dot.")] = "svg",
    out: Annotated[Path | None, typer.Option(help="File to write. \\[default: stdout]")] = None,
    where: Where = None,
    min_frequency: Annotated[
        float, typer.Option(min=0, max=1, help="Hide nodes and edges below this share of sessions.")
    ] = 0.0,
) -> None:
    """Print the memory graph of a workflow, or write it to a file."""

    if format not in _FORMATS:
        raise typer.BadParameter(f"takes one of {', '.join(_FORMATS)}", param_hint="--format")
    filters = read_filter_options(where)
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


app = typer.Typer(no_args_is_help=True, help="Event logs: describe one, and write sessions as one.")
_SHOWN_LABELS = 12


@app.command()
def export(
    workflow: Annotated[str, typer.Argument(help="The workflow.")],
    key: KeyOption,
    out: Annotated[
        Path, typer.Option(help="File to write: .xes or .xes.gz; .json, or .dfg for PM4Py's own lines.")
    ],
    url: Url = DEFAULT_URL,
    format: Annotated[
        str, typer.Option(help="`xes`, the log; or `dfg`, its directly-follows graph.")
    ] = "xes",
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Write the sessions of a workflow that are over to a file, oldest first."""
    from recorder.interchange.session_traces import write_session_traces

    if format not in ("xes", "dfg"):
        raise typer.BadParameter("takes xes or dfg", param_hint="--format")
    filters = read_filter_options(where)
    if not out.resolve().parent.is_dir():
        raise typer.BadParameter("takes a file in a folder that exists", param_hint="--out")
    with open_client_for_command(url, key) as client, _show_log_progress() as (on_total, on_done):
        report = write_session_traces(
            client,
            workflow,
            out,
            format="xes" if format == "xes" else "dfg",
            filters=filters,
            on_total=on_total,
            on_done=on_done,
        )
    if as_json:
        print_json({"file": str(out), "sessions": report.sessions, "events": report.events})
    else:
        typer.echo(out)
    typer.echo(
        f"{format_count(report.sessions, 'session')}, {format_count(report.events, 'event')}.", err=True
    )


@app.command()
def summary(
    path: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An event log in XES.")],
    activity: Annotated[
        str, typer.Option(help="Attribute that names the activity; several with + between.")
    ] = "concept:name",
    top: Annotated[int, typer.Option(min=1, help="How many variants to show.")] = 10,
    collapse: Annotated[bool, typer.Option(help="Count equal activities in a row once.")] = True,
    as_json: AsJson = False,
) -> None:
    """Summarize a log without a service: activities, the commonest variants, their durations."""
    from recorder.interchange.event_logs import directly_follows, event_log_rows
    from recorder.interchange.xes_reader import read_xes_traces
    from recorder.memory.graph.directly_follows import aggregate_log

    rows = event_log_rows(read_xes_traces(path, activity=activity.split("+")))
    log = aggregate_log(rows, collapse=collapse)
    counts = {"sessions": log.sessions.height, "events": rows.height, "variants": log.variants.height}
    shown = log.variants.head(top).select("sequence", "n", "median_duration_ms")
    if as_json:
        figures = {**counts, "nodes": log.nodes.to_dicts(), "top_variants": shown.to_dicts()}
        print_json({**figures, **directly_follows(log)})
        return
    typer.echo(" · ".join(format_count(count, name.removesuffix("s")) for name, count in counts.items()))
    typer.echo("\nvisits  sessions  activity")
    for label, visits, sessions in log.nodes.rows():
        typer.echo(f"{visits:6}  {sessions:8}  {one_line(label)}")
    typer.echo("\n     n  median  variant")
    for sequence, n, median_ms in shown.rows():
        typer.echo(f"{n:6}  {_format_log_duration(median_ms):>6}  {_format_log_variant(sequence)}")


def _format_log_variant(sequence: list[str]) -> str:
    more = len(sequence) - _SHOWN_LABELS
    shown = " → ".join(one_line(label) for label in sequence[:_SHOWN_LABELS])
    return f"{shown} → … ({more} more)" if more > 0 else shown


def _format_log_duration(milliseconds: int) -> str:
    """Return a duration in the largest unit of which it has two, such as `5 d`."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if milliseconds >= 2 * length:
            return f"{milliseconds // length} {unit}"
    return f"{milliseconds} ms"


@contextmanager
def _show_log_progress() -> Iterator[tuple[Callable[[int], None], Callable[[object], None]]]:
    """Show a bar on stderr; yield functions for the number of sessions and for each session read."""
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    from recorder.progress_bars import open_progress_bar

    with open_progress_bar("Exporting", MofNCompleteColumn(), TimeRemainingColumn(), total=None) as update:
        yield lambda total: update(total=total), lambda _: update(advance=1)
