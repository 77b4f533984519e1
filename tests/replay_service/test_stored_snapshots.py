"""Snapshots that are near each other are read from the store with one request."""

from pathlib import Path

import pytest

from recorder.replay_service.recordings.stored_snapshots import SnapshotLocation, StoredSnapshots
from recorder.storage.blobs import Blobs


def test_near_snapshots_are_read_together_and_far_ones_alone(tmp_path: Path) -> None:
    blobs = Blobs(f"file://{tmp_path}")
    blobs.put("near", b"..firstsecond..")
    blobs.put("far", b"first" + bytes(1_000_000) + b"last")
    places = [
        SnapshotLocation("near", 2, 5),
        SnapshotLocation("near", 7, 6),
        SnapshotLocation("far", 0, 5),
        SnapshotLocation("far", 1_000_005, 4),
        SnapshotLocation("near", 7, None),
        SnapshotLocation("gone", 0, 1),
    ]
    snapshots = StoredSnapshots(blobs, places)
    with pytest.raises(KeyError):
        snapshots.read(places[5])
    assert [snapshots.read(snapshot) for snapshot in places[:5]] == [
        b"first", b"second", b"first", b"last", b"second..",
    ]  # fmt: skip
    blobs.delete("near")
    assert snapshots.read(places[0]) == b"first"  # the part is kept
    with pytest.raises(KeyError):
        snapshots.read(places[4])
