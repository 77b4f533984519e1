"""Importing folders of demonstrations into the real service. Contract §2 (imports), §9 (recorder import)."""

import gzip
import itertools
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from examples.demo_workflows import demo_sources
from recorder.access.workspaces import set_workspace
from recorder.cli import app as command_line
from recorder.client import ApiError, Client
from recorder.client.errors import Unreachable
from recorder.data_folder import make_sqlite_url
from recorder.errors import ValidationFailed
from recorder.importers.miniwob.demonstration import (
    demonstration_files,
    demonstration_sources,
    import_demonstration_folder,
)
from recorder.importers.upload import ImportedRecording, RecordingSource, Upload, upload_recordings
from recorder.storage.database import Database
from tests.support.client_fixtures import client, service
from tests.support.demonstrations import (
    REAL,
    click_states,
    element,
    needs_real,
    page,
    state,
    write_demonstration,
)
from tests.support.http_service import RunningService, running_service
from tests.support.ports import find_free_port
from tests.support.unreliable_connections import switched_line
from tests.support.waiting import wait_for

__all__ = ["client", "service"]


def sessions_of(client: Client, workflow: str) -> list[dict[str, Any]]:
    """Return the workflow's sessions, by their beginning."""
    return sorted(client.list_sessions(workflow=workflow), key=lambda session: session["started_at"])


def test_every_file_becomes_a_stopped_session_with_its_outcome(
    service: RunningService, client: Client, tmp_path: Path
) -> None:
    for n, reward in enumerate((1, -1, 0.5)):
        write_demonstration(tmp_path, click_states(), task="whole", name=f"{n}", reward=reward)
    report = import_demonstration_folder(tmp_path, url=service.url, key=service.key, progress=False)
    sessions = sessions_of(client, "whole")
    assert (report.sessions, report.events, report.frames, report.failed) == (3, 9, 6, [])
    assert [session["outcome"] for session in sessions] == ["success", "error", "success"]
    assert [session["started_at"][:19] for session in sessions] == [
        f"2018-01-01T00:0{n}:00" for n in range(3)
    ]
    assert {(item["status"], item["duration_ms"], item["event_count"]) for item in sessions} == {
        ("stopped", 983, 3)
    }


def test_events_name_frames_of_their_session(service: RunningService, client: Client, tmp_path: Path) -> None:
    path = write_demonstration(tmp_path, click_states(), task="bound")
    import_demonstration_folder(path, url=service.url, key=service.key, progress=False)
    (session,) = sessions_of(client, "bound")
    frames = {frame["id"]: frame for frame in client.list_frames(session["id"])}
    assert {event["frame_id"] for event in client.list_events(session["id"])} <= set(frames)
    assert {(frame["width"], frame["height"], frame["has_dom"]) for frame in frames.values()} == {
        (160, 210, True)
    }


def test_files_that_cannot_be_read_are_named_and_skipped(
    service: RunningService, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_demonstration(tmp_path, click_states(), task="damaged", name="good")
    (good.parent / "[cut].json.gz").write_bytes(good.read_bytes()[:40])
    (good.parent / "shape.json.gz").write_bytes(gzip.compress(b"[1, 2]"))
    (good.parent / "text.json").write_text("no JSON")
    report = import_demonstration_folder(tmp_path, url=service.url, key=service.key)
    printed = capsys.readouterr()
    names = ["damaged/[cut].json.gz", "damaged/shape.json.gz", "damaged/text.json"]
    assert sorted(name for name, _ in report.failed) == names
    assert all(f"skipped {name}: " in printed.err for name in names)
    assert (printed.out, report.sessions, len(sessions_of(client, "damaged"))) == ("", 1, 1)


def test_a_recording_the_service_refuses_leaves_no_half_session(
    service: RunningService, client: Client, tmp_path: Path
) -> None:
    deep = element("DIV", (0, 0, 9, 9))
    for _ in range(80):
        deep = element("DIV", (0, 0, 9, 9), deep)
    write_demonstration(tmp_path, [state(0, page(deep))], task="refused", name="0")
    write_demonstration(tmp_path, click_states(), task="refused", name="1")
    report = import_demonstration_folder(tmp_path, url=service.url, key=service.key, progress=False)
    assert [name for name, _ in report.failed] == ["refused/0.json.gz"]
    assert "invalid_json" in report.failed[0][1]
    assert len(sessions_of(client, "refused")) == report.sessions == 1


def test_a_key_that_is_refused_ends_the_import(service: RunningService, tmp_path: Path) -> None:
    write_demonstration(tmp_path, [])
    with pytest.raises(ApiError, match="401 invalid_api_key"):
        import_demonstration_folder(tmp_path, url=service.url, key="nsk_local_wrong", progress=False)


def test_a_spent_quota_ends_the_import(tmp_path: Path) -> None:
    hours_17 = ImportedRecording(
        workflow="spent",
        metadata={},
        actor={"id": "someone", "kind": "human"},
        started_at=datetime(2024, 1, 1, tzinfo=UTC),
        events=[{"t_ms": 1_000 * 60_000, "type": "click"}],
    )
    tried: list[str] = []
    sources = [RecordingSource(name, lambda: hours_17) for name in "abcdefgh"]
    with running_service(tmp_path) as running, Client(running.url, running.key) as client:
        (file,) = tmp_path.rglob("recorder.db")
        with closing(Database(make_sqlite_url(file))) as database, database.transaction(write=True) as db:
            set_workspace(db, "tests", tier="trial")
        with pytest.raises(ApiError, match="quota_exceeded"):
            upload_recordings(client, sources, parallel=1, on_done=lambda upload: tried.append(upload.name))
    assert tried == ["a"]


def test_an_import_over_a_line_that_breaks_names_what_it_leaves(
    service: RunningService, client: Client
) -> None:
    class CuttingEvents(list[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            line.is_on = False
            return super().__iter__()

    def read_cutting() -> ImportedRecording:
        recording = next(iter(demo_sources())).read()
        return replace(recording, workflow="cut_off", events=CuttingEvents(recording.events))

    with (
        switched_line(service.url) as line,
        Client(line.url, service.key, patience_s=0.3) as far,
        pytest.raises(Unreachable) as raised,
    ):
        sources = [*itertools.islice(demo_sources(), 4), RecordingSource("last", read_cutting)]
        upload_recordings(far, sources, parallel=1, on_done=lambda _: None)
    ((left,), (counts, names)) = sessions_of(client, "cut_off"), raised.value.__notes__
    assert counts.startswith("Imported before: 4 sessions, ")
    assert left["status"] == "recording" and names.endswith(f": {left['id']}.")


def stop_import(
    service: RunningService, folder: Path, client: Client, *, workflow: str, stop: Callable[[Any], None]
) -> tuple[int, str]:
    """Run the command, stop it when three of its sessions are imported; return exit code and stderr."""
    for number in range(300):
        write_demonstration(folder, click_states(), task="many", name=f"{number:03}")
    key = client.create_key("importer", "write")
    words = ["import", str(folder), "--url", service.url, "--key", key["key"], "--workflow", workflow]
    with subprocess.Popen(
        [sys.executable, "-m", "recorder.cli", *words], stderr=subprocess.PIPE, text=True
    ) as command:
        wait_for(lambda: sum(item["status"] == "stopped" for item in sessions_of(client, workflow)) >= 3)
        stop(command if workflow == "ctrl_c" else key)
        return command.wait(60), command.stderr.read() if command.stderr else ""


def test_an_import_whose_key_is_revoked_names_what_it_leaves(
    service: RunningService, client: Client, tmp_path: Path
) -> None:
    code, printed = stop_import(
        service, tmp_path, client, workflow="revoked", stop=lambda key: client.revoke_key(key["id"])
    )
    sessions = sessions_of(client, "revoked")
    stopped = [item for item in sessions if item["status"] == "stopped"]
    assert code == 4
    assert f"Imported before: {len(stopped)} sessions, {3 * len(stopped)} events" in " ".join(printed.split())
    left = {item["id"] for item in sessions if item["status"] == "recording"}
    assert set(re.findall(r"ses_\w+", printed)) == left


def test_an_import_that_ctrl_c_ends_counts_what_it_leaves(
    service: RunningService, client: Client, tmp_path: Path
) -> None:
    code, printed = stop_import(
        service, tmp_path, client, workflow="ctrl_c", stop=lambda command: command.send_signal(signal.SIGINT)
    )
    sessions = sessions_of(client, "ctrl_c")
    assert code == 130 and {item["status"] for item in sessions} == {"stopped"}
    assert f"Imported before: {len(sessions)} sessions, " in " ".join(printed.split())
    assert 3 <= len(sessions) < 300


def test_a_workflow_that_is_no_slug_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    write_demonstration(tmp_path, [])
    with pytest.raises(ValidationFailed, match="workflow"):
        import_demonstration_folder(
            tmp_path, url="http://127.0.0.1:1", key="nsk_x", workflow="No Slug", progress=False
        )


def test_sources_are_read_as_their_turn_comes(client: Client) -> None:
    taken: list[int] = []
    uploaded: list[Upload] = []
    ahead: list[int] = []

    def sources() -> Iterator[Any]:
        for n, source in enumerate(demo_sources(30)):
            taken.append(n)
            yield source

    def on_done(upload: Upload) -> None:
        uploaded.append(upload)
        ahead.append(len(taken) - len(uploaded))

    report = upload_recordings(client, sources(), parallel=2, on_done=on_done)
    assert report.sessions == len(uploaded) == len(report.session_ids) == 30
    assert max(ahead) <= 4


def test_the_demo_is_taken_whole(client: Client) -> None:
    wanted = [source.read() for source in demo_sources(40, seed=3)]
    report = upload_recordings(client, demo_sources(40, seed=3), parallel=4, on_done=lambda _: None)
    assert report.failed == []
    assert report.events == sum(len(recording.events) for recording in wanted)
    outcomes = {session["outcome"] for session in client.list_sessions(workflow="approve_invoice")}
    assert {"success", "error", "abandoned"} >= outcomes >= {"success"}


@needs_real
def test_real_demonstrations_of_every_task_are_taken(client: Client) -> None:
    files = demonstration_files(REAL)[::40]
    sources = demonstration_sources(files, workflow_prefix="real_")
    report = upload_recordings(client, sources, parallel=4, on_done=lambda _: None)
    assert report.failed == []
    assert report.sessions == len(files)


def test_without_a_service_the_command_ends_soon_with_a_sentence(tmp_path: Path) -> None:
    path = write_demonstration(tmp_path, click_states(), task="alone")
    url = f"http://127.0.0.1:{find_free_port()}"
    began = time.monotonic()
    done = CliRunner().invoke(command_line, ["import", str(path), "--url", url, "--key", "nsk_local_none"])
    assert isinstance(done.exception, Unreachable) and url in str(done.exception)
    assert time.monotonic() - began < 10  # the client alone repeats for half a minute
