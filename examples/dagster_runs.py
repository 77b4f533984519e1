"""Asking Dagster how a run went, over the GraphQL address of its pages."""

import time

import httpx

_QUERY = """
query ($tags: [ExecutionTag!]!) {
  runsOrError(filter: {tags: $tags}) { ... on Runs { results { runId status } } }
}
"""
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")
_POLL_S = 0.3


def wait_for_export_run(dagster: httpx.Client, export_id: str, *, timeout_s: float) -> str | None:
    """Return how the run of an export ended: SUCCESS, FAILURE or CANCELED; None if it does not end in time.

    The export itself is complete before: the run goes on to draw its plot and to check the files.
    """
    variables = {"tags": [{"key": "recorder/export_id", "value": export_id}]}
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        answer = dagster.post("/graphql", json={"query": _QUERY, "variables": variables})
        for run in answer.json()["data"]["runsOrError"]["results"]:
            if run["status"] in _ENDED:
                return str(run["status"])
        time.sleep(_POLL_S)
    return None
