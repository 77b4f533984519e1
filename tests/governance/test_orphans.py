"""Orphaned objects: what uploads that never committed leave is removed, and nothing else. Contract §3."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from recorder import clock
from recorder.access.keys import Caller as AccessCaller
from recorder.audit.log import Origin
from recorder.errors import Unavailable
from recorder.governance.holds import add_hold
from recorder.governance.retention import ORPHANED, preview_retention, run_retention
from recorder.ids import new_id
from recorder.models.frame import FrameItem
from recorder.models.workspace import WorkspaceRow
from recorder.recording.frame_validation import CheckedFrame
from recorder.recording.frames import store_frame_object
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from recorder.tenant import Tenant
from tests.support.blob_stores import blobs_lead_to
from tests.support.completed_work import patch
from tests.support.factories import Caller, frame
from tests.support.object_stores import BUCKET, running_store
from tests.support.project_texts import ROOT
from tests.support.purges import recorded_canary
from tests.support.recorded_sessions import execute, session_row
from tests.support.sealed_sessions import START, WORKSPACE, Recording, make_runtime, seal
from tests.support.sealing import seal_all

_DAY_S = 86_400
#: An upload in a process of its own, killed after its object is durable and before any row names it.
_KILLED_UPLOAD = textwrap.dedent(
    """
    import os, signal, sys
    from tests.governance.test_orphans import leave_orphan
    print(leave_orphan(*sys.argv[1:]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
)


def leave_orphan(url: str, workspace_id: str, session_id: str) -> str:
    """Store the object of an upload, and do not commit it; return the key of the object."""
    frame = CheckedFrame(
        FrameItem(t_ms=1, content_type="image/png"), "frm_1", b"orphan" * 99, "0" * 64, 1, 1, None, b""
    )
    caller = AccessCaller(Tenant(workspace_id, "live"), "key")
    return store_frame_object(Blobs(url), caller, session_id, [frame], None).object_key


def kill_upload(url: str, workspace_id: str, session_id: str) -> str:
    """Kill an upload between its object and its commit; return the key of the object."""
    command = [sys.executable, "-c", _KILLED_UPLOAD, url, workspace_id, session_id]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    return ended.stdout.strip()


def objects_of(*urls: str) -> dict[str, bytes]:
    """Return all objects with frames of the stores, by store and key."""
    stores = [Blobs(url) for url in urls]
    return {f"{store.url}/{key}": store.get(key) for store in stores for key in store.keys("frames")}


def run_with_preview(runtime: Runtime, workspace_id: str) -> int:
    """Run retention; return the number of orphans, which a preview gave before."""
    preview = preview_retention(runtime, workspace_id=workspace_id)
    report = run_retention(runtime, "tests", workspace_id=workspace_id)
    assert report is not None and preview.list_rows() == report.list_rows()
    return report.counts[workspace_id, ORPHANED]


def age(*urls: str, days: float = 2) -> None:
    """Let the local objects of all uploads be so many days old."""
    for url in urls:
        for path in Path(url).glob("frames/**/*"):
            os.utime(path, (time.time() - days * _DAY_S,) * 2)


def test_orphans_are_removed_and_all_other_objects_stay(caller: Caller) -> None:
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    hot, cold = runtime.blobs.url, runtime.settings.cold_url
    archived = recorded_canary(caller)
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": 1}})
    sealed_at = session_row(runtime, archived.session_id).sealed_at
    assert sealed_at is not None
    assert run_retention(runtime, "tests", at=sealed_at + timedelta(days=2), workspace_id=workspace_id)
    assert session_row(runtime, archived.session_id).frames_archived_at is not None
    sealed, stopped = recorded_canary(caller), recorded_canary(caller, is_sealed=False)
    recording = recorded_canary(caller, is_sealed=False, is_stopped=False)
    execute(runtime, "DELETE FROM frames WHERE session_id = :id", id=sealed.session_id)
    before = objects_of(hot, cold)
    keys = [
        leave_orphan(url, workspace_id, session_id)
        for url, session_id in [
            *((hot, canary.session_id) for canary in (archived, sealed, stopped, recording)),
            (cold, archived.session_id),
            (hot, new_id("ses")),
        ]
    ]
    keys.append(kill_upload(hot, workspace_id, recording.session_id))
    temporary = Path(hot) / keys[0]
    temporary.with_name(f".{temporary.name}.req_1").write_bytes(b"half")
    foreign = leave_orphan(hot, caller.service.make_caller().key.workspace_id, recording.session_id)
    age(hot, cold)
    young = leave_orphan(hot, workspace_id, recording.session_id)
    assert run_with_preview(runtime, workspace_id) == len(keys) + 1
    left = objects_of(hot, cold)
    assert {key: left.pop(key) for key in before} == before
    assert set(left) == {f"{hot}/{young}", f"{hot}/{foreign}"}
    assert run_with_preview(runtime, workspace_id) == 0


def test_the_orphans_of_many_sessions_are_removed_after_a_day(caller: Caller) -> None:
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    for _ in range(201):
        leave_orphan(runtime.blobs.url, workspace_id, new_id("ses"))
    age(runtime.blobs.url, days=23.9 / 24)
    assert run_with_preview(runtime, workspace_id) == 0
    age(runtime.blobs.url, days=24.1 / 24)
    assert run_with_preview(runtime, workspace_id) == 201


def test_an_orphan_that_cannot_be_removed_stops_no_later_one(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    session_ids = [new_id("ses") for _ in range(150)]
    keys = [leave_orphan(runtime.blobs.url, workspace_id, session_id) for session_id in session_ids]
    age(runtime.blobs.url)
    delete, denied = Blobs.delete, set(keys[:2])

    def refuse(store: Blobs, key: str) -> None:
        if key in denied:
            raise Unavailable("The blob store")
        delete(store, key)

    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "delete", refuse)
        report = run_retention(runtime, "tests", workspace_id=workspace_id)
    assert report is not None and report.counts[workspace_id, ORPHANED] == 148
    assert [failure.error.split(".")[0] for failure in report.failures] == ["Failed orphaned objects: 2"]
    assert {key for key in keys if f"{runtime.blobs.url}/{key}" in objects_of(runtime.blobs.url)} == denied
    assert run_with_preview(runtime, workspace_id) == 2


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_snapshot_with_a_picture_of_an_earlier_upload_stays(caller: Caller, is_swept: bool) -> None:
    runtime, session_id = caller.service.runtime, caller.make_session()
    for t_ms in (1, 2):
        snapshot = {"v": 1, "format": "nodes", "html": ["html", ["body", f"page {t_ms}"]]}
        assert caller.add_frames(session_id, frame(t_ms, dom=snapshot)).status_code == 202
    if is_swept:
        caller.post(f"/v1/sessions/{session_id}/stop")
        seal_all(caller.service.runtime)
        execute(runtime, "DELETE FROM frames WHERE session_id = :id", id=session_id)
    before = objects_of(runtime.blobs.url)
    assert sum(session_id in key for key in before) == 2
    age(runtime.blobs.url)
    assert run_with_preview(runtime, caller.key.workspace_id) == 0
    assert objects_of(runtime.blobs.url) == before


@pytest.mark.parametrize("cause", ["held", "lake rows are missing", "open purge"])
def test_objects_of_some_sessions_are_left_alone(caller: Caller, cause: str) -> None:
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    canary = recorded_canary(caller, is_sealed=False)
    key = leave_orphan(runtime.blobs.url, workspace_id, canary.session_id)
    age(runtime.blobs.url)
    if cause == "held":
        with runtime.database.transaction(write=True) as db:
            add_hold(db, Origin.operator(workspace_id), kind="session", value=canary.session_id)
    elif cause == "open purge":
        execute(
            runtime,
            "INSERT INTO purges (session_id, workspace_id, mode, workflow, cause, step, due_at, "
            "requested_at, dates, event_bytes, frame_bytes, events, frames) VALUES "
            "(:id, :workspace, 'live', 'w', 'deletion', 'content', :at, :at, '[]', 0, 0, 0, 0)",
            id=canary.session_id,
            workspace=workspace_id,
            at=clock.now(),
        )
    else:
        execute(runtime, "DELETE FROM frames WHERE session_id = :id", id=canary.session_id)
    before = objects_of(runtime.blobs.url)
    assert any(key in name for name in before)
    assert run_with_preview(runtime, workspace_id) == 0
    assert objects_of(runtime.blobs.url) == before


def test_an_instant_in_the_future_makes_no_upload_old(caller: Caller) -> None:
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    canary = recorded_canary(caller, is_sealed=False, is_stopped=False)
    key = leave_orphan(runtime.blobs.url, workspace_id, canary.session_id)
    at = clock.now() + timedelta(days=3)
    assert run_retention(runtime, "tests", at=at, workspace_id=workspace_id)
    assert runtime.blobs.get(key)


@pytest.fixture
def s3() -> Iterator[None]:
    """Yield a store that speaks like S3, in a process of its own."""
    with running_store("s3") as store, blobs_lead_to(store.url):
        yield


@pytest.mark.usefixtures("s3")
def test_orphans_in_a_bucket_are_removed_by_the_time_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot, cold = f"s3://{BUCKET}/hot", f"s3://{BUCKET}/cold"
    runtime = make_runtime(tmp_path / "data", blob_url=hot, cold_url=cold)
    with runtime.database.transaction(write=True) as db:
        db.add(WorkspaceRow(id=WORKSPACE, name="acme", region="us", created_at=START))
    (archived,) = seal(runtime, [Recording(frames=[0, 500])])
    report = run_retention(runtime, "tests", at=clock.now() + timedelta(days=100))
    assert report is not None and report.counts[WORKSPACE, "archived_sessions"] == 1
    (kept,) = seal(runtime, [Recording(frames=[0, 500], sealed_at=clock.now())])
    before = objects_of(hot, cold)
    assert {name.partition("/frames/")[0] for name in before} == {hot, cold}
    places = [(hot, kept), (cold, archived), (hot, archived), (hot, new_id("ses"))]
    orphans = {f"{url}/{leave_orphan(url, WORKSPACE, session_id)}" for url, session_id in places}
    assert run_with_preview(runtime, WORKSPACE) == 0
    assert set(objects_of(hot, cold)) == before.keys() | orphans
    later = clock.now() + timedelta(hours=24, minutes=1)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert run_with_preview(runtime, WORKSPACE) == len(orphans)
    assert objects_of(hot, cold) == before
    runtime.close()
