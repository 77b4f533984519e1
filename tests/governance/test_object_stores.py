"""Archive, sweep, erasure and hard delete with blobs in Google's or Azure's store. Spec §8.3; contract §2."""

from datetime import timedelta
from pathlib import Path

import pytest

from recorder import clock
from recorder.governance.retention import ARCHIVED, ORPHANED, run_retention
from tests.governance.test_archive import read_frames, storage_of
from tests.governance.test_erasure import erase
from tests.governance.test_orphans import leave_orphan
from tests.support.blob_stores import blob_url, blobs_lead_to
from tests.support.completed_work import patch
from tests.support.factories import running_app
from tests.support.object_stores import EmulatedStore, running_store
from tests.support.purges import finish_purges, recorded_canary


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
