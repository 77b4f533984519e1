"""Uploads while the store fails: no row without its object, and no object without a row after the sweep.

`RECORDER_FAULT_UPLOADS` gives the number of uploads; `make test-faults` does a few. The faults follow
`RECORDER_FAULT_SEED`, which a failure names.
"""

import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from PIL import Image
from sqlmodel import select

from recorder import clock
from recorder.governance.retention import ORPHANED, run_retention
from recorder.models.frame import FrameRow
from recorder.runtime import Runtime
from tests.faults.results import add_result, count_done
from tests.faults.test_export_kills import SEED
from tests.support.blob_stores import blob_url, blobs_lead_to
from tests.support.factories import Caller, multipart, running_app
from tests.support.faulty_proxy import faulty_calls
from tests.support.object_stores import running_store
from tests.support.sealed_sessions import make_runtime

UPLOADS = int(os.environ.get("RECORDER_FAULT_UPLOADS", "30"))  # noqa: TID251
_NAME = "uploads to a flaky store"
_SENDERS = 8
_FAILING_SHARE = 0.4
#: A client sends an upload again so often.
_PATIENCE = 20


def test_rows_and_objects_agree_though_the_store_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = count_done(_NAME)
    missing = max(UPLOADS - done, 1)
    urls = {"blob_url": blob_url("s3", "hot"), "cold_url": blob_url("s3", "cold")}
    with (
        running_store("s3") as store,
        faulty_calls(store.url, seed=SEED + done, share=_FAILING_SHARE) as line,
    ):
        # s3fs tries uploads five times; with botocore's own tries hardly one would be refused.
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        with blobs_lead_to(line.url), running_app(tmp_path, **urls) as service:
            caller = service.make_caller()
            with ThreadPoolExecutor(_SENDERS) as pool:
                tries = list(pool.map(upload_some, [caller] * _SENDERS, split(missing), range(_SENDERS)))
        # s3fs lists once, so that a sweep of many folders needs botocore's tries.
        monkeypatch.delenv("AWS_MAX_ATTEMPTS")
        with blobs_lead_to(line.url):
            runtime = make_runtime(tmp_path, **urls)
            left = store.objects("hot/frames/").keys() - named_keys(runtime)
            later = clock.now() + timedelta(hours=25)
            monkeypatch.setattr(clock, "now", lambda: later)
            swept = sweep(runtime, caller.key.workspace_id)
            require_right_objects(runtime, store.objects("hot/frames/"), uploads=missing)
            runtime.close()
    refused = sum(map(sum, tries)) - missing
    share = 1 - line.faults["none"] / line.calls
    print(
        f"{missing} uploads, {line.calls} calls of which {share:.0%} failed, {refused} answers of 503, "
        f"{len(left)} orphans, {swept} swept"
    )
    assert swept == len(left) and share > _FAILING_SHARE / 2
    figures = {"calls": line.calls, "faults": dict(line.faults), "refused": refused, "orphans": len(left)}
    add_result(_NAME, missing, seed=SEED, **figures)


def split(uploads: int) -> list[int]:
    """Return the number of uploads of each sender."""
    return [uploads // _SENDERS + (number < uploads % _SENDERS) for number in range(_SENDERS)]


def upload_some(caller: Caller, uploads: int, sender: int) -> list[int]:
    """Send uploads into a session of its own, each until it is acknowledged; return the tries of each."""
    chance = Random(f"{SEED} {sender}")
    session_id = caller.make_session()
    tries: list[int] = []
    data = b""
    for number in range(uploads):
        # Every tenth picture came before: the session keeps one object of it, the other is removed at once.
        data = data if number % 10 == 5 else draw_noise(chance)
        options = {
            "files": multipart([{"t_ms": number, "content_type": "image/png", "part": "p"}], p=data),
            "headers": {"Idempotency-Key": f"{sender}-{number}"},
        }
        statuses = [0]
        while statuses[-1] != 202:
            assert len(statuses) < _PATIENCE, f"seed {SEED}: {statuses}"
            answer = caller.request("POST", f"/v1/sessions/{session_id}/frames", **options)
            assert answer.status_code in (202, 503), f"seed {SEED}: {answer.text}"
            statuses.append(answer.status_code)
        tries.append(len(statuses) - 1)
    return tries


def draw_noise(chance: Random) -> bytes:
    """Return a PNG of about 10 kB that no other one equals."""
    file = io.BytesIO()
    Image.frombytes("RGB", (60, 60), chance.randbytes(60 * 60 * 3)).save(file, "PNG")
    return file.getvalue()


def named_keys(runtime: Runtime) -> set[str]:
    """Return the objects that rows name, by their keys in the bucket."""
    with runtime.database.transaction(write=False) as db:
        return {f"hot/{key}" for key in db.exec(select(FrameRow.object).distinct())}


def sweep(runtime: Runtime, workspace_id: str) -> int:
    """Run retention until nothing fails; return the number of orphans that went."""
    swept = 0
    for _ in range(_PATIENCE):
        report = run_retention(runtime, "tests", workspace_id=workspace_id)
        assert report is not None
        swept += report.counts[workspace_id, ORPHANED]
        if not report.failures:
            return swept
    raise AssertionError(f"seed {SEED}: {report.failures}")


def require_right_objects(runtime: Runtime, objects: dict[str, bytes], *, uploads: int) -> None:
    """Require that rows and objects name each other, and that every picture is the one that was sent."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(FrameRow)).all()
    assert len(rows) == uploads
    assert objects.keys() == {f"hot/{row.object}" for row in rows}, f"seed {SEED}"
    for row in rows:
        data = objects[f"hot/{row.object}"][row.offset : row.offset + row.length]
        assert hashlib.sha256(data).hexdigest() == row.sha256, f"seed {SEED}: {row.frame_id}"
