"""`recorder backup`, `restore` and `audit export`, as the shell calls them; killed, and to a store."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from typer.testing import CliRunner

from recorder import clock
from recorder.access.workspaces import create_workspace
from recorder.cli import app as command_line
from recorder.cli.backups import _describe_restored_changes
from recorder.doctor.machine import check_backups
from recorder.governance.backup.backup_records import read_backup_records
from recorder.governance.backup.backup_store import BackupStore
from recorder.governance.backup.errors import (
    BackupBusy,
    BackupsAway,
    BackupStoreUnusable,
    NoBackup,
    NoSecret,
    OldBackupDamaged,
    RestoreBusy,
    RestoreTargetUnusable,
    TargetInsideDeployment,
)
from recorder.governance.backup.later_changes import AppliedChanges
from recorder.governance.backup.unfinished_restores import (
    hold_staged_folder,
    list_unfinished_restores,
    name_staged_folder,
)
from recorder.runtime import Runtime
from recorder.settings import extend_program_environment
from tests.support.object_stores import BUCKET, ENVIRONMENT, running_store
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, seal
from tests.support.small_disk import run_on_small_disk


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """Yield a deployment with a workspace and sealed sessions."""
    for name in [name for name in os.environ if name.startswith("RECORDER_")]:  # noqa: TID251
        monkeypatch.delenv(name)
    opened = make_runtime(tmp_path / "data")
    with opened.database.transaction(write=True) as db:
        create_workspace(db, "acme", region="us", secret=opened.settings.secret)
    seal(opened, [Recording(frames=[0, 500]) for _ in range(3)])
    yield opened
    opened.close()


def run(*words: str) -> Any:
    """Return a function that runs a command as the shell calls it."""
    return CliRunner().invoke(command_line, list(words))


def make_backup(runtime: Runtime, to: str, *words: str) -> dict[str, Any]:
    """Make a backup by the command; return what it prints."""
    done = run("backup", to, "--data", str(runtime.settings.data_dir), "--json", *words)
    assert done.exit_code == 0, done.output
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def test_a_backup_is_restored_with_the_secret_of_a_file(runtime: Runtime, tmp_path: Path) -> None:
    to, data = str(tmp_path / "backups"), str(runtime.settings.data_dir)
    made = make_backup(runtime, to)
    exported = run("audit", "export", "--data", data)
    (tmp_path / "audit.ndjson").write_text(exported.stdout)
    words = ["--data", str(tmp_path / "copy"), "--audit", str(tmp_path / "audit.ndjson"), "--json"]
    assert isinstance(run("restore", to, *words).exception, NoSecret)
    done = run("restore", to, *words, "--secret-file", f"{data}/secret")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["id"] == made["id"]
    assert (tmp_path / "copy" / "secret").read_bytes() == runtime.settings.secret
    assert (tmp_path / "copy" / "secret").stat().st_mode & 0o77 == 0
    listed = run("workspaces", "list", "--data", str(tmp_path / "copy"), "--json")
    assert [workspace["name"] for workspace in json.loads(listed.stdout)] == ["acme"]
    assert run("restore", to, *words, "--secret-file", f"{data}/secret").exception is not None


def test_a_backup_prints_a_summary_for_people(runtime: Runtime, tmp_path: Path) -> None:
    done = run("backup", str(tmp_path / "backups"), "--data", str(runtime.settings.data_dir))
    assert done.exit_code == 0, done.output
    assert "files" in done.stdout and "secret" in done.stderr
    assert " written, with manifest, in " in done.stderr and "Deleted" not in done.stderr
    kept = run("backup", str(tmp_path / "backups"), "--data", str(runtime.settings.data_dir), "--keep", "29")
    assert "Deleted 0 old backups." in kept.stderr


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (AppliedChanges(), "The audit log has no entry after the backup."),
        (AppliedChanges(entries=8), "8 later audit entries; none of them deletes, erases or revokes."),
        (
            AppliedChanges(entries=2, revoked_keys=1),
            "Applied 2 later audit entries: 0 deletions, 0 erasures, 1 revoked key.",
        ),
    ],
)
def test_a_restore_says_what_later_entries_did(changes: AppliedChanges, sentence: str) -> None:
    assert _describe_restored_changes(changes) == sentence


def test_a_target_that_cannot_take_backups_is_named(runtime: Runtime, tmp_path: Path) -> None:
    data = runtime.settings.data_dir
    (tmp_path / "file").write_text("a file, where a folder should be")
    blocked = run("backup", str(tmp_path / "file" / "x"), "--data", str(data))
    assert isinstance(blocked.exception, BackupStoreUnusable)
    assert f"{tmp_path}/file/x, cannot be used (Not a directory)" in str(blocked.exception)
    (tmp_path / "link").symlink_to(data)
    for inside in (data, data / "backups", tmp_path / "link" / "backups", data / "lake"):
        refused = run("backup", str(inside), "--data", str(data))
        assert isinstance(refused.exception, TargetInsideDeployment)
        assert str(refused.exception).startswith(f"{inside} is inside {data}")
    assert not (data / "backups").exists()


@pytest.mark.parametrize("to", ["nosuch://bucket/backups", "az://container/backups"])
def test_an_address_that_opens_no_store_is_named(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    # The address has an unknown scheme, or needs an account that this machine does not have.
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    refused = run("backup", to, "--data", str(runtime.settings.data_dir))
    assert isinstance(refused.exception, BackupStoreUnusable) and to in str(refused.exception)
    old = {"id": "bak_00000000000000000000000000", "to": to, "moment": "2020-01-01T00:00:00Z"}
    (runtime.settings.data_dir / "backups.json").write_text(json.dumps([old]))
    (finding,) = check_backups(runtime.settings)
    assert (finding.state, to in finding.message) == ("warning", True)


def test_a_disk_without_room_for_a_copy_of_the_database_is_named(runtime: Runtime, tmp_path: Path) -> None:
    data, to = runtime.settings.data_dir, tmp_path / "backups"
    words = ["-m", "recorder.cli", "backup", str(to), "--data", str(data)]
    done = run_on_small_disk(data / "tmp", "200k", words, timeout_s=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"cannot be copied to {data}/tmp" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize("is_newest", [False, True])
def test_a_damaged_backup_stops_no_later_one(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_newest: bool
) -> None:
    to, data = str(tmp_path / "backups"), str(runtime.settings.data_dir)
    damaged = make_backup(runtime, to)
    manifest = tmp_path / "backups" / "backups" / f"{damaged['id']}.json"
    whole = make_backup(runtime, to) if not is_newest else None
    manifest.write_text("{}")
    refused = run("backup", to, "--data", data, "--keep", "29")
    assert isinstance(refused.exception, OldBackupDamaged) and str(manifest) in str(refused.exception)
    (made, *others) = BackupStore(to).list_ids()
    assert made not in (damaged["id"], whole and whole["id"])
    assert others == [each["id"] for each in (whole, damaged) if each is not None]
    known = {record.id for record in read_backup_records(runtime.settings.data_dir)}
    assert known == {made, *others}
    # It is deleted with the others of its age, and with it what stopped the deletion of parts.
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + timedelta(days=31))
    assert make_backup(runtime, to, "--keep", "29")["deleted_backups"] == [made, *others]


def test_an_unknown_id_names_the_backups_that_exist(runtime: Runtime, tmp_path: Path) -> None:
    to, data = str(tmp_path / "backups"), str(runtime.settings.data_dir)
    made = make_backup(runtime, to)
    words = ["--data", str(tmp_path / "copy"), "--secret-file", f"{data}/secret"]
    for backup_id in ("bkp_x", "bak_00000000000000000000000000", f"../backups/{made['id']}"):
        refused = run("restore", to, "--backup", backup_id, *words)
        assert isinstance(refused.exception, NoBackup)
        assert f"No backup in {to} has this id; it holds {made['id']}." in str(refused.exception)


def test_old_backups_are_named_and_deleted(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = str(tmp_path / "backups")
    old = make_backup(runtime, to)
    assert [finding.state for finding in check_backups(runtime.settings)] == ["ok"]
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + timedelta(days=31))
    (finding,) = check_backups(runtime.settings)
    assert (finding.state, old["id"] in finding.message) == ("warning", True)
    assert make_backup(runtime, to, "--keep", "29")["deleted_backups"] == [old["id"]]
    assert [finding.state for finding in check_backups(runtime.settings)] == ["ok"]
    assert len(read_backup_records(runtime.settings.data_dir)) == 1


@pytest.mark.parametrize("wait_s", [0.4, 0.9, 1.4, 2.0])
def test_a_killed_backup_is_none_and_the_next_one_is_complete(
    runtime: Runtime, tmp_path: Path, wait_s: float
) -> None:
    to, data = str(tmp_path / "backups"), str(runtime.settings.data_dir)
    make_backup(runtime, to)
    for number in range(40):
        runtime.blobs.put(f"frames/{WORKSPACE}/ses_{number}/one.pack", os.urandom(100_000))
    seal(runtime, [Recording(frames=[0, 500], padding=20_000) for _ in range(30)])
    command = [sys.executable, "-m", "recorder.cli", "backup", to, "--data", data]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(wait_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    archive = BackupStore(to)
    for backup_id in archive.list_ids():
        for entry in archive.read_listing(archive.read_manifest(backup_id)):
            assert sum(map(len, archive.read_file(entry))) == entry.size
    with runtime.database.transaction(write=True) as db:
        db.connection().exec_driver_sql("UPDATE leases SET expires_ms = 0")
    made = make_backup(runtime, to)
    assert BackupStore(to).list_ids()[0] == made["id"]
    assert not [path for path in (runtime.settings.data_dir / "tmp").rglob("*") if path.is_file()]


def test_what_a_killed_restore_left_is_reported_and_removed_by_the_next(
    runtime: Runtime, tmp_path: Path
) -> None:
    to, secret = str(tmp_path / "backups"), f"{runtime.settings.data_dir}/secret"
    make_backup(runtime, to)
    words = ["restore", to, "--data", str(tmp_path / "copy"), "--secret-file", secret]
    process = subprocess.Popen([sys.executable, "-m", "recorder.cli", *words], stdout=subprocess.DEVNULL)
    while not (left := list(tmp_path.glob(".copy.restoring-*"))):
        assert process.poll() is None, "The restore ended before it was killed."
    process.send_signal(signal.SIGKILL)
    process.wait()
    settings = replace(runtime.settings, data_dir=tmp_path / "copy")
    findings = [finding for finding in check_backups(settings) if finding.state == "warning"]
    assert len(findings) == 1 and str(left[0]) in findings[0].message
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert not list(tmp_path.glob(".copy.restoring-*"))


def test_two_restores_to_one_folder_do_not_mix(runtime: Runtime, tmp_path: Path) -> None:
    to, copy = str(tmp_path / "backups"), tmp_path / "copy"
    make_backup(runtime, to)
    words = ["restore", to, "--data", str(copy), "--secret-file", f"{runtime.settings.data_dir}/secret"]
    at_work = tmp_path / ".copy.restoring-01"
    with hold_staged_folder(at_work, copy):
        refused = run(*words)
        assert isinstance(refused.exception, RestoreBusy)
        assert list_unfinished_restores(copy) == [] and list(tmp_path.glob(".copy.restoring-*")) == [at_work]
    done = run(*words)
    assert done.exit_code == 0, done.output


def test_of_restores_that_begin_at_once_one_is_carried_out(tmp_path: Path) -> None:
    contenders = 4
    for turn in range(30):
        data, together, ended = tmp_path / f"copy{turn}", Barrier(contenders), Barrier(contenders, timeout=5)

        def begin(data: Path = data, together: Barrier = together, ended: Barrier = ended) -> bool:
            staged = name_staged_folder(data)
            together.wait()
            try:
                with hold_staged_folder(staged, data):
                    ended.wait()
                    return staged.is_dir()
            except RestoreBusy:
                ended.wait()
                return False

        with ThreadPoolExecutor(contenders) as pool:
            restores = [pool.submit(begin) for _ in range(contenders)]
        assert sum(restore.result(timeout=20) for restore in restores) == 1


def test_a_restore_waits_while_another_one_begins(tmp_path: Path) -> None:
    staged = name_staged_folder(tmp_path / "copy")
    beginning = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(beginning, fcntl.LOCK_EX)

    def begin() -> bool:
        with hold_staged_folder(staged, tmp_path / "copy"):
            return staged.is_dir()

    with ThreadPoolExecutor(1) as pool:
        restore = pool.submit(begin)
        wait([restore], timeout=0.5)
        has_begun = staged.exists() or restore.done()
        os.close(beginning)
        assert (has_begun, restore.result(timeout=20)) == (False, True)


def test_a_folder_that_cannot_be_restored_to_is_named(runtime: Runtime, tmp_path: Path) -> None:
    to, secret = str(tmp_path / "backups"), f"{runtime.settings.data_dir}/secret"
    make_backup(runtime, to)
    refused = run("restore", to, "--data", "/proc/none/copy", "--secret-file", secret)
    assert isinstance(refused.exception, RestoreTargetUnusable)
    assert "/proc/none/copy cannot be written (No such file or directory)" in str(refused.exception)
    disk = tmp_path / "disk"
    words = ["restore", to, "--data", str(disk / "copy"), "--secret-file", secret]
    full = run_on_small_disk(disk, "300k", ["-m", "recorder.cli", *words], 120)
    sentence = " ".join(full.stderr.split())
    assert full.returncode == 1
    assert f"{disk}/copy cannot be written (No space left on device)" in sentence


def test_no_backup_is_written_under_the_mount_point_of_earlier_ones(runtime: Runtime, tmp_path: Path) -> None:
    to, data = tmp_path / "backups", str(runtime.settings.data_dir)
    made = make_backup(runtime, str(to))
    to.rename(tmp_path / "mounted")
    for is_there in (False, True):
        if is_there:
            to.mkdir()
        refused = run("backup", str(to), "--data", data)
        assert isinstance(refused.exception, BackupsAway) and str(to) in str(refused.exception)
        assert not list(to.glob("*"))
    assert [record.id for record in read_backup_records(runtime.settings.data_dir)] == [made["id"]]
    to.rmdir()
    (tmp_path / "mounted").rename(to)
    make_backup(runtime, str(to))
    shutil.rmtree(to)
    make_backup(runtime, str(to), "--start-over")


def test_one_backup_runs_at_a_time(runtime: Runtime, tmp_path: Path) -> None:
    to, data = str(tmp_path / "backups"), str(runtime.settings.data_dir)
    make_backup(runtime, to)
    with runtime.database.transaction(write=True) as db:
        later = clock.now_ms() + 60_000
        db.connection().exec_driver_sql(
            f"UPDATE leases SET owner = 'other', expires_ms = {later} WHERE name = 'backup'"
        )
    assert isinstance(run("backup", to, "--data", data).exception, BackupBusy)


def test_a_backup_to_a_store_is_restored(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_store("s3") as store:
        variables = {
            **ENVIRONMENT,
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        to = f"s3://{BUCKET}/backups"
        first = make_backup(runtime, to)
        second = make_backup(runtime, to)
        assert second["copied_bytes"] < first["copied_bytes"]
        # The copy keeps its own stores in the bucket too.
        for name in ("BLOB", "LAKE", "EXPORT"):
            monkeypatch.setenv(f"RECORDER_{name}_URL", f"s3://{BUCKET}/copy/{name.lower()}")
        data, secret = tmp_path / "copy", runtime.settings.data_dir / "secret"
        done = run("restore", to, "--data", str(data), "--secret-file", str(secret), "--json")
        assert done.exit_code == 0, done.output
        checked = run("doctor", "--data", str(data), "--json")
        contents = [finding for finding in json.loads(checked.stdout) if finding["check"] == "contents"]
        assert [finding["state"] for finding in contents] == ["ok"]
        # From stores in the bucket, back to a folder.
        again = run("backup", str(tmp_path / "local"), "--data", str(data), "--json")
        assert again.exit_code == 0, again.output
        assert extend_program_environment({})["AWS_ENDPOINT_URL"] == store.url
