"""The client's calls about exports, against the real service. Spec §4.3."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from recorder.client import Client
from recorder.exports.runner.run import run_export
from recorder.runtime import Runtime
from recorder.settings import Settings
from tests.support.http_service import running_service
from tests.support.sealed_sessions import Recording, seal


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Runtime]]:
    """Yield a client of a service with sealed sessions, and the deployment to run exports in."""
    folder: Path = tmp_path_factory.mktemp("service")
    with running_service(folder) as running, Client(running.url, running.key) as client:
        runtime = Runtime.open(Settings.from_env({}, data_dir=folder))
        client.create_session("checkout")
        workspace_id = client.get_workspace()["id"]
        seal(runtime, [Recording() for _ in range(3)], workspace_id=workspace_id)
        yield client, runtime
        runtime.close()


def test_an_export_is_asked_for_with_a_split_and_called_off(opened: tuple[Client, Runtime]) -> None:
    client, _ = opened
    export = client.create_export("checkout", split={"by": "actor", "test": 0.3})
    assert client.get_export(export["id"])["split"] == {"by": "actor", "validation": 0.1, "test": 0.3}
    ended = client.cancel_export(export["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "cancelled")


def test_a_diff_is_read_to_its_end(opened: tuple[Client, Runtime], monkeypatch: pytest.MonkeyPatch) -> None:
    client, runtime = opened
    monkeypatch.setattr("recorder.limits.LIST_MAX", 2)
    nothing = client.create_export("checkout", filter={"tag": "nowhere"})["id"]
    everything = client.create_export("checkout")["id"]
    for export_id in (nothing, everything):
        run_export(runtime, export_id, owner="tests")
    diff = client.export_diff(everything, against=nothing)
    assert diff["sessions"]["added"] == len({item["session_id"] for item in diff["data"]}) == 3
    assert (diff["has_more"], diff["next_cursor"]) == (False, None)
