"""Asset checks of exports, read over the GraphQL address of Dagster's pages."""

import time
from typing import Any

import httpx

_QUERY = """
query ($check: String!) {
  assetCheckExecutions(assetKey: {path: ["datasets"]}, checkName: $check, limit: 20) {
    evaluation { success metadataEntries { label ... on TextMetadataEntry { text } } }
  }
}
"""
_CHECKS = ("files_match_manifest", "rows_match_lake")
_POLL_S = 0.3


def wait_for_export_checks(dagster: httpx.Client, export_id: str, *, timeout_s: float) -> dict[str, bool]:
    """Return whether each check of an export passed; checks without a result in time are left out.

    The export itself is completed earlier: its run then draws the plot and checks the files.
    """
    passed: dict[str, bool] = {}
    until = time.monotonic() + timeout_s
    while len(passed) < len(_CHECKS) and time.monotonic() < until:
        for check in _CHECKS:
            answer = dagster.post("/graphql", json={"query": _QUERY, "variables": {"check": check}})
            for execution in answer.json()["data"]["assetCheckExecutions"]:
                evaluation = execution["evaluation"]
                if evaluation is not None and _is_of_export(evaluation["metadataEntries"], export_id):
                    passed.setdefault(check, evaluation["success"])
        time.sleep(_POLL_S)
    return passed


def _is_of_export(entries: list[dict[str, Any]], export_id: str) -> bool:
    return any(entry["label"] == "export_id" and entry.get("text") == export_id for entry in entries)
