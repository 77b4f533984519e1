"""What learning from sessions needs of the client: the memory graph, and exports. Spec §4.2, §4.3."""

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from recorder.client.errors import ExportFailed, TookTooLong
from recorder.client.requests import Json, Requests, poll


class Datasets(Requests):
    """Common paths, and datasets made of sessions."""

    def memory_paths(self, workflow: str, **filters: str | int | float) -> list[Json]:
        """The workflow's paths, most frequent first; filters: since, until, outcome, min_frequency, limit."""
        paths: list[Json] = self._get("/v1/memory/paths", {"workflow": workflow, **filters})["data"]
        return paths

    def create_export(
        self,
        workflow: str | list[str],
        *,
        format: str = "parquet",
        filter: Mapping[str, Any] | None = None,
        frame_sampling: Mapping[str, Any] | None = None,
        destination: Mapping[str, Any] | None = None,
        tag: str | None = None,
    ) -> Json:
        """A new export, queued; without a destination the service hosts its files, signed for a day."""
        chosen = {"filter": filter, "frame_sampling": frame_sampling, "tag": tag}
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
