"""The figure `memory`: what the graph finds again, what stays the same, and how fast it grows."""

from benchmarks.figure_reports import Figure, Skipped
from benchmarks.memory import (
    failures,
    growth,
    identity,
    pictures,
    planted_quality,
    step_labels,
    task_sets,
    tasks,
)

_PARTS = (tasks, task_sets, pictures, step_labels, failures, planted_quality, identity, growth)


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the figures of all parts; one that cannot be measured here is in the table with the reason."""
    figures: list[Figure] = []
    for part in _PARTS:
        try:
            figures += part.measure(quick=quick)
        except Skipped as reason:
            figures.append(Figure(name="memory, MiniWoB", unit="", ours=[], detail={"skipped": str(reason)}))
    return figures
