"""Memory of an export as it grows: the peak of a fresh process that runs it, for ten times the rows.

Planning has a figure of its own: sessions by the million, with few rows each.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.exports.deployments import deploy, scratch
from benchmarks.exports.lake import Shape
from benchmarks.exports.writer_processes import started
from benchmarks.figure_reports import Figure, at_most
from recorder.settings import Settings

#: Rows of the lake, of which the larger has ten times as many: 2 M events, or 1,000 frames of 80 KB. Fewer
#: events would not fill what one task holds.
_EVENTS = Shape(sessions=4_000, events=500)
_FRAMES = Shape(sessions=100, events=50, frames=10)
_TIMES = 10
_GOAL = at_most(1.5)
_MANY_SESSIONS, _QUICK_SESSIONS = 1_000_000, 50_000


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the peaks of each format for 10 k frames, by those for a tenth; `quick`: a tenth of both."""
    return _peaks(_smaller(_FRAMES) if quick else _FRAMES, ("webdataset", "parquet", "arrow"), "frames")


def measure_large(*, quick: bool = False) -> list[Figure]:
    """Return the peaks for 20 M events by those for 2 M, and what planning a million sessions takes."""
    events = _smaller(_EVENTS) if quick else _EVENTS
    return [
        *_peaks(events, ("parquet", "arrow", "jsonl"), "rows"),
        planning(_QUICK_SESSIONS if quick else _MANY_SESSIONS),
    ]


def planning(sessions: int) -> Figure:
    """Measure the seconds to plan so many sessions of two events and a frame, and the memory for it."""
    with scratch() as folder:
        settings = deploy(folder / "data", Shape(sessions=sessions, events=2, frames=1, picture_bytes=0))
        runs = {}
        for format in ("parquet", "webdataset"):
            with started("service_exports", settings, folder) as ours:
                idle = ours.call("idle")["peak_mb"]
                runs[format] = ours.call("plan", data=str(folder / "data"), format=format)
    rows, samples = runs["parquet"], runs["webdataset"]
    return Figure(
        name=f"planning {sessions:,} sessions",
        unit="s",
        ours=[rows["seconds"]],
        detail={
            **{f"{name}, s": seconds for name, seconds in rows["parts"].items()},
            "CPU s": rows["cpu_s"],
            "peak MB": rows["peak_mb"],
            "peak MB before": idle,
            "MB stored": rows["bytes"] / 1e6,
            "of samples, s": samples["seconds"],
            "of samples, peak MB": samples["peak_mb"],
        },
    )


def _peaks(small: Shape, formats: tuple[str, ...], what: str) -> list[Figure]:
    shapes = {"small": small, "large": _larger(small)}
    # On disk: files in memory would leave little for what is measured.
    with scratch(in_memory=False) as folder:
        deployments = [(folder / name, deploy(folder / name, shape)) for name, shape in shapes.items()]
        values = {format: [_peak(*deployment, format) for deployment in deployments] for format in formats}
    return [
        Figure(
            name=f"peak memory, {format}: {before[what]:,} → {after[what]:,} {what}",
            unit="MB",
            ours=[after["peak_mb"]],
            peer=[before["peak_mb"]],
            peer_name="a tenth of the rows",
            goal=_GOAL,
            detail={"before the export, MB": after["idle_mb"], "shards": after["shards"]},
        )
        for format, (before, after) in values.items()
    ]


def _peak(folder: Path, settings: Settings, format: str) -> dict[str, Any]:
    """Return an export in a fresh process."""
    with started("service_exports", settings, folder) as ours:
        idle = ours.call("idle")["peak_mb"]
        return ours.call("export", data=str(folder), format=format) | {"idle_mb": idle}


def _larger(shape: Shape) -> Shape:
    return replace(shape, sessions=shape.sessions * _TIMES)


def _smaller(shape: Shape) -> Shape:
    return replace(shape, sessions=shape.sessions // _TIMES)
