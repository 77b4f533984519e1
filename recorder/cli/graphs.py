"""`recorder graph`: the memory graph of a workflow, drawn or as data. Contract §4 (graph), §9."""

from pathlib import Path
from typing import Annotated

import typer

from recorder.cli.options import DEFAULT_URL, Key, Url, Where, connected, print_json, read_filters

_FORMATS = ("svg", "json", "graphml", "mermaid", "dot")


def graph(
    workflow: Annotated[str, typer.Argument(help="The workflow.")],
    key: Key,
    url: Url = DEFAULT_URL,
    format: Annotated[str, typer.Option(help="svg, json, graphml, mermaid or dot.")] = "svg",
    out: Annotated[Path | None, typer.Option(help="File to write. [default: stdout]")] = None,
    where: Where = None,
    min_frequency: Annotated[
        float, typer.Option(min=0, max=1, help="Leave out what a smaller share of sessions did.")
    ] = 0.0,
) -> None:
    """Print the memory graph of a workflow, or write it to a file."""

    if format not in _FORMATS:
        raise typer.BadParameter(f"takes one of {', '.join(_FORMATS)}", param_hint="--format")
    filters = read_filters(where)
    if out is not None and (out.is_dir() or not out.resolve().parent.is_dir()):
        raise typer.BadParameter("takes a file in a folder that exists", param_hint="--out")
    with connected(url, key) as client:
        found = client.memory_graph(workflow, format=format, min_frequency=min_frequency, **filters)
    if out is not None:
        _write(out, found)
    elif isinstance(found, str):
        typer.echo(found, nl=False)
    else:
        print_json(found)


def _write(out: Path, found: object) -> None:
    import orjson

    content = found.encode() if isinstance(found, str) else orjson.dumps(found)
    try:
        out.write_bytes(content)
    except OSError as error:
        typer.echo(f"Cannot write {out}: {error.strerror}.", err=True)
        raise typer.Exit(1) from error
    typer.echo(out)
    typer.echo(f"{len(content):,} bytes.", err=True)
