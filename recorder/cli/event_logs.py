"""`recorder log`: event logs of sessions, written and summarized. Contract §9."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

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
from recorder.number_formats import format_count

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
        str | None,
        typer.Option(
            help="`xes`, the log; or `dfg`, its directly-follows graph. \\[default: by the ending of --out]",
            show_default=False,
        ),
    ] = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Write the sessions of a workflow that are over to a file, oldest first."""
    from recorder.interchange.session_traces import write_session_traces

    log_format = _choose_log_format(format, out)
    filters = read_filter_options(where, set_elsewhere={"workflow": "WORKFLOW"})
    if not out.resolve().parent.is_dir():
        raise typer.BadParameter("takes a file in a folder that exists", param_hint="--out")
    with open_client_for_command(url, key) as client, _show_log_progress() as (on_total, on_done):
        report = write_session_traces(
            client,
            workflow,
            out,
            format=log_format,
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
    from recorder.interchange.event_logs import LogTrace, directly_follows, event_log_rows
    from recorder.interchange.xes_reader import read_xes_traces
    from recorder.memory.graph.directly_follows import aggregate_log

    sessions = 0

    def counted() -> Iterator[LogTrace]:
        """Yield the traces; those without events have no rows, and are sessions all the same."""
        nonlocal sessions
        for trace in read_xes_traces(path, activity=activity.split("+")):
            sessions += 1
            yield trace

    rows = event_log_rows(counted())
    log = aggregate_log(rows, collapse=collapse)
    counts = {"sessions": sessions, "events": rows.height, "variants": log.variants.height}
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


def _choose_log_format(format: str | None, out: Path) -> Literal["xes", "dfg"]:
    """Return the format of the file's ending, which a named one must fit: readers go by the ending.

    Raises:
        typer.BadParameter: if there is no such format, or the ending is of no format or another one.
    """
    if format not in (None, "xes", "dfg"):
        raise typer.BadParameter("takes xes or dfg", param_hint="--format")
    name = out.name.lower()
    if name.endswith((".xes", ".xes.gz")) and format != "dfg":
        return "xes"
    if name.endswith((".json", ".dfg")) and format != "xes":
        return "dfg"
    raise typer.BadParameter(
        "takes a file that ends in .xes or .xes.gz for xes, and in .json or .dfg for dfg", param_hint="--out"
    )


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
