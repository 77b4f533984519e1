"""Deployments with data in object stores: archive, sweep, erasure, hard delete. Spec §8.3; contract §2."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from recorder import clock
from recorder.governance.retention import ARCHIVED, ORPHANED, run_retention
from tests.governance.test_archive import read_frames, storage_of
from tests.governance.test_erasure import erase
from tests.governance.test_orphans import leave_orphan
from tests.support.blob_stores import blob_url, blobs_lead_to
from tests.support.completed_work import completed_export, patch
from tests.support.factories import running_app
from tests.support.object_stores import EmulatedStore, running_store
from tests.support.purges import finish_purges, recorded_canary
from tests.support.stored_content import texts_of_file


def objects_by_tier(store: EmulatedStore) -> dict[str, list[bytes]]:
    """Return the bytes of the frame objects in the recordings' store and in the cold one."""
    objects = store.objects("")
    return {
        tier: [objects[key] for key in objects if key.startswith(f"{tier}/frames/")]
        for tier in ("hot", "cold")
    }


@pytest.mark.parametrize("kind", ["gcs", "azure_blob"])
def test_frames_are_archived_swept_and_purged(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {"blob_url": blob_url(kind, "hot"), "cold_url": blob_url(kind, "cold")}
    with running_store(kind) as store, blobs_lead_to(store.url), running_app(tmp_path, **urls) as service:
        caller, runtime = service.make_caller(), service.runtime
        erased, deleted, other = (recorded_canary(caller) for _ in range(3))
        pictures = read_frames(caller, other)
        patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": 1}})
        leave_orphan(urls["blob_url"], caller.key.workspace_id, other.session_id)
        later = clock.now() + timedelta(hours=25)
        monkeypatch.setattr(clock, "now", lambda: later)
        report = run_retention(runtime, "tests")
        assert report is not None and report.failures == []
        counts = {kind: count for (_, kind), count in report.counts.items()}
        assert (counts[ARCHIVED], counts[ORPHANED]) == (3, 1)
        tiers = objects_by_tier(store)
        assert (len(tiers["hot"]), len(tiers["cold"])) == (0, 3)
        assert storage_of(caller, other) == {"hot": 0, "cold": 1} and read_frames(caller, other) == pictures
        kept = [data for data in tiers["cold"] if other.word.encode() in data]
        assert erase(caller, erased.word)["status"] == "completed"
        assert caller.delete(f"/v1/sessions/{deleted.session_id}?hard=true").status_code == 204
        finish_purges(runtime)
        assert objects_by_tier(store) == {"hot": [], "cold": kept} and len(kept) == 1
        words = [erased.word.encode(), deleted.word.encode()]
        assert not any(word in data for data in store.objects("").values() for word in words)
        assert read_frames(caller, other) == pictures


def test_a_deployment_with_all_data_on_s3_records_exports_and_erases(tmp_path: Path) -> None:
    names = ("blob_url", "lake_url", "cold_url", "export_url")
    urls = {name: blob_url("s3", name) for name in names}
    with (
        running_store("s3") as store,
        blobs_lead_to(store.url),
        running_app(tmp_path, **urls, **store.chosen(is_listed=False)) as service,
    ):
        caller = service.make_caller()
        erased, other = recorded_canary(caller), recorded_canary(caller)
        pictures = read_frames(caller, other)
        export = completed_export(caller, format="webdataset", frame_sampling={"mode": "all"})
        assert export["status"] == "completed"
        assert {key.partition("/")[0] for key in store.objects("")} >= set(names)
        keys = [key for key, text in bucket_texts(store, tmp_path) if erased.word in text]
        assert {key.partition("/")[0] for key in keys} == {"blob_url", "lake_url", "export_url"}
        assert erase(caller, erased.word)["status"] == "completed"
        assert not [key for key, text in bucket_texts(store, tmp_path) if erased.word in text]
        assert [key for key, text in bucket_texts(store, tmp_path) if other.word in text]
        manifest = caller.get(f"/v1/exports/{export['id']}/manifest").json()
        assert (manifest["revision"], manifest["tombstones"]["erased"]) == (2, 1)
        assert read_frames(caller, other) == pictures
    assert not list(tmp_path.rglob("*.parquet")) and not list(tmp_path.rglob("*.pack"))


def bucket_texts(store: EmulatedStore, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the texts of all objects by key, also of those that Parquet, tar or zstd pack."""
    file = folder / "object"
    for key, data in store.objects("").items():
        packed = file.with_suffix("".join(Path(key).suffixes[-1:]))
        packed.write_bytes(data)
        yield from ((key, text) for text in texts_of_file(packed))
        packed.unlink()
