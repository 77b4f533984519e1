"""Events to Parquet, Arrow, JSONL: rows a second beside a sorted read of the lake and HF `datasets`.

Floor: the pinned version of the lake read by polars and sorted by session, time and id, all columns,
nothing written. Ours: `run_export`, which plans, reads, sorts, writes, hashes, and publishes with a
manifest; what is done once for each export is left out of "shards". `datasets`: `load_dataset` of the
same rows in Parquet files, unsorted and without a cache, then `to_parquet` or `to_json`; it hashes
nothing. Payloads are like those of recordings; half random ones show beside the floor what the hard case
costs.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.exports.deployments import deploy, scratch
from benchmarks.exports.lake import Shape
from benchmarks.exports.writer_processes import THREADS, WriterProcess, require, started
from benchmarks.figure_reports import Figure, Goal, at_least

_SESSIONS, _QUICK_SESSIONS = 4_000, 600
_EVENTS = 500
_FORMATS = ("parquet", "arrow", "jsonl")
_GOALS = {"parquet": at_least(0.5), "arrow": at_least(0.4), "jsonl": None}
_PEER_GOALS = {"parquet": at_least(1.5), "jsonl": at_least(4)}
_PEER_CALLS = {"parquet": "load + to_parquet", "jsonl": "load + to_json"}
#: `to_json` of the peer takes half a minute: it is in the first rounds alone.
_ROUNDS, _SLOW_ROUNDS, _SLOW = 7, 3, "jsonl"

Runs = dict[str, list[dict[str, Any]]]


def measure(*, quick: bool = False, sessions: int | None = None) -> list[Figure]:
    """Return the rows a second of each format, beside floor and peer.

    Args:
        sessions: how many, of 500 events each, where it is not what the figure calls for.

    Raises:
        Skipped: if the peer is not installed.
    """
    require("datasets")
    shape = Shape(sessions=sessions or (_QUICK_SESSIONS if quick else _SESSIONS), events=_EVENTS)
    rounds = 1 if sessions else _ROUNDS
    return [*_of_recordings(shape, rounds), *_of_random_payloads(replace(shape, payloads="random"), rounds)]


def _of_recordings(shape: Shape, rounds: int) -> Iterator[Figure]:
    with scratch() as folder:
        settings = deploy(folder / "data", shape)
        with (
            started("service_exports", settings, folder) as ours,
            started("service_exports", settings, folder) as floor,
            started("peers", settings, folder) as peer,
        ):
            sources = _write_sources(ours, folder)
            runs = _alternate(ours, floor, peer, folder, sources, rounds)
    rows = f"{runs['floor'][0]['rows']:,} rows"
    for format, goal in _GOALS.items():
        yield _beside_floor(f"{format}, shards: {rows}", runs, format, goal)
    for format, goal in _PEER_GOALS.items():
        yield _beside_peer(f"{format}, whole export: {rows}", runs, format, goal)


def _of_random_payloads(shape: Shape, rounds: int) -> Iterator[Figure]:
    with scratch() as folder:
        settings = deploy(folder / "data", shape)
        data = str(folder / "data")
        runs: Runs = {}
        with (
            started("service_exports", settings, folder) as ours,
            started("service_exports", settings, folder) as floor,
        ):
            for turn in range(rounds + 1):
                _note(runs, _beside_each_other(ours, floor, data, ("parquet", "arrow")), turn)
    for format in ("parquet", "arrow"):
        yield _beside_floor(f"{format}, shards, half random payloads", runs, format, None)


def _write_sources(ours: WriterProcess, folder: Path) -> list[str]:
    """Return the rows as Parquet files, for the peer: one of our exports, out of reach of the next ones."""
    made = Path(ours.call("export", data=str(folder / "data"), format="parquet", keep=True)["folder"])
    (made / "data").rename(folder / "sources")
    shutil.rmtree(made)
    return [str(path) for path in sorted((folder / "sources").glob("*/events-*"))]


def _alternate(
    ours: WriterProcess,
    floor: WriterProcess,
    peer: WriterProcess,
    folder: Path,
    sources: list[str],
    rounds: int,
) -> Runs:
    """Run all ways in turn; a first turn warms up, the peer's on one file."""
    runs: Runs = {}
    for turn in range(rounds + 1):
        result = _beside_each_other(ours, floor, str(folder / "data"), _FORMATS)
        for format in _PEER_GOALS:
            files = sources if turn else sources[:1]
            if format != _SLOW or turn <= _SLOW_ROUNDS:
                result[f"hf {format}"] = peer.call("hf", files=files, format=format, folder=str(folder))
        _note(runs, result, turn)
    return runs


def _beside_each_other(
    ours: WriterProcess, floor: WriterProcess, data: str, formats: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    read = {"floor": floor.call("read_sorted", data=data)}
    return read | {format: ours.call("export", data=data, format=format) for format in formats}


def _note(runs: Runs, result: dict[str, dict[str, Any]], turn: int) -> None:
    if turn:
        for name, item in result.items():
            runs.setdefault(name, []).append(item)


def _beside_floor(name: str, runs: Runs, format: str, goal: Goal | None) -> Figure:
    ours, floor = runs[format], runs["floor"]
    return Figure(
        name=name,
        unit="M rows/s",
        ours=[run["rows"] / run["shard_seconds"] / 1e6 for run in ours],
        peer=speeds(floor),
        peer_name="sorted read of the lake",
        goal=goal,
        detail={
            "whole export, M rows/s": speeds(ours),
            "whole export, share of the read": [
                read["seconds"] / run["seconds"] for run, read in zip(ours, floor, strict=True)
            ],
            "CPU s of the shards": [run["shard_cpu_s"] for run in ours],
            "CPU s of the export": [run["cpu_s"] for run in ours],
            "CPU s of the read": [run["cpu_s"] for run in floor],
            "MB": ours[0]["bytes"] / 1e6,
            "shards": ours[0]["shards"],
            "threads": THREADS,
        },
    )


def _beside_peer(name: str, runs: Runs, format: str, goal: Goal) -> Figure:
    peer = runs[f"hf {format}"]
    return Figure(
        name=name,
        unit="M rows/s",
        ours=speeds(runs[format][: len(peer)]),
        peer=speeds(peer),
        peer_name=f"datasets: {_PEER_CALLS[format]}",
        goal=goal,
        detail={
            "datasets without load, M rows/s": [run["rows"] / run["write_seconds"] / 1e6 for run in peer],
            "CPU s of datasets": [run["cpu_s"] for run in peer],
            "MB of datasets": peer[0]["bytes"] / 1e6,
        },
    )


def speeds(runs: list[dict[str, Any]]) -> list[float]:
    """Return the speed of each run in million rows a second."""
    return [run["rows"] / run["seconds"] / 1e6 for run in runs]
