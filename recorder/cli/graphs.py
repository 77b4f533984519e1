"""`recorder graph` and `recorder log`: memory graphs, and event logs of sessions. Contract §4 (graph), §9."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from recorder.cli.options import (
    DEFAULT_URL,
    AsJson,
    Key,
    Url,
    Where,
    open_client_for_command,
    print_json,
    read_filter_options,
)
from recorder.memory.views.label_lines import one_line
from recorder.memory.views.path_texts import join_node_names
from recorder.plurals import counted

_FORMATS = ("svg", "text", "json", "graphml", "mermaid", "dot")
#: Paths and loops that `--format text` lists.
_LISTED = 12


def graph(
    workflow: Annotated[str, typer.Argument(help="The workflow.")],
    key: Key,
    url: Url = DEFAULT_URL,
    format: Annotated[str, typer.Option(help="svg, text, json, graphml, mermaid or dot.")] = "svg",
    out: Annotated[Path | None, typer.Option(help="File to write. \\[default: stdout]")] = None,
    where: Where = None,
    min_frequency: Annotated[
        float, typer.Option(min=0, max=1, help="Leave out what a smaller share of sessions did.")
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
    lines = [
        f"{counted(body['sessions'], 'session')}, {body['sessions_without_steps']:,} of them without steps",
        *_format_graph_limit_line(body),
        f"{counted(len(nodes), 'node')}, {body['hidden_nodes']:,} more left out",
        f"likeliest path: {join_node_names(body['likeliest_path'], names) or '-'}",
        f"required for success: {join_node_names(body['required_nodes'], names) or '-'}",
        *(f"loop: {join_node_names(loop, names)}" for loop in body["loops"][:_LISTED]),
    ]
    if len(body["loops"]) > _LISTED:
        lines.append(counted(len(body["loops"]) - _LISTED, "more loop"))
    lines.append("\nfrequency  exactly so  variants  sessions  path")
    for path in paths:
        labels = dict(zip(path["node_ids"], path["labels"], strict=True))
        optional = join_node_names(path["optional_node_ids"], labels)
        lines.append(
            f"{path['frequency']:9.1%}  {path['exact_frequency']:10.1%}  {path['variants']:8,}  "
            f"{path['session_count']:8,}  {join_node_names(path['node_ids'], labels)}"
            + (f" (optional: {optional})" if optional else "")
        )
    return "\n".join(lines) + "\n"


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
    key: Key,
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
    typer.echo(f"{counted(report.sessions, 'session')}, {counted(report.events, 'event')}.", err=True)


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
    typer.echo(" · ".join(counted(count, name.removesuffix("s")) for name, count in counts.items()))
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
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Exporting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield (
            lambda total: bar.update(task, total=total),
            lambda _: bar.update(task, advance=1),
        )
