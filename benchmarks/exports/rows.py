"""Events to Parquet, Arrow, JSONL: rows a second beside a sorted read of the lake and HF `datasets`.

Floor: the pinned version of the lake read by polars and sorted by session, time and id, all columns, nothing
written. Ours: `run_export`, which plans, reads, sorts, writes, hashes, and publishes with a manifest; "shards
alone" leaves out what is done once per export. `datasets`: `load_dataset` of the same rows in Parquet files,
unsorted and without a cache, then `to_parquet` or `to_json`; it hashes nothing.
"""

import shutil
from pathlib import Path
from typing import Any

from benchmarks.exports.arms import THREADS, Arm, require, started
from benchmarks.exports.deployments import deploy, scratch
from benchmarks.exports.lake import Shape
from benchmarks.figures import Figure, Goal, at_least

_SESSIONS, _QUICK_SESSIONS = 4_000, 600
_EVENTS = 500
_FORMATS = ("parquet", "arrow", "jsonl")
_GOALS = {"parquet": at_least(0.5), "arrow": at_least(0.4), "jsonl": None}
_PEER_GOALS = {"parquet": at_least(1.5), "jsonl": at_least(4)}
_PEER_CALLS = {"parquet": "load + to_parquet", "jsonl": "load + to_json"}

Runs = dict[str, list[dict[str, Any]]]


def measure(*, quick: bool = False, sessions: int | None = None) -> list[Figure]:
    """Rows a second of each format, beside floor and peer.

    Args:
        sessions: how many, of 500 events each, where it is not what the figure calls for.

    Raises:
        Skipped: if the peer is not installed.
    """
    require("datasets")
    shape = Shape(sessions=sessions or (_QUICK_SESSIONS if quick else _SESSIONS), events=_EVENTS)
    with scratch() as folder:
        settings = deploy(folder / "data", shape)
        with (
            started("ours", settings, folder) as ours,
            started("ours", settings, folder) as floor,
            started("peers", settings, folder) as peer,
        ):
            sources = _write_sources(ours, folder)
            runs = _alternate(ours, floor, peer, folder, sources, rounds=1 if sessions else 3)
    return [
        *(_beside_floor(runs, format, goal) for format, goal in _GOALS.items()),
        *(_beside_peer(runs, format, goal) for format, goal in _PEER_GOALS.items()),
    ]


def _write_sources(ours: Arm, folder: Path) -> list[str]:
    """The rows as Parquet files, for the peer: one of our exports, out of reach of the next ones."""
    made = Path(ours.call("export", data=str(folder / "data"), format="parquet", keep=True)["folder"])
    (made / "data").rename(folder / "sources")
    shutil.rmtree(made)
    return [str(path) for path in sorted((folder / "sources").glob("*/events-*"))]


def _alternate(ours: Arm, floor: Arm, peer: Arm, folder: Path, sources: list[str], *, rounds: int) -> Runs:
    """All ways in turn; a first turn warms up, the peer's on one file."""
    data = str(folder / "data")
    runs: Runs = {}
    for turn in range(rounds + 1):
        found = {"floor": floor.call("read_sorted", data=data)}
        for format in _FORMATS:
            found[format] = ours.call("export", data=data, format=format)
        for format in _PEER_GOALS:
            files = sources if turn else sources[:1]
            found[f"hf {format}"] = peer.call("hf", files=files, format=format, folder=str(folder))
        if turn:
            for name, one in found.items():
                runs.setdefault(name, []).append(one)
    return runs


def _beside_floor(runs: Runs, format: str, goal: Goal | None) -> Figure:
    ours, floor = runs[format], runs["floor"]
    return Figure(
        name=f"{format}, shards: {ours[0]['rows']:,} rows",
        unit="M rows/s",
        ours=[one["rows"] / one["shard_seconds"] / 1e6 for one in ours],
        peer=speeds(floor),
        peer_name="sorted read of the lake",
        goal=goal,
        detail={
            "whole export, M rows/s": speeds(ours),
            "whole export, share of the read": [
                read["seconds"] / one["seconds"] for one, read in zip(ours, floor, strict=True)
            ],
            "CPU s of the shards": [one["shard_cpu_s"] for one in ours],
            "CPU s of the export": [one["cpu_s"] for one in ours],
            "CPU s of the read": [one["cpu_s"] for one in floor],
            "MB": ours[0]["bytes"] / 1e6,
            "shards": ours[0]["shards"],
            "threads": THREADS,
        },
    )


def _beside_peer(runs: Runs, format: str, goal: Goal) -> Figure:
    peer = runs[f"hf {format}"]
    return Figure(
        name=f"{format}, whole export",
        unit="M rows/s",
        ours=speeds(runs[format]),
        peer=speeds(peer),
        peer_name=f"datasets: {_PEER_CALLS[format]}",
        goal=goal,
        detail={
            "datasets without load, M rows/s": [one["rows"] / one["write_seconds"] / 1e6 for one in peer],
            "CPU s of datasets": [one["cpu_s"] for one in peer],
            "MB of datasets": peer[0]["bytes"] / 1e6,
        },
    )


def speeds(runs: list[dict[str, Any]]) -> list[float]:
    """Million rows a second of each run."""
    return [one["rows"] / one["seconds"] / 1e6 for one in runs]
