"""A measured figure, its goal, and how both are shown: a table for people, JSON for machines."""

import json
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from recorder import clock


class Skipped(Exception):
    """A figure that cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Goal:
    """Goal of a figure: at least, or at most, a value."""

    value: float
    is_floor: bool

    def is_reached(self, measured: float) -> bool:
        """Return whether a measured value reaches the goal."""
        return measured >= self.value if self.is_floor else measured <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.is_floor else '≤'} {_number(self.value)}"


def at_least(value: float) -> Goal:
    """Return a goal to come up to."""
    return Goal(value, is_floor=True)


def at_most(value: float) -> Goal:
    """Return a goal to stay below."""
    return Goal(value, is_floor=False)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: a value for each run, and beside each that of a peer or floor, taken in turn with ours."""

    name: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float] = ()
    peer_name: str = ""
    #: What the median ratio should be where there is a peer, else the median of ours. None: for information.
    goal: Goal | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """Ours by the peer's, run by run."""
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)] if self.peer else []

    @property
    def is_reached(self) -> bool | None:
        """True if the goal is reached; None without one."""
        return (
            None if self.goal is None else self.goal.is_reached(statistics.median(self.ratios or self.ours))
        )

    def as_json(self) -> dict[str, Any]:
        """Return the whole report in JSON types."""
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": list(self.ours),
            "peer": list(self.peer),
            "peer_name": self.peer_name,
            "ratios": self.ratios,
            "goal": None if self.goal is None else str(self.goal),
            "is_reached": self.is_reached,
            "detail": self.detail,
        }


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, linear between the nearest two of at least two values.

    Args:
        values: in any order.
        share: of the values at or below the quantile, in thousandths: 0.99 is p99.
    """
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def show(figures: Sequence[Figure], console: Console) -> None:
    """Print the table, and below it the details of each figure."""
    table = Table(title="median (least–most) of alternated runs", title_justify="left")
    for column in ("figure", "ours", "peer or floor", "ratio", "goal", "reached"):
        table.add_column(column)
    for figure in figures:
        table.add_row(
            figure.name,
            f"{_span(figure.ours)} {figure.unit}",
            f"{_span(figure.peer)}\n{figure.peer_name}" if figure.peer else "",
            _span(figure.ratios),
            "" if figure.goal is None else f"{'ratio ' if figure.peer else ''}{figure.goal}",
            {True: "yes", False: "[bold red]no[/]", None: ""}[figure.is_reached],
        )
    console.print(table)
    for figure in figures:
        if figure.detail:
            details = " · ".join(f"{name} {_told(value)}" for name, value in figure.detail.items())
            console.print(f"{figure.name}: {details}", markup=False, highlight=False)


def write_json(figures: Sequence[Figure], machine: dict[str, Any], file: Path) -> None:
    """Write everything to a file."""
    document = {
        "at": clock.to_iso(clock.now()),
        "machine": machine,
        "figures": [f.as_json() for f in figures],
    }
    file.write_text(json.dumps(document, indent=1) + "\n")


def describe_machine() -> dict[str, Any]:
    """Return the facts of the machine that the figures depend on."""
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "kernel": platform.release(),
        "load_1min": round(os.getloadavg()[0], 2),
        "fdatasync_24kb_us": _fdatasync_us(),
    }


def _fdatasync_us() -> float:
    """Return the median time to sync 24 KB in the temporary folder: some disks only promise it."""
    times = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(200):
            file.write(bytes(24_576))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1e6)


def _span(values: Sequence[float]) -> str:
    if not values:
        return ""
    middle = _number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({_number(min(values))}–{_number(max(values))})"


def _told(value: Any) -> str:
    if isinstance(value, list):
        return _span(value)
    return _number(value) if isinstance(value, int | float) else str(value)


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
