"""Results of PM4Py for a log, printed line by line by a Python that has it; never imported by the project.

Every line of stdin is a call, every line of stdout its answer, both JSON. PM4Py is AGPL: it stays on the
other side of this pipe.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

_answers, sys.stdout = sys.stdout, sys.stderr  # PM4Py greets on stdout

import pandas as pd  # noqa: E402
import pm4py  # noqa: E402

CASE, ACTIVITY, TIME = "case:concept:name", "concept:name", "time:timestamp"
_logs: dict[str, Any] = {}


def load(file: str) -> int:
    """Take a CSV of case, activity and time (µs since 1970), as its rows are and sorted; returns how many."""
    rows = pd.read_csv(file, dtype={"case": str, "activity": str})
    rows = rows.rename(columns={"case": CASE, "activity": ACTIVITY, "time": TIME})
    rows[TIME] = pd.to_datetime(rows[TIME], unit="us", utc=True)
    _logs["shuffled"] = rows
    _logs["sorted"] = rows.sort_values([CASE, TIME], kind="stable").reset_index(drop=True)
    return len(rows)


def seconds(sort_first: bool) -> float:
    """Measure variants and graph: of sorted rows, or of shuffled ones with the sorting that they need."""
    rows = _logs["shuffled" if sort_first else "sorted"]
    began = time.perf_counter()
    if sort_first:
        rows = rows.sort_values([CASE, TIME], kind="stable")
    pm4py.get_variants(rows)
    pm4py.discover_dfg(rows)
    return time.perf_counter() - began


def contents(file: str) -> dict[str, Any]:
    """Return variants and graph of an XES log as PM4Py reads it."""
    log = pm4py.read_xes(file)
    variants = [[list(sequence), n] for sequence, n in pm4py.get_variants(log).items()]
    return {"variants": variants, **_as_json(*pm4py.discover_dfg(log))}


def rows(file: str) -> list[list[Any]]:
    """Return case, activity and time (ms since 1970) of every event of an XES log, in order."""
    log = pm4py.read_xes(file)
    times = (log[TIME] - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)
    return [list(row) for row in zip(log[CASE], log[ACTIVITY], times.tolist(), strict=True)]


def graph(file: str) -> dict[str, Any]:
    """Return a graph as PM4Py reads it: `.dfg` lines by its reader, JSON as its dictionaries."""
    if file.endswith(".json"):
        output = json.loads(Path(file).read_text(encoding="utf-8"))
        pairs = {(source, target): n for source, target, n in output["dfg"]}
        pm4py.write_dfg(pairs, output["start_activities"], output["end_activities"], f"{file}.dfg")
        file = f"{file}.dfg"
    return _as_json(*pm4py.read_dfg(file))


def _as_json(dfg: Any, starts: dict[str, int], ends: dict[str, int]) -> dict[str, Any]:
    pairs = [[source, target, int(n)] for (source, target), n in dfg.items()]
    counts = [{label: int(n) for label, n in item.items()} for item in (starts, ends)]
    return {"dfg": pairs, "start_activities": counts[0], "end_activities": counts[1]}


if __name__ == "__main__":
    calls = {call.__name__: call for call in (load, seconds, contents, rows, graph)}
    for line in sys.stdin:
        name, given = json.loads(line)
        print(json.dumps(calls[name](**given)), file=_answers, flush=True)
