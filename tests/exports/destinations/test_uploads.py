"""Uploads that were cut short: a killed process leaves nothing that counts, the next run clears it away."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recorder.exports.destinations import open_destination_directory
from recorder.exports.runner.run import run_export
from recorder.models.operations import LeaseRow
from recorder.settings import extend_program_environment
from tests.exports.destinations.test_stores import require_right_objects, target_in
from tests.support.export_runs import ask
from tests.support.object_stores import BUCKET, ROOT, EmulatedS3
from tests.support.sealed_sessions import Recording, make_runtime, seal

# Small enough for a test; S3 takes no parts below 5 MB.
_KILLED = """
import os, random, signal, sys
from pathlib import Path
import recorder.exports.destinations.s3 as s3
import recorder.exports.writers as shards
from recorder.exports.runner.run import run_export
from tests.support.sealed_sessions import make_runtime
s3.PART_BYTES = 1_000
sent = s3.S3Store._send_part
def killed(self, *asked):
    sent(self, *asked)
    os.kill(os.getpid(), signal.SIGKILL)
s3.S3Store._send_part = killed
chosen = {"s3_endpoint": sys.argv[3], "export_buckets": ("s3://datasets",)}
run_export(make_runtime(Path(sys.argv[1]), **chosen), sys.argv[2], owner="killed")
"""


def test_a_run_killed_in_mid_upload_is_carried_on_and_leaves_no_upload(
    s3: EmulatedS3, tmp_path: Path
) -> None:
    runtime = make_runtime(tmp_path, **s3.chosen())
    seal(runtime, [Recording(frames=[0, 100]) for _ in range(4)])
    row = ask(runtime, destination=s3.destination("killed"))
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), row.id, s3.url],
        cwd=ROOT,
        env=extend_program_environment({}),
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(s3.uploads()) == 1 and s3.objects("killed") == {}
    with runtime.database.transaction(write=True) as db:
        lease = db.get_one(LeaseRow, f"export:{row.id}")
        lease.expires_ms = 0
        db.add(lease)
    done = run_export(runtime, row.id, owner="next")
    assert (done.status, done.attempt) == ("completed", 2), done.error
    require_right_objects(s3, f"killed/{row.id}")
    assert s3.uploads() == []


def test_finishing_ends_the_uploads_of_this_export_alone(s3: EmulatedS3, tmp_path: Path) -> None:
    target = target_in(s3, tmp_path, prefix="ended")
    others = f"ended/{target.export_id}-other/data/a"
    for key in (f"{target.root}/data/a", others):
        s3.client.create_multipart_upload(Bucket=BUCKET, Key=key)
    open_destination_directory(target).remove_unfinished_files()
    assert s3.uploads() == [others]
    for upload in s3.client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]:
        s3.client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])


def test_an_upload_that_fails_is_ended_at_once(
    s3: EmulatedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.exports.destinations.s3.PART_BYTES", 1_000)
    monkeypatch.setattr("os.pread", lambda *_: 1 / 0)
    target = target_in(s3, tmp_path, prefix="failing")
    with pytest.raises(ZeroDivisionError), open_destination_directory(target).create("data/a") as file:
        file.write(os.urandom(2_000))
    assert s3.uploads() == [] and s3.objects("failing") == {}
