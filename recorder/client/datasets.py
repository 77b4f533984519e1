"""Client methods for the memory graph and exports. Spec §4.2, §4.3."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from recorder import limits
from recorder.client.errors import ExportFailed, TookTooLong
from recorder.client.transport import (
    POLL_MAX_S,
    Json,
    Requests,
    TransportCall,
    poll_request_until_status,
)

_WATCHED_POLL_S = 0.25


class Datasets(Requests):
    """Methods for the memory graph and for datasets of sessions."""

    def memory_paths(self, workflow: str, **filters: str | int | float) -> list[Json]:
        """Return the workflow's paths, most frequent first.

        Args:
            workflow: the workflow.
            filters: since, until, outcome, min_frequency, limit; `actor_kind` is sent as `actor.kind`.
        """
        paths: list[Json] = self._get("/v1/memory/paths", _make_memory_url_parameters(workflow, filters))[
            "data"
        ]
        return paths

    def memory_outliers(self, workflow: str, **filters: str | int | float) -> Iterator[Json]:
        """Yield sessions off the common paths, or all with `rank="typicality"`, the least typical first.

        Args:
            workflow: the workflow.
            filters: rank, threshold, since, until, outcome; `actor_kind` is sent as `actor.kind`.
        """
        return self._iterate_pages("/v1/memory/outliers", _make_memory_url_parameters(workflow, filters))

    def memory_similar(self, session_id: str, *, limit: int = limits.SIMILAR_DEFAULT) -> list[Json]:
        """Return the sessions whose paths are most similar to that of a sealed session."""
        body = {"session_id": session_id, "limit": limit}
        sessions: list[Json] = self._post("/v1/memory/similar", body)["data"]
        return sessions

    def memory_recovery_points(self, workflow: str, **filters: str | int) -> list[Json]:
        """Return the points where failing sessions recovered; filters: failure_tag, since, until, limit."""
        points: list[Json] = self._get(
            "/v1/memory/recovery_points", _make_memory_url_parameters(workflow, filters)
        )["data"]
        return points

    def memory_graph(self, workflow: str, *, format: str = "json", **filters: str | float) -> Json | str:
        """Return the workflow's graph: JSON as an object, other formats as text.

        Args:
            workflow: the workflow.
            format: `json`, `graphml`, `mermaid`, `dot` or `svg`.
            filters: since, until, outcome, min_frequency; `actor_kind` is sent as `actor.kind`.
        """
        query = {**_make_memory_url_parameters(workflow, filters), "format": format}
        answer = self._transport.send(TransportCall("GET", "/v1/memory/graph", params=query, repeatable=True))
        graph: Json | str = answer.json() if format == "json" else answer.text
        return graph

    def memory_diff(self, workflow: str, **sides: str | int | float) -> Json:
        """Return the differences between two sets of a workflow's sessions.

        Args:
            workflow: the workflow.
            sides: since, until and actor_kind of the first set; against_since, against_until,
                against_actor_kind of the second; outcome of both; min_change and limit.
        """
        return self._get("/v1/memory/diff", _make_memory_url_parameters(workflow, sides))

    def create_export(
        self,
        workflow: str | list[str],
        *,
        format: str = "parquet",
        filter: Mapping[str, Any] | None = None,
        frame_sampling: Mapping[str, Any] | None = None,
        split: Mapping[str, Any] | None = None,
        destination: Mapping[str, Any] | None = None,
        tag: str | None = None,
    ) -> Json:
        """Create an export; without a destination the service hosts its files, signed for a day."""
        chosen = {"filter": filter, "frame_sampling": frame_sampling, "split": split, "tag": tag}
        body = {
            "workflow": workflow,
            "format": format,
            "destination": destination or {"kind": "signed_url"},
            **{name: value for name, value in chosen.items() if value is not None},
        }
        return self._create("/v1/exports", body)

    def list_exports(self, **filters: str) -> Iterator[Json]:
        """Yield exports, newest first; filters: workflow, status, tag."""
        return self._iterate_pages("/v1/exports", filters)

    def get_export(self, export_id: str) -> Json:
        """Return the current state of an export."""
        return self._get(f"/v1/exports/{quote(export_id, safe='')}")

    def cancel_export(self, export_id: str) -> Json:
        """Cancel an export; it ends as `failed`, with `error.code` = `cancelled`."""
        return self._post(f"/v1/exports/{quote(export_id, safe='')}/cancel", {})

    def export_diff(self, export_id: str, *, against: str) -> Json:
        """Return the differences between two completed exports, with all sessions that differ in `data`."""
        path = f"/v1/exports/{quote(export_id, safe='')}/diff"
        diff = self._get(path, {"against": against, "limit": limits.LIST_MAX})
        while diff["next_cursor"] is not None:
            query = {"against": against, "limit": limits.LIST_MAX, "cursor": diff["next_cursor"]}
            page = self._get(path, query)
            diff |= {name: page[name] for name in ("next_cursor", "has_more")}
            diff["data"] += page["data"]
        return diff

    def export_manifest(self, export_id: str) -> Json:
        """Return the manifest of a completed export; addresses of hosted shards are freshly signed."""
        return self._get(f"/v1/exports/{quote(export_id, safe='')}/manifest")

    def wait_export(
        self,
        export_id: str,
        *,
        timeout_s: float = 600.0,
        on_progress: Callable[[Json], None] | None = None,
    ) -> Json:
        """Wait until an export is completed, and return it.

        Args:
            export_id: the export.
            timeout_s: most seconds to wait.
            on_progress: called with the export each time it was read, which is then four times a second.

        Raises:
            ExportFailed: if it failed.
            TookTooLong: if it is not completed within `timeout_s` seconds.
        """

        def read() -> Json:
            export = self.get_export(export_id)
            if on_progress is not None:
                on_progress(export)
            return export

        export = poll_request_until_status(
            read,
            ("completed", "failed"),
            time.monotonic() + timeout_s,
            longest_pause_s=POLL_MAX_S if on_progress is None else _WATCHED_POLL_S,
        )
        if export is None:
            raise TookTooLong(f"{export_id} is not done", timeout_s)
        if export["status"] == "failed":
            raise ExportFailed(export)
        return export


def _make_memory_url_parameters(workflow: str, filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the query parameters of the memory graph."""
    return {
        "workflow": workflow,
        **{name.replace("actor_kind", "actor.kind"): filters[name] for name in filters},
    }
