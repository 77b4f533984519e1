"""Deployments that are backed up and restored, and what they answer before and after."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from api.app import create_app
from recorder.doctor.examination import examine_deployment
from recorder.governance.backup.backup_store import BackupStore
from recorder.governance.backup.create import BackupReport, create_backup
from recorder.governance.backup.restore import RestoreReport, restore_backup, stage_settings
from recorder.settings import Settings
from tests.support.factories import Caller, Service

#: Members that differ from one reading to the next: addresses carry the time of their signature.
_SIGNED = ("manifest_url", "url", "url_expires_at", "card_url")


@dataclass
class Deployments:
    """A running deployment, the location of its backups, and a way to addresses of empty databases."""

    service: Service
    folder: Path
    make_database: Callable[[Path], str]

    @property
    def to(self) -> str:
        """Folder of the backups."""
        return str(self.folder / "backups")

    def back_up(self, **options: Any) -> BackupReport:
        """Make a backup."""
        return create_backup(self.service.runtime, self.to, **options)

    def settings(self, name: str, **chosen: Any) -> Settings:
        """Return the settings of a new deployment with the same secret."""
        data = self.folder / name
        made = replace(
            self.service.runtime.settings,
            data_dir=data,
            database_url=self.make_database(data),
            blob_url=str(data / "blobs"),
            lake_url=str(data / "lake"),
            export_url=str(data / "exports"),
            cold_url=str(data / "cold"),
        )
        return replace(made, **chosen)

    def restore(self, name: str = "restored", *, settings: Settings | None = None, **options: Any) -> Any:
        """Restore the newest backup; return settings of the new deployment, and the report."""
        wanted = settings or self.settings(name)
        report: RestoreReport = restore_backup(
            BackupStore(self.to), wanted, stage_settings(wanted), **options
        )
        return wanted, report

    @contextmanager
    def restored(self, name: str = "restored", **options: Any) -> Iterator[Service]:
        """Restore the newest backup, and serve it."""
        wanted, _ = self.restore(name, **options)
        with serving(wanted) as service:
            yield service


@contextmanager
def serving(settings: Settings) -> Iterator[Service]:
    """Serve a deployment that is there."""
    app = create_app(settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(app, client, app.state.runtime)


def with_service(caller: Caller, service: Service) -> Caller:
    """Return the same key at another deployment."""
    return Caller(service, caller.key)


def answers(caller: Caller, *session_ids: str, workflow: str = "checkout") -> dict[str, Any]:
    """Read all answers about a workspace: lists, sessions, their items, graph, exports, audit."""
    paths = [
        "/v1/sessions?limit=500",
        "/v1/workflows",
        "/v1/keys",
        "/v1/webhooks",
        "/v1/exports",
        "/v1/audit",
        "/v1/quota",
        "/v1/workspaces/current",
        f"/v1/memory/paths?workflow={workflow}",
        f"/v1/memory/graph?workflow={workflow}",
        f"/v1/memory/outliers?workflow={workflow}",
    ]
    for session_id in session_ids:
        base = f"/v1/sessions/{session_id}"
        paths += [base, f"{base}/events?limit=500", f"{base}/frames", f"{base}/tags"]
    read = {path: _without_signatures(caller.get(path).json()) for path in paths}
    for session_id in session_ids:
        for item in read[f"/v1/sessions/{session_id}/frames"]["data"]:
            image = f"/v1/sessions/{session_id}/frames/{item['id']}/image"
            read[image] = caller.get(image).content
    for export in read["/v1/exports"]["data"]:
        manifest = f"/v1/exports/{export['id']}/manifest"
        read[manifest] = _without_signatures(caller.get(manifest).json())
    return {name: _without_request_id(value) for name, value in read.items()}


def _without_signatures(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_signatures(item) for name, item in value.items() if name not in _SIGNED}
    return [_without_signatures(item) for item in value] if isinstance(value, list) else value


def _without_request_id(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if name != "request_id"}
    return value


def problems(settings: Settings) -> list[str]:
    """Return the findings of the operator's check of a deployment that does not run."""
    if settings.data_dir.exists():
        settings.data_dir.chmod(0o700)
    # Dagster does not run beside a test, and variables of the test run are no settings of the deployment.
    ignored = ("dagster silent", "settings", "ports")
    seen = [finding for finding in examine_deployment(settings) if finding.state != "ok"]
    return [f"{finding.check}: {finding.message}" for finding in seen if finding.check not in ignored]


def files_below(folder: Path) -> dict[str, int]:
    """Return the size of each file below a folder."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not os.path.islink(path)  # noqa: PTH114
    }
