"""Dagster's runs as its pages show them: which process works on what, and how one is ended."""

import re
import time
from dataclasses import dataclass
from typing import Any

import httpx

_RUNS = """
query Runs($job: String) {
  runsOrError(filter: {pipelineName: $job}, limit: 50) {
    ... on Runs { results { runId jobName status } }
    ... on Error { message }
  }
}
"""
_PROCESSES = """
query Processes($id: ID!) {
  runOrError(runId: $id) {
    ... on Run { eventConnection(limit: 30) { events { ... on MessageEvent { message } } } }
  }
}
"""
_TERMINATE = """
mutation Terminate($id: String!) {
  terminateRun(runId: $id) { __typename ... on Error { message } }
}
"""
_PID = re.compile(r"pid: (\d+)")
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")


@dataclass(frozen=True)
class Run:
    """One run."""

    id: str
    job: str
    status: str

    @property
    def has_ended(self) -> bool:
        """True if the run has ended, in success or failure."""
        return self.status in _ENDED


def list_runs(dagster: httpx.Client, job: str | None = None) -> list[Run]:
    """Return the last runs, newest first; of one job or of all."""
    result = _ask(dagster, _RUNS, {"job": job})["runsOrError"]["results"]
    return [Run(run["runId"], run["jobName"], run["status"]) for run in result]


def process_ids(dagster: httpx.Client, run: Run) -> list[int]:
    """Return the ids of the processes in which a run began, from its log."""
    result = _ask(dagster, _PROCESSES, {"id": run.id})["runOrError"]["eventConnection"]["events"]
    return [int(pid) for event in result for pid in _PID.findall(event.get("message", ""))]


def end_runs(dagster: httpx.Client, job: str, *, timeout_s: float = 60.0) -> None:
    """Cancel the runs of a job that are under way, as the button on its page does, and wait until they end.

    Raises:
        TimeoutError: if one does not end in time.
    """
    until = time.monotonic() + timeout_s
    for run in list_runs(dagster, job):
        if not run.has_ended:
            _ask(dagster, _TERMINATE, {"id": run.id})
    while not all(run.has_ended for run in list_runs(dagster, job)):
        if time.monotonic() > until:
            raise TimeoutError(f"A run of {job} did not end.")
        time.sleep(0.1)


def _ask(dagster: httpx.Client, query: str, variables: dict[str, Any]) -> dict[str, Any]:
    body = {"query": query, "variables": variables}
    answer = dagster.post("/graphql", json=body)
    answer.raise_for_status()
    data: dict[str, Any] = answer.json()["data"]
    return data
