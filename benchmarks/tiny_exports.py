"""Tiny exports through Dagster's daemon, one after the other, and what the service costs while idle.

A dataset holds the events and frames of two sessions. The whole service runs as its command starts it:
`recorder up` itself and its guard, API, delivery loop, Dagster's three processes, and the runs that seal and
export. The idle share counts all of them, with processes that end while it is measured.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.dagster_runs import list_runs
from benchmarks.figure_reports import Figure, at_most
from benchmarks.processes import read_cpu_seconds
from benchmarks.sealing import make_work, record
from benchmarks.seeds import new_key, new_settings
from benchmarks.servers import Deployment, running_up
from recorder.client import Client
from recorder.clock import parse_time

_TAGS = 5
_MATERIALIZATIONS = """
query Materializations {
  assetOrError(assetKey: {path: ["datasets"]}) {
    ... on Asset { assetMaterializations(limit: 500) { partition } }
  }
}
"""


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the seconds from queued to completed, and processor time of the idle service."""
    exports, idle_s = (15, 20.0) if quick else (50, 60.0)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder) / "data")
        key = new_key(settings)
        with (
            running_up(settings) as service,
            Client(service.url, key) as client,
        ):
            ids = [record(client, make_work(seed)) for seed in range(2)]
            client.wait_sealed(ids, timeout_s=120)
            with service.open_dagster() as dagster:
                _wait_for_run(dagster)
                lags = [_export(client, number) for number in range(exports)]
                time.sleep(3)  # the last ones are described after they are completed
                shown = _count_materializations(dagster)
                runs = len(list_runs(dagster))
            time.sleep(12)
            idle = _idle_shares(service, idle_s)
    waits, totals = [lag[0] for lag in lags], [lag[1] for lag in lags]
    if sum(shown.values()) != exports or len(shown) != _TAGS:
        raise RuntimeError(f"{exports} exports were shown as {shown}.")
    return [
        Figure(
            name="export left queued, p95",
            unit="s",
            ours=[_p95(waits)],
            goal=at_most(1.0),
            detail={"all": waits},
        ),
        Figure(
            name="export queued → completed, p50",
            unit="s",
            ours=[statistics.median(totals)],
            goal=at_most(4.0),
            detail={"exports": exports, "runs of Dagster": runs, "all": totals},
        ),
        Figure(name="export queued → completed, p95", unit="s", ours=[_p95(totals)], goal=at_most(6.0)),
        Figure(
            name="idle service, share of a core",
            unit="%",
            ours=[100 * sum(idle.values())],
            goal=at_most(5.0),
            detail={
                "seconds": idle_s,
                "processes": {name: round(100 * share, 2) for name, share in idle.items()},
            },
        ),
    ]


def _wait_for_run(dagster: httpx.Client) -> None:
    until = time.monotonic() + 60
    while not any(run.job == "write_small_exports" and run.status == "STARTED" for run in list_runs(dagster)):
        if time.monotonic() > until:
            raise TimeoutError("The run that writes small exports did not start.")
        time.sleep(0.2)


def _export(client: Client, number: int) -> tuple[float, float]:
    """Return the seconds in which an export left `queued`, as its client saw, and was completed."""
    began = time.monotonic()
    made = client.create_export("approve_invoice", tag=f"bench-{number % _TAGS}")
    left: float | None = None
    while True:
        export: dict[str, Any] = client.get_export(made["id"])
        if left is None and export["status"] != "queued":
            left = time.monotonic() - began
        if export["status"] == "completed":
            break
        if export["status"] == "failed" or time.monotonic() - began > 60:
            raise RuntimeError(f"The export is {export['status']}: {export['error']}.")
        time.sleep(0.02)
    done = parse_time(export["completed_at"], name="") - parse_time(export["created_at"], name="")
    return left or 0.0, done.total_seconds()


def _count_materializations(dagster: httpx.Client) -> dict[str, int]:
    """Return how many versions Dagster shows of each dataset."""
    answer = dagster.post("/graphql", json={"query": _MATERIALIZATIONS}).json()["data"]["assetOrError"]
    results = [item["partition"] for item in answer["assetMaterializations"]]
    return {name: results.count(name) for name in sorted(set(results))}


def _idle_shares(service: Deployment, seconds: float) -> dict[str, float]:
    """Return the share of a core that `recorder up`, and each process below it, takes."""
    before, began = read_cpu_seconds(service.process.pid), time.monotonic()
    time.sleep(seconds)
    after, took = read_cpu_seconds(service.process.pid), time.monotonic() - began
    # A process that has ended by the end counts with its parent, so its time before is taken off.
    return {name: (after.get(name, 0.0) - before.get(name, 0.0)) / took for name in {**before, **after}}


def _p95(values: list[float]) -> float:
    return sorted(values)[-(-95 * len(values) // 100) - 1]
