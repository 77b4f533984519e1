"""Directly-follows graphs as files: PM4Py's three dictionaries as JSON, or the lines it reads itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import polars as pl

from recorder.memory.aggregation import LogAggregate

#: Ending of the files that `pm4py.read_dfg` opens; all others are JSON.
LINES_SUFFIX = ".dfg"


class DirectlyFollows(TypedDict):
    """How often which activity follows which, begins a session, and ends one."""

    #: `[source, target, n]` each: pairs are no keys of JSON objects.
    dfg: list[tuple[str, str, int]]
    start_activities: dict[str, int]
    end_activities: dict[str, int]


def directly_follows(aggregate: LogAggregate) -> DirectlyFollows:
    """The graph of a log, most frequent first."""
    edges = aggregate.edges
    begins, ends = pl.col("source").is_null(), pl.col("target").is_null()
    return {
        "dfg": edges.filter(~begins & ~ends).select("source", "target", "n").rows(),
        "start_activities": dict(edges.filter(begins).select("target", "n").rows()),
        "end_activities": dict(edges.filter(ends).select("source", "n").rows()),
    }


def write_dfg(path: Path, graph: DirectlyFollows) -> None:
    """Write a graph, in the format that the file's name asks for; the file appears when it is whole."""
    lines = _lines(graph) if path.suffix == LINES_SUFFIX else iter([json.dumps(graph, ensure_ascii=False)])
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _lines(graph: DirectlyFollows) -> Iterator[str]:
    """Activities by number, then who starts, who ends, and who follows whom."""
    follows = graph["dfg"]
    names = {name for source, target, _ in follows for name in (source, target)}
    labels = sorted(names | graph["start_activities"].keys() | graph["end_activities"].keys())
    number = {label: n for n, label in enumerate(labels)}
    yield str(len(labels))
    yield from (" ".join(label.split()) for label in labels)
    for ends in (graph["start_activities"], graph["end_activities"]):
        yield str(len(ends))
        yield from (f"{number[label]}x{n}" for label, n in ends.items())
    yield from (f"{number[source]}>{number[target]}x{n}" for source, target, n in follows)
