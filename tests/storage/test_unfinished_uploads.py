"""Uploads to S3 that a killed writer left: aborted below the stores of the service, and nowhere else."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from s3fs import S3FileSystem

from recorder.governance.maintenance_pass import maintain_lake
from recorder.runtime import Runtime
from recorder.storage import unfinished_uploads
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import LAYOUTS
from recorder.storage.unfinished_uploads import abort_unfinished_uploads
from tests.storage.test_lake import PLACE, rows
from tests.storage.test_lake_durability import PARTITION
from tests.support.blob_stores import blob_url, blobs_lead_to
from tests.support.object_stores import BUCKET, ROOT, EmulatedS3, running_store
from tests.support.sealed_sessions import make_runtime

#: A writer of the lake that is killed once a part of its file is uploaded.
_KILLED = textwrap.dedent(
    """
    import sys
    from tests.storage.test_unfinished_uploads import write_until_killed
    write_until_killed(sys.argv[1])
    """
)
#: Rows of a batch of that writer; each batch is a row group of more than a part.
_ROWS = 8_192
#: Every upload was begun then, as moto says.
BEGUN = datetime(2010, 11, 10, 20, 48, 33, tzinfo=UTC)


@pytest.fixture(scope="module")
def store() -> Iterator[EmulatedS3]:
    """Yield a bucket on this machine, which all stores of this process use."""
    with running_store("s3") as running, blobs_lead_to(running.url):
        assert isinstance(running, EmulatedS3)
        yield running


def begin_upload(store: EmulatedS3, key: str) -> None:
    """Upload one part, as a writer that is killed then."""
    upload = store.client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
    store.client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=b"part")


def write_until_killed(url: str) -> None:
    """Write large events to a file of the lake, and end this process by a signal in between."""

    def batches() -> Iterator[pa.RecordBatch]:
        schema = LAYOUTS["events"].schema
        payloads = pa.array(os.urandom(1_500).hex() for _ in range(_ROWS))
        for number in range(4):
            table = rows("ses_1", _ROWS).sort_by("seq")
            seq = pa.array(range(number * _ROWS, (number + 1) * _ROWS), schema.field("seq").type)
            for name, column in (("seq", seq), ("t_ms", seq), ("payload", payloads)):
                at = schema.get_field_index(name)
                table = table.set_column(at, schema.field(name), column.cast(schema.field(name).type))
            yield from table.combine_chunks().to_batches()
        os.kill(os.getpid(), signal.SIGKILL)

    Lake(url).write_file(*PLACE, batches(), **PARTITION, name="killed")


@pytest.fixture
def runtime(tmp_path: Path, store: EmulatedS3) -> Iterator[Runtime]:
    """Yield a deployment whose stores are in the bucket."""
    local = make_runtime(tmp_path)
    urls = {f"{name}_url": blob_url("s3", name) for name in ("lake", "blob", "cold", "export")}
    yield replace(local, settings=replace(local.settings, **urls))
    local.close()


def test_maintenance_aborts_uploads_below_the_stores_alone(runtime: Runtime, store: EmulatedS3) -> None:
    below = ["lake/events/part.parquet", "blob/frames/a", "cold/frames/a", "export/exp_1/shard"]
    others = ["lake-of-others/part", "part"]
    for key in (*below, *below[:1], *others):
        begin_upload(store, key)
    store.put("lake/kept", b"whole")
    objects = store.objects("lake/")
    assert maintain_lake(runtime, "tests", workspace_id="wsp_one").aborted_uploads == 0
    assert maintain_lake(runtime, "tests").aborted_uploads == len(below) + 1
    assert sorted(store.uploads()) == others
    assert store.objects("lake/") == objects
    assert maintain_lake(runtime, "tests").aborted_uploads == 0


def test_a_file_of_a_killed_writer_leaves_no_parts(runtime: Runtime, store: EmulatedS3) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, runtime.settings.lake_url], cwd=ROOT, check=False, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    (left,) = [key for key in store.uploads() if key.startswith("lake/")]
    assert "/killed-" in left and left not in store.objects("lake/")
    assert maintain_lake(runtime, "tests").aborted_uploads == 1
    assert left not in store.uploads()


def test_an_upload_that_may_be_under_way_stays(store: EmulatedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_upload(store, "young/part")
    monkeypatch.setattr(unfinished_uploads.clock, "now", lambda: BEGUN + unfinished_uploads.GRACE)
    assert abort_unfinished_uploads(blob_url("s3", "young")) == 0
    monkeypatch.undo()
    assert abort_unfinished_uploads(blob_url("s3", "young")) == 1


def test_an_upload_that_ended_meantime_is_passed_over(
    store: EmulatedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_upload(store, "ended/part")
    call = S3FileSystem.call_s3

    def end_after_listing(system: S3FileSystem, method: str, **named: Any) -> Any:
        page = call(system, method, **named)
        if method == "list_multipart_uploads":
            for upload in page["Uploads"]:
                names = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                store.client.abort_multipart_upload(Bucket=BUCKET, **names)
        return page

    monkeypatch.setattr(S3FileSystem, "call_s3", end_after_listing)
    assert abort_unfinished_uploads(blob_url("s3", "ended")) == 0


def test_the_uploads_of_all_pages_are_aborted_and_no_others(
    store: EmulatedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        begin_upload(store, f"paged/part-{number}")
    begin_upload(store, "paged-by-others/part")
    call = S3FileSystem.call_s3

    def list_two(system: S3FileSystem, method: str, **named: Any) -> Any:
        if method != "list_multipart_uploads":
            return call(system, method, **named)
        # A store that ignores the prefix, and lists two at a time.
        page = call(system, method, Bucket=named["Bucket"])
        listed = sorted(page["Uploads"], key=itemgetter("Key"))
        uploads = [each for each in listed if each["Key"] > named.get("KeyMarker", "")]
        last = uploads[:2][-1] if uploads else {"Key": "", "UploadId": ""}
        markers = {"NextKeyMarker": last["Key"], "NextUploadIdMarker": last["UploadId"]}
        return {"Uploads": uploads[:2], "IsTruncated": len(uploads) > 2, **markers}

    monkeypatch.setattr(S3FileSystem, "call_s3", list_two)
    assert abort_unfinished_uploads(blob_url("s3", "paged")) == 5
    assert "paged-by-others/part" in store.uploads()


def test_a_store_that_does_not_answer_is_left_to_the_next_pass(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    absent = replace(runtime, settings=replace(runtime.settings, cold_url="s3://absent/cold"))
    assert maintain_lake(absent, "tests").aborted_uploads == 0
    assert "unfinished uploads in s3://absent/cold stay until the next pass" in caplog.text


@pytest.mark.parametrize("url", ["/tmp/lake", "file:///tmp/lake", "gs://bucket/lake", "abfs://bucket/lake"])
def test_other_stores_have_no_such_uploads(url: str) -> None:
    assert abort_unfinished_uploads(url) == 0
