"""What learning from sessions needs of the client: the memory graph, and exports. Spec §4.2, §4.3."""

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from recorder import limits
from recorder.client.errors import ExportFailed, TookTooLong
from recorder.client.transport import Call, Json, Requests, poll


class Datasets(Requests):
    """What the memory graph knows, and datasets made of sessions."""

    def memory_paths(self, workflow: str, **filters: str | int | float) -> list[Json]:
        """The workflow's paths, most frequent first.

        Args:
            filters: since, until, outcome, min_frequency, limit; `actor_kind` stands for `actor.kind`.
        """
        paths: list[Json] = self._get("/v1/memory/paths", _asked(workflow, filters))["data"]
        return paths

    def memory_outliers(self, workflow: str, **filters: str | int | float) -> Iterator[Json]:
        """Sessions off the common paths, the least typical first, page by page.

        Args:
            filters: threshold, since, until, outcome; `actor_kind` stands for `actor.kind`.
        """
        return self._pages("/v1/memory/outliers", _asked(workflow, filters))

    def memory_similar(self, session_id: str, *, limit: int = limits.SIMILAR_DEFAULT) -> list[Json]:
        """The sessions whose way is most like that of a sealed session, which itself is left out."""
        body = {"session_id": session_id, "limit": limit}
        found: list[Json] = self._post("/v1/memory/similar", body)["data"]
        return found

    def memory_recovery_points(self, workflow: str, **filters: str | int) -> list[Json]:
        """Where sessions that failed came back to success; filters: failure_tag, since, until, limit."""
        points: list[Json] = self._get("/v1/memory/recovery_points", _asked(workflow, filters))["data"]
        return points

    def memory_graph(self, workflow: str, *, format: str = "json", **filters: str | float) -> Json | str:
        """The workflow's graph: JSON as an object, `graphml`, `mermaid`, `dot` and `svg` as text.

        Args:
            filters: since, until, outcome, min_frequency; `actor_kind` stands for `actor.kind`.
        """
        asked = {**_asked(workflow, filters), "format": format}
        answer = self._transport.send(Call("GET", "/v1/memory/graph", params=asked, repeatable=True))
        graph: Json | str = answer.json() if format == "json" else answer.text
        return graph

    def memory_diff(self, workflow: str, **sides: str | int | float) -> Json:
        """What differs between two sides of a workflow's sessions.

        Args:
            sides: since, until and actor_kind of the one; against_since, against_until, against_actor_kind of
                the other; outcome of both; min_change and limit.
        """
        return self._get("/v1/memory/diff", _asked(workflow, sides))

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
        """A new export, queued; without a destination the service hosts its files, signed for a day."""
        chosen = {"filter": filter, "frame_sampling": frame_sampling, "split": split, "tag": tag}
        body = {
            "workflow": workflow,
            "format": format,
            "destination": destination or {"kind": "signed_url"},
            **{name: value for name, value in chosen.items() if value is not None},
        }
        return self._create("/v1/exports", body)

    def get_export(self, export_id: str) -> Json:
        """An export as it stands."""
        return self._get(f"/v1/exports/{quote(export_id, safe='')}")

    def cancel_export(self, export_id: str) -> Json:
        """Call an export off; it ends as `failed`, with `error.code` = `cancelled`."""
        return self._post(f"/v1/exports/{quote(export_id, safe='')}/cancel", {})

    def export_diff(self, export_id: str, *, against: str) -> Json:
        """What differs between a completed export and another one, with all sessions that do in `data`."""
        path = f"/v1/exports/{quote(export_id, safe='')}/diff"
        diff = self._get(path, {"against": against, "limit": limits.LIST_MAX})
        while diff["next_cursor"] is not None:
            asked = {"against": against, "limit": limits.LIST_MAX, "cursor": diff["next_cursor"]}
            page = self._get(path, asked)
            diff |= {name: page[name] for name in ("next_cursor", "has_more")}
            diff["data"] += page["data"]
        return diff

    def export_manifest(self, export_id: str) -> Json:
        """The manifest of a completed export; addresses of hosted shards are freshly signed."""
        return self._get(f"/v1/exports/{quote(export_id, safe='')}/manifest")

    def wait_export(self, export_id: str, *, timeout_s: float = 600.0) -> Json:
        """The export once it is completed.

        Raises:
            ExportFailed: if it failed.
            TookTooLong: if it is not done within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        export = poll(lambda: self.get_export(export_id), ("completed", "failed"), deadline)
        if export is None:
            raise TookTooLong(f"{export_id} is not done", timeout_s)
        if export["status"] == "failed":
            raise ExportFailed(export)
        return export


def _asked(workflow: str, filters: Mapping[str, Any]) -> dict[str, Any]:
    """The query of the memory graph; `actor_kind` is called `actor.kind` there."""
    return {
        "workflow": workflow,
        **{name.replace("actor_kind", "actor.kind"): filters[name] for name in filters},
    }
