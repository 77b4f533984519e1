"""Archive of frames: what moves on which day, and that every reader follows. Spec §8.3; contract §2."""

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import orjson
import pytest
from sqlmodel import col, select

from recorder import clock
from recorder.audit.log import Origin
from recorder.governance import archive
from recorder.governance.holds import add_hold
from recorder.governance.retention import preview_retention, run_retention
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs, StoredObject
from tests.support.blob_stores import blobs_lead_to
from tests.support.completed_work import completed_export, patch
from tests.support.factories import Caller
from tests.support.object_stores import BUCKET, EmulatedS3, running_store
from tests.support.purges import Canary, count_hits, finish_purges, recorded_canary
from tests.support.recorded_sessions import let_lease_run_out, session_row
from tests.support.replay_requests import post_replay
from tests.support.sealed_sessions import WORKSPACE, Recording, add_workspace, make_runtime, seal
from tests.support.two_click_sessions import OTHER, replay_all, sealed_run

DAYS = 10


def days_later(runtime: Runtime, canary: Canary, days: float) -> datetime:
    """Return an instant so many days after the sealing of a session."""
    sealed_at = session_row(runtime, canary.session_id).sealed_at
    assert sealed_at is not None
    return sealed_at + timedelta(days=days)


def run_at(caller: Caller, at: datetime) -> dict[str, int]:
    """Run retention in a caller's workspace; return the counts by kind, which a preview gave before."""
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    preview = preview_retention(runtime, at=at, workspace_id=workspace_id)
    report = run_retention(runtime, "tests", at=at, workspace_id=workspace_id)
    assert report is not None and preview.list_rows() == report.list_rows()
    return {kind: count for (_, kind), count in report.counts.items()}


def objects_of(runtime: Runtime, canary: Canary, url: str) -> dict[str, bytes]:
    """Return the objects with frames of a session in a store."""
    row = session_row(runtime, canary.session_id)
    store = Blobs(url)
    objects = store.list_objects(f"frames/{row.workspace_id}/{row.id}/")
    return {stored.key: store.get(stored.key) for stored in objects}


def read_frames(caller: Caller, canary: Canary) -> list[bytes]:
    """Return the pictures and DOM snapshots of a session."""
    address = f"/v1/sessions/{canary.session_id}"
    frames = caller.get(f"{address}/frames").json()["data"]
    answers = [
        caller.get(f"{address}/frames/{frame['id']}/{part}") for frame in frames for part in ("image", "dom")
    ]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.content for answer in answers]


def storage_of(caller: Caller, canary: Canary) -> dict[str, int]:
    """Return the number of frames by store, as the session shows it."""
    answer = caller.get(f"/v1/sessions/{canary.session_id}?include=frames_summary").json()
    storage: dict[str, int] = answer["frames_summary"]["storage"]
    return storage


def test_frames_move_after_their_days_and_stay_readable(caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": DAYS}})
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    before, pictures = objects_of(runtime, canary, runtime.blobs.url), read_frames(caller, canary)
    assert before and pictures and storage_of(caller, canary) == {"hot": 1, "cold": 0}
    assert "archived_sessions" not in run_at(caller, days_later(runtime, canary, DAYS - 0.01))
    assert run_at(caller, days_later(runtime, canary, DAYS + 0.01))["archived_sessions"] == 1
    assert objects_of(runtime, canary, runtime.blobs.url) == {}
    assert objects_of(runtime, canary, runtime.settings.cold_url) == before
    assert read_frames(caller, canary) == pictures and storage_of(caller, canary) == {"hot": 0, "cold": 1}
    assert "archived_sessions" not in run_at(caller, days_later(runtime, canary, DAYS + 1))


def test_frames_of_sessions_whose_days_are_over_do_not_move(caller: Caller) -> None:
    days = {"frames_days": DAYS, "events_days": 3 * DAYS}
    patch(caller, "/v1/workspaces/current", {"retention": days})
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    kinds = run_at(caller, days_later(runtime, canary, 3 * DAYS + 1))
    assert kinds["expired_sessions"] == 1 and "archived_sessions" not in kinds


def test_an_export_of_archived_frames_is_the_same_to_the_byte(caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": DAYS}})
    canary = recorded_canary(caller)
    exported = export_samples(caller, canary)
    run_at(caller, days_later(caller.service.runtime, canary, DAYS + 1))
    assert storage_of(caller, canary) == {"hot": 0, "cold": 1}
    assert len(exported) == 3 and export_samples(caller, canary) == exported


def export_samples(caller: Caller, canary: Canary) -> dict[str, bytes]:
    """Return what a new export writes of a session, by name in the archive."""
    export = completed_export(caller, format="webdataset", frame_sampling={"mode": "all"})
    files = caller.service.runtime.settings.data_dir.rglob(f"{export['id']}/**/*.tar")
    members = {}
    for file in files:
        with tarfile.open(file) as archive:
            for member in archive.getmembers():
                if member.name.startswith(canary.session_id):
                    content = archive.extractfile(member)
                    assert content is not None
                    members[member.name] = content.read()
    return members


def test_a_dry_replay_of_archived_snapshots_gives_the_same_bytes(caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": DAYS}})
    runtime, session_id, other = caller.service.runtime, sealed_run(caller), sealed_run(caller, first=OTHER)
    results = [replay_dry(caller, session_id), replay_dry(caller, session_id, other)]
    assert b'"completed"' in results[0] and b'"diverged"' in results[1]
    at = clock.now() + timedelta(days=DAYS + 1)
    assert run_at(caller, at)["archived_sessions"] == 2
    assert not runtime.blobs.list_objects(f"frames/{caller.key.workspace_id}/")
    assert [replay_dry(caller, session_id), replay_dry(caller, session_id, other)] == results


def replay_dry(caller: Caller, session_id: str, other: str | None = None) -> bytes:
    """Return the result of a dry replay, computed and not copied from an earlier one."""
    members = {} if other is None else {"against": {"session_id": other}}
    replay_id = post_replay(caller, session_id, **members)["id"]
    replay_all(caller)
    with caller.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(ReplayRow, replay_id)
        assert row.result_key is not None  # a copied result has none
        row.result_key = None
        db.add(row)
    shown = caller.get(f"/v1/replays/{replay_id}").json()
    steps = caller.get(f"/v1/replays/{replay_id}/steps").json()["data"]
    result = [shown[name] for name in ("status", "summary", "divergence", "progress", "error")]
    return orjson.dumps([*result, steps])


def test_frames_that_a_killed_run_moved_stay_when_a_held_session_is_deleted(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that comes while the next run archives the rest takes nothing that is kept nowhere else."""
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": DAYS}})
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    before = objects_of(runtime, canary, runtime.blobs.url)
    with runtime.database.transaction(write=True) as db:
        add_hold(db, Origin.operator(caller.key.workspace_id), kind="session", value=canary.session_id)
    delete_object = Blobs.delete

    def delete_and_end(blobs: Blobs, key: str) -> None:
        delete_object(blobs, key)
        if key in before:
            raise KeyboardInterrupt

    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(Blobs, "delete", delete_and_end)
        run_at_once(caller, days_later(runtime, canary, DAYS + 1))
    assert objects_of(runtime, canary, runtime.settings.cold_url) == before
    let_lease_run_out(runtime)
    list_objects = Blobs.list_objects

    def delete_session_then_list(blobs: Blobs, prefix: str) -> list[StoredObject]:
        if prefix.startswith("frames/") and session_row(runtime, canary.session_id).deleted_at is None:
            assert caller.request("DELETE", f"/v1/sessions/{canary.session_id}").status_code == 204
        return list_objects(blobs, prefix)

    with monkeypatch.context() as deleting:
        deleting.setattr(Blobs, "list_objects", delete_session_then_list)
        run_at_once(caller, days_later(runtime, canary, DAYS + 1))
    assert session_row(runtime, canary.session_id).deleted_at is not None
    kept = objects_of(runtime, canary, runtime.settings.cold_url)
    assert kept | objects_of(runtime, canary, runtime.blobs.url) == before


def run_at_once(caller: Caller, at: datetime) -> None:
    """Run retention in a caller's workspace, without a preview."""
    assert run_retention(caller.service.runtime, "tests", at=at, workspace_id=caller.key.workspace_id)


def test_a_purge_reaches_archived_frames(caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": DAYS}})
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    run_at(caller, days_later(runtime, canary, DAYS + 1))
    key = next(iter(objects_of(runtime, canary, runtime.settings.cold_url)))
    assert caller.delete(f"/v1/sessions/{canary.session_id}?hard=true").status_code == 204
    finish_purges(runtime)
    assert count_hits(runtime, canary.word) == 0
    with pytest.raises(KeyError):
        runtime.blobs.get(key)


@pytest.mark.parametrize("killed", ["in mid-copy", "after the copy", "before the mark"])
def test_a_killed_run_is_continued(caller: Caller, killed: str) -> None:
    """The stores are as a run leaves them that was killed at some instant."""
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": DAYS}})
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    pictures = read_frames(caller, canary)
    before, cold = objects_of(runtime, canary, runtime.blobs.url), Blobs(runtime.settings.cold_url)
    for key, data in before.items():
        cold.put(key, data[: len(data) // 2] if killed == "in mid-copy" else data)
        if killed == "before the mark":
            runtime.blobs.delete(key)
    assert read_frames(caller, canary) == pictures
    assert run_at(caller, days_later(runtime, canary, DAYS + 1))["archived_sessions"] == 1
    assert objects_of(runtime, canary, runtime.settings.cold_url) == before
    assert read_frames(caller, canary) == pictures and storage_of(caller, canary) == {"hot": 0, "cold": 1}


def test_nothing_is_deleted_while_the_cold_store_is_away(tmp_path: Path) -> None:
    blocked = tmp_path / "no-folder"
    runtime = make_runtime(tmp_path / "data", cold_url=str(tmp_path / "cold"))
    add_workspace(runtime)
    (session_id,) = seal(runtime, [Recording(frames=[0, 500])])
    before = {stored.key for stored in runtime.blobs.list_objects("frames/")}
    at = clock.now() + timedelta(days=100)
    blocked.write_text("a file, where a folder should be")
    report = run_retention(with_cold_store(runtime, str(blocked)), "tests", at=at)
    assert report is not None and report.failures[0].subject == "frames to archive"
    assert {stored.key for stored in runtime.blobs.list_objects("frames/")} == before
    assert session_row(runtime, session_id).frames_archived_at is None
    report = run_retention(runtime, "tests", at=at)
    assert report is not None and report.counts[WORKSPACE, "archived_sessions"] == 1
    runtime.close()


def test_frames_of_a_store_that_is_not_mounted_are_not_archived(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path / "data")
    add_workspace(runtime)
    (session_id,) = seal(runtime, [Recording(frames=[0, 500])])
    folder, at = Path(runtime.blobs.url), clock.now() + timedelta(days=100)
    folder.rename(tmp_path / "mounted")
    folder.mkdir()
    report = run_retention(runtime, "tests", at=at)
    assert report is not None and (WORKSPACE, "archived_sessions") not in report.counts
    assert session_row(runtime, session_id).frames_archived_at is None
    folder.rmdir()
    (tmp_path / "mounted").rename(folder)
    report = run_retention(runtime, "tests", at=at)
    assert report is not None and report.counts[WORKSPACE, "archived_sessions"] == 1
    assert Blobs(runtime.settings.cold_url).list_objects("frames/")
    runtime.close()


@pytest.mark.parametrize("is_linked", [False, True])
def test_an_archive_in_the_place_of_the_frames_deletes_none(tmp_path: Path, is_linked: bool) -> None:
    runtime = make_runtime(tmp_path / "data")
    add_workspace(runtime)
    (session_id,) = seal(runtime, [Recording(frames=[0, 500])])
    before = runtime.blobs.list_objects("frames/")
    if is_linked:
        (tmp_path / "link").symlink_to(runtime.blobs.url)
    same = with_cold_store(runtime, str(tmp_path / "link") if is_linked else runtime.blobs.url)
    report = run_retention(same, "tests", at=clock.now() + timedelta(days=100))
    assert report is not None and "RECORDER_COLD_URL" in report.failures[0].error
    assert runtime.blobs.list_objects("frames/") == before and not runtime.blobs.list_objects("health/")
    assert session_row(runtime, session_id).frames_archived_at is None
    runtime.close()


def test_a_session_whose_frames_cannot_be_copied_stops_no_later_one(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "SESSIONS_AT_ONCE", 1)
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": DAYS}})
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    canaries = [recorded_canary(caller) for _ in range(3)]
    at = days_later(runtime, canaries[-1], DAYS + 1)
    blocked, *_ = objects_of(runtime, canaries[0], runtime.blobs.url)
    # A folder, where the copy of an object should be.
    folder = Path(runtime.settings.cold_url) / blocked
    folder.mkdir(parents=True)
    report = run_retention(runtime, "tests", at=at, workspace_id=workspace_id)
    assert report is not None and report.counts[workspace_id, "archived_sessions"] == 2
    (failure,) = report.failures
    assert failure.subject == "frames to archive"
    assert failure.error.startswith("Failed sessions to archive: 1.")
    assert [storage_of(caller, canary)["cold"] for canary in canaries] == [0, 1, 1]
    folder.rmdir()
    assert run_at(caller, at)["archived_sessions"] == 1


def test_an_object_that_was_not_copied_is_not_deleted(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": DAYS}})
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    before, at = objects_of(runtime, canary, runtime.blobs.url), days_later(runtime, canary, DAYS + 1)

    def miss(*_: object) -> bytes:
        raise KeyError

    with monkeypatch.context() as patched:
        # A store that misses for a moment an object which it lists.
        for name in ("get", "copy_from"):
            patched.setattr(Blobs, name, miss)
        run_retention(runtime, "tests", at=at, workspace_id=caller.key.workspace_id)
    assert objects_of(runtime, canary, runtime.blobs.url) == before
    assert storage_of(caller, canary) == {"hot": 1, "cold": 0}
    assert run_at(caller, at)["archived_sessions"] == 1


def test_frames_stay_where_their_copy_differs(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": DAYS}})
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    before, at = objects_of(runtime, canary, runtime.blobs.url), days_later(runtime, canary, DAYS + 1)
    put = Blobs.put
    with monkeypatch.context() as patched:
        # A store that loses the last byte of what it takes.
        patched.setattr(Blobs, "put", lambda store, key, data: put(store, key, data[:-1]))
        report = run_retention(runtime, "tests", at=at, workspace_id=caller.key.workspace_id)
    assert report is not None and [each.subject for each in report.failures] == ["frames to archive"]
    assert objects_of(runtime, canary, runtime.blobs.url) == before
    assert storage_of(caller, canary) == {"hot": 1, "cold": 0}


def test_no_copy_is_left_of_a_session_that_is_deleted_while_its_frames_move(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": DAYS}})
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    before, at = objects_of(runtime, canary, runtime.blobs.url), days_later(runtime, canary, DAYS + 1)
    put = Blobs.put

    def delete_after(store: Blobs, key: str, data: bytes) -> None:
        put(store, key, data)
        caller.delete(f"/v1/sessions/{canary.session_id}")

    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "put", delete_after)
        report = run_retention(runtime, "tests", at=at, workspace_id=caller.key.workspace_id)
    assert report is not None and (caller.key.workspace_id, "archived_sessions") not in report.counts
    assert objects_of(runtime, canary, runtime.blobs.url) == before
    assert objects_of(runtime, canary, runtime.settings.cold_url) == {}


@pytest.fixture
def s3() -> Iterator[EmulatedS3]:
    """A store that speaks like S3, in a process of its own."""
    with running_store("s3") as store, blobs_lead_to(store.url):
        assert isinstance(store, EmulatedS3)
        yield store


@pytest.mark.parametrize("storage_class", [None, "GLACIER_IR"])
def test_frames_in_a_bucket_move_to_another_prefix_or_class(
    s3: EmulatedS3, tmp_path: Path, storage_class: str | None
) -> None:
    runtime = make_runtime(
        tmp_path / "data",
        blob_url=f"s3://{BUCKET}/{storage_class}/frames",
        cold_url=f"s3://{BUCKET}/{storage_class}/cold",
        cold_storage_class=storage_class,
    )
    add_workspace(runtime)
    (session_id,) = seal(runtime, [Recording(frames=[0, 500])])
    (stored,) = runtime.blobs.list_objects("frames/")
    data, earlier = runtime.blobs.get(stored.key), len(s3.requests())
    report = run_retention(runtime, "tests", at=clock.now() + timedelta(days=100))
    assert report is not None and report.counts[WORKSPACE, "archived_sessions"] == 1
    # The store copies the object itself.
    reads = [each["request"] for each in s3.requests()[earlier:] if each["request"].startswith("GET /")]
    assert not [request for request in reads if stored.key in request]
    assert runtime.blobs.get(stored.key) == data
    assert session_row(runtime, session_id).frames_archived_at is not None
    kept = [len(Blobs(url).list_objects("frames/")) for url in (runtime.blobs.url, runtime.settings.cold_url)]
    assert kept == ([0, 1] if storage_class is None else [1, 0])
    if storage_class is not None:
        # The store lists the class of each object.
        infos = runtime.blobs._fs.find(runtime.blobs._root, detail=True, refresh=True)
        assert {info["StorageClass"] for info in infos.values() if info["type"] == "file"} >= {storage_class}
    runtime.close()


def with_cold_store(runtime: Runtime, cold_url: str) -> Runtime:
    """Return the deployment with another store of archived frames."""
    return replace(runtime, settings=replace(runtime.settings, cold_url=cold_url))


def test_a_changed_number_of_days_holds_at_the_next_run(caller: Caller) -> None:
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    at = days_later(runtime, canary, 5)
    assert "archived_sessions" not in run_at(caller, at)
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": 1}})
    assert run_at(caller, at)["archived_sessions"] == 1
    with runtime.database.transaction(write=False) as db:
        mine = select(SessionRow).where(SessionRow.workspace_id == caller.key.workspace_id)
        assert db.exec(mine.where(col(SessionRow.frames_archived_at).is_(None))).first() is None
        assert db.get_one(WorkspaceRow, caller.key.workspace_id).frames_days == 1
