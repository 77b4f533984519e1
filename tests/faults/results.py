"""Results of long fault counts, kept in a file so that a count can be reached over several calls."""

import json
import os
from pathlib import Path

import pytest

#: File with one JSON object for each run of a count; without it every call counts from zero.
RESULTS = os.environ.get("RECORDER_FAULT_RESULTS")  # noqa: TID251


def count_done(name: str) -> int:
    """Return how much of a count earlier calls did."""
    if not RESULTS or not Path(RESULTS).exists():
        return 0
    runs = [json.loads(line) for line in Path(RESULTS).read_text().splitlines()]
    return sum(run["count"] for run in runs if run["name"] == name)


def skip_if_done(name: str, wanted: int) -> None:
    """Skip the test if earlier calls reached its count."""
    if count_done(name) >= wanted > 0:
        pytest.skip(f"earlier calls did all {wanted} of: {name}")


def add_result(name: str, count: int, **figures: object) -> None:
    """Append what this call did of a count."""
    if RESULTS:
        with Path(RESULTS).open("a") as file:
            file.write(json.dumps({"name": name, "count": count, **figures}) + "\n")
