"""Sessions with real pictures, and a service on a port of its own that hosts exports of them."""

import hashlib
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from api.app import create_app
from recorder.access.workspaces import create_workspace
from recorder.client import Client
from recorder.exports.runner.export_lease import list_due_exports
from recorder.exports.runner.run import run_export
from recorder.runtime import Runtime
from tests.support import sealed_sessions
from tests.support.http_service import serving
from tests.support.ports import find_free_port
from tests.support.sealed_sessions import START, Recording, make_settings, seal

WORKFLOWS = ["checkout", "refund", "triage"]


def seal_sessions(runtime: Runtime, count: int, **options: Any) -> None:
    """Seal sessions of three workflows whose pictures can be decoded; every column has some nulls."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sealed_sessions, "picture", picture)
        seal(runtime, [recording(number) for number in range(count)], **options)


def recording(number: int) -> Recording:
    """Return a session with one to three frames and two to five events."""
    return Recording(
        workflow=WORKFLOWS[number % 3],
        events=[(step * 250, ("click", "scroll", "input")[step % 3]) for step in range(2 + number % 4)],
        frames=[0, 400, 800][: 1 + number % 3],
        outcome=(None, "success", "error")[number % 3] if number % 5 else None,
        actor_kind="human" if number % 4 else None,
        started_at=START + timedelta(minutes=number),
    )


def picture(session_id: str, number: int) -> bytes:
    """Return a real picture, another one for each frame."""
    shade = hashlib.sha256(f"{session_id} {number}".encode()).digest()
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), (shade[0], shade[1], shade[2])).save(buffer, "PNG")
    return buffer.getvalue()


@dataclass(frozen=True)
class Host:
    """A running service with sealed sessions."""

    url: str
    key: str
    runtime: Runtime

    def export(self, **body: Any) -> dict[str, Any]:
        """Return a finished hosted export."""
        with Client(self.url, self.key) as client:
            made = client.create_export(WORKFLOWS, **body)
            run_export(self.runtime, made["id"], owner="test")
            return client.get_export(made["id"])

    def folder(self, export: dict[str, Any]) -> Path:
        """Return the folder of an export's files."""
        (row,) = Path(self.runtime.settings.export_url).glob(f"*/{export['id']}")
        return row

    @contextmanager
    def working(self) -> Iterator[None]:
        """Run the exports that are requested during the block, as Dagster does."""
        over = threading.Event()
        thread = threading.Thread(target=self._work, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _work(self, over: threading.Event) -> None:
        while not over.wait(0.05):
            for export_id in due(self.runtime):
                run_export(self.runtime, export_id, owner="test")


@contextmanager
def hosting(folder: Path) -> Iterator[Host]:
    """Yield a service whose signed addresses lead to itself."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    app = create_app(make_settings(folder, public_url=url))
    runtime: Runtime = app.state.runtime
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(db, "acme", region="us", secret=runtime.settings.secret, tier="unlimited")
    seal_sessions(runtime, 12, workspace_id=made.workspace_id)
    with serving(app, port=port):
        yield Host(url, made.key, runtime)


def due(runtime: Runtime) -> list[str]:
    """Return the queued exports."""
    with runtime.database.transaction(write=False) as db:
        return [export.id for export in list_due_exports(db, limit=10)]
