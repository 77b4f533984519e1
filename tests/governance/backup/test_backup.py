"""Backup while everything runs, and the restored copy. Contract §9."""

import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from recorder import clock
from recorder.governance.backup.backup_store import BackupStore
from recorder.governance.backup.create import create_backup
from recorder.governance.backup.errors import DamagedBackup, NoBackup
from recorder.governance.retention import ARCHIVED, run_retention
from recorder.sealing import Sealer
from recorder.storage.store_regions import StoreAway
from recorder.tenant import Tenant
from tests.support.backups import Deployments, answers, files_below, problems, with_service
from tests.support.completed_work import completed_export, patch, sealed_session, stopped_session
from tests.support.factories import Caller, Service, event, frame
from tests.support.http_graph_sessions import stopped_walk
from tests.support.rewritten_exports import hide_for_purge
from tests.support.sealing import seal_all


def test_a_restored_copy_answers_as_the_deployment_did(deployments: Deployments, caller: Caller) -> None:
    sealed = sealed_session(caller, metadata={"customer": "Ada"})
    export = completed_export(caller)
    stopped, recording = stopped_session(caller), caller.make_session()
    caller.add_events(recording, event(1), event(2))
    caller.add_frames(recording, frame(1))
    ids = (sealed, stopped, recording)
    before = answers(caller, *ids)
    report = deployments.back_up()
    assert (report.files > 10, report.copied_bytes > 0) == (True, True)
    with deployments.restored() as service:
        copy = with_service(caller, service)
        assert answers(copy, *ids) == before
        shards = copy.get(f"/v1/exports/{export['id']}/manifest").json()["shards"]
        assert all(service.client.get(shard["url"]).status_code == 200 for shard in shards)
        # Recording and sealing go on where they were.
        assert copy.add_events(recording, event(3)).status_code == 202
        assert copy.post(f"/v1/sessions/{recording}/stop").status_code == 200
        seal_all(copy.service.runtime)
        assert copy.get(f"/v1/sessions/{recording}").json()["status"] == "sealed"
        assert copy.get(f"/v1/sessions/{recording}").json()["event_count"] == 3
        settings = service.runtime.settings
    assert problems(settings) == []


@pytest.mark.parametrize("store", ["lake_url", "blob_url", "export_url"])
def test_no_backup_is_made_without_a_store_that_is_not_mounted(
    deployments: Deployments, caller: Caller, tmp_path: Path, store: str
) -> None:
    sealed_session(caller)
    made = deployments.back_up()
    folder = Path(getattr(caller.service.runtime.settings, store))
    folder.rename(tmp_path / "mounted")
    folder.mkdir()
    with pytest.raises(StoreAway, match=f"RECORDER_{store.upper()}"):
        deployments.back_up()
    assert BackupStore(deployments.to).list_ids() == [made.id]
    folder.rmdir()
    (tmp_path / "mounted").rename(folder)
    assert deployments.back_up().files == made.files


def test_a_backup_under_load_is_of_one_moment(deployments: Deployments, caller: Caller) -> None:
    known = [stopped_walk(caller, states) for states in ("abc", "abd", "abc")]
    seal_all(caller.service.runtime)
    stop, failures = threading.Event(), []

    def record() -> None:
        try:
            number = 0
            while not stop.is_set():
                number += 1
                session_id = caller.make_session(workflow=f"load_{number % 3}")
                for item in range(5):
                    assert caller.add_events(session_id, event(item), event(item, "fill")).status_code == 202
                caller.add_frames(session_id, frame(3))
                caller.post(f"/v1/sessions/{session_id}/stop")
        except BaseException as error:
            failures.append(error)

    def seal() -> None:
        sealer = Sealer(caller.service.runtime, owner="load")
        try:
            assert sealer.take()
            while not stop.is_set():
                if sealer.seal_batch() is None:
                    time.sleep(0.01)
            sealer.release()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (record, seal)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    before = answers(caller, *known)
    for number in range(3):
        deployments.back_up()
        if number < 2:
            time.sleep(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    live = {item["id"]: item for item in caller.get("/v1/sessions?limit=500").json()["data"]}
    with deployments.restored() as service:
        copy = with_service(caller, service)
        after = answers(copy, *known)
        assert {name: after[name] for name in after if "ses_" in name} == {
            name: before[name] for name in before if "ses_" in name
        }
        listed = copy.get("/v1/sessions?limit=500").json()["data"]
        assert len(known) < len(listed) <= len(live)
        for item in listed:
            events = copy.get(f"/v1/sessions/{item['id']}/events?limit=500").json()["data"]
            assert len(events) == item["event_count"] <= live[item["id"]]["event_count"]
        seal_all(copy.service.runtime)
        fresh = sealed_session(copy, workflow="load_1")
        assert copy.get(f"/v1/sessions/{fresh}").json()["status"] == "sealed"
        waiting = copy.get("/v1/sessions?status=stopped").json()["data"]
        assert waiting == []
        settings = service.runtime.settings
    assert problems(settings) == []


def test_unchanged_files_are_not_copied_again(deployments: Deployments, caller: Caller) -> None:
    for _ in range(3):
        sealed_session(caller)
    first = deployments.back_up()
    parts = set(files_below(Path(deployments.to, "parts")))
    sealed_session(caller)
    second = deployments.back_up()
    assert second.copied_bytes < first.copied_bytes or second.copied_bytes < second.bytes
    assert len(parts & set(files_below(Path(deployments.to, "parts")))) > len(parts) // 2
    archive = BackupStore(deployments.to)
    assert archive.list_ids() == [second.id, first.id]
    listed = {entry.key for entry in archive.read_listing(archive.read_manifest(second.id))}
    assert {entry.key for entry in archive.read_listing(archive.read_manifest(first.id))} - listed == set()


def read_folder(service: Service, session_id: str) -> dict[str, bytes]:
    """Return the objects of a session in the store of frames, by key."""
    blobs = service.runtime.blobs
    keys = [stored.key for stored in blobs.list_objects("frames/") if session_id in stored.key]
    return {key: blobs.get(key) for key in keys}


def test_archived_frames_are_backed_up(deployments: Deployments, caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": 1}})
    session_id, runtime = sealed_session(caller), caller.service.runtime
    before = answers(caller, session_id)
    report = run_retention(runtime, "tests", at=clock.now() + timedelta(days=2))
    assert report is not None and report.counts[caller.key.workspace_id, ARCHIVED] == 1
    assert not read_folder(caller.service, session_id)
    deployments.back_up()
    with deployments.restored() as service:
        restored = answers(with_service(caller, service), session_id)
    images = [path for path in before if path.endswith("/image")]
    assert images and [restored[path] for path in images] == [before[path] for path in images]


def test_large_and_replaced_files_are_restored_byte_by_byte(deployments: Deployments, caller: Caller) -> None:
    session_id, blobs = caller.make_session(), caller.service.runtime.blobs
    folder = f"frames/{caller.key.workspace_id}/{session_id}/"
    blobs.put(f"{folder}frm_large.pack", os.urandom(40_000_000))
    blobs.put(f"{folder}frm_same_size.pack", b"first")
    deployments.back_up()
    time.sleep(0.01)
    blobs.put(f"{folder}frm_same_size.pack", b"again")
    for part in Path(deployments.to, "parts").rglob("*"):
        if part.is_file() and part.stat().st_size == 16 * 1024 * 1024:
            part.unlink()  # a later backup stores what is missing
    deployments.back_up()
    before = read_folder(caller.service, session_id)
    with deployments.restored() as service:
        assert read_folder(service, session_id) == before


def test_all_of_many_objects_are_restored(deployments: Deployments, caller: Caller) -> None:
    session_id, settings = caller.make_session(), caller.service.runtime.settings
    folder = Path(settings.blob_url, "frames", caller.key.workspace_id, session_id)
    folder.mkdir(parents=True)
    for number in range(2_001):
        (folder / f"frm_{number}.pack").write_bytes(b"the same part")
    deployments.back_up()
    with deployments.restored() as service:
        assert len(read_folder(service, session_id)) == 2_001


def test_a_session_whose_purge_has_begun_is_left_out(deployments: Deployments, caller: Caller) -> None:
    session_id, kept = sealed_session(caller), sealed_session(caller)
    hide_for_purge(caller.service.runtime, session_id)
    assert read_folder(caller.service, session_id)
    deployments.back_up()
    archive = BackupStore(deployments.to)
    keys = [entry.key for entry in archive.read_listing(archive.read_manifest())]
    assert any(kept in key for key in keys) and not any(session_id in key for key in keys)


def test_a_backup_holds_no_secret_and_keeps_the_region(deployments: Deployments, caller: Caller) -> None:
    sealed_session(caller)
    deployments.back_up()
    secret = caller.service.runtime.settings.secret
    for path in Path(deployments.to).rglob("*"):
        assert not (path.is_file() and secret in path.read_bytes())
    assert BackupStore(deployments.to).read_manifest().region == "us"


def test_parts_of_removed_sessions_leave_with_the_last_backup_of_them(
    deployments: Deployments, caller: Caller
) -> None:
    session_id = caller.make_session()
    caller.add_frames(session_id, frame(1, 77))
    deployments.back_up()
    picture = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"][0]["sha256"]
    assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
    time.sleep(0.01)
    report = deployments.back_up()
    listed = BackupStore(deployments.to)
    keys = [entry.key for entry in listed.read_listing(listed.read_manifest(report.id))]
    assert picture and not [key for key in keys if session_id in key]


def test_an_interrupted_backup_is_none(
    deployments: Deployments, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed_session(caller)

    class Interrupted(BaseException):
        """The process is killed."""

    def interrupt(step: str) -> None:
        if step == "objects":
            raise Interrupted

    with pytest.raises(Interrupted):
        deployments.back_up(on_step=interrupt)
    with pytest.raises(NoBackup):
        deployments.restore()
    complete = deployments.back_up()
    sealed_session(caller)
    with pytest.raises(Interrupted):
        deployments.back_up(on_step=interrupt)
    _, report = deployments.restore()
    assert report.id == complete.id


def test_a_damaged_part_is_refused_with_nothing_written(deployments: Deployments, caller: Caller) -> None:
    sealed_session(caller)
    deployments.back_up()
    parts = [path for path in Path(deployments.to, "parts").rglob("*") if path.is_file()]
    for path in parts[:: max(1, len(parts) // 5)]:
        content = path.read_bytes()
        for damaged in (content[:-1], bytes([content[0] ^ 1]) + content[1:]):
            path.write_bytes(damaged)
            with pytest.raises(DamagedBackup):
                deployments.restore("damaged")
        path.unlink()
        with pytest.raises(DamagedBackup):
            deployments.restore("damaged")
        path.write_bytes(content)
    assert sorted(path.name for path in deployments.folder.iterdir()) == ["backups", "data"]
    deployments.restore()


def test_a_backup_after_the_restore_of_an_older_one_holds_the_log_of_the_restored_lake(
    deployments: Deployments, caller: Caller
) -> None:
    kept = sealed_session(caller)
    older = deployments.back_up()
    lost = sealed_session(caller)
    deployments.back_up()
    with deployments.restored("second", backup_id=older.id) as service:
        copy = with_service(caller, service)
        # Its entries of the log have the numbers, and most of them the sizes, of those of the lost session.
        fresh = sealed_session(copy)
        expected = read_lake_log(copy)
        create_backup(service.runtime, deployments.to)
    with deployments.restored("third") as service:
        copy = with_service(caller, service)
        assert read_lake_log(copy) == expected
        table = service.runtime.lake.scan("sessions", Tenant(caller.key.workspace_id, "live"))
        assert set(table.select("session_id").collect()["session_id"]) == {kept, fresh}
        assert copy.get(f"/v1/sessions/{lost}").status_code == 404


def read_lake_log(caller: Caller) -> dict[str, bytes]:
    """Return the files of the log of a workspace's lake tables, by path."""
    lake = Path(caller.service.runtime.lake.url, caller.key.workspace_id)
    return {str(path.relative_to(lake)): path.read_bytes() for path in lake.rglob("_delta_log/*.json")}


def test_settings_of_a_workspace_are_restored(deployments: Deployments, caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": 7}})
    deployments.back_up()
    patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": 8}})
    with deployments.restored() as service:
        shown = with_service(caller, service).get("/v1/workspaces/current").json()
    assert shown["retention"]["frames_days"] == 7
