"""Objects by key: whole or not at all, durable before `put` returns. Design §3."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from recorder import clock
from recorder.errors import Unavailable
from recorder.storage.blobs import Blobs
from tests.support.blob_stores import blob_url, blobs_lead_to
from tests.support.synced_files import note_syncs
from tests.support.time_zones import far_time_zone

__all__ = ["far_time_zone"]


@pytest.fixture(params=["folder", "fsspec"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Blobs]:
    """Yield a store in a folder, and one that fsspec reaches by an address."""
    if request.param == "folder":
        yield Blobs(str(tmp_path / "blobs"))
        return
    memory = Blobs(f"memory://{tmp_path.name}")
    yield memory
    for key in list(memory.keys("")):
        memory.delete(key)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of the files and folders that were written to the disk, in order."""
    return note_syncs(monkeypatch)


def test_an_object_reads_back_whole_and_in_parts(blobs: Blobs) -> None:
    blobs.put("frames/a/b.pack", b"0123456789")
    assert blobs.get("frames/a/b.pack") == b"0123456789"
    assert blobs.get("frames/a/b.pack", 3, 4) == b"3456"
    assert blobs.get("frames/a/b.pack", 8) == b"89"


def test_a_missing_object_is_a_key_error(blobs: Blobs) -> None:
    with pytest.raises(KeyError):
        blobs.get("frames/none")
    blobs.delete("frames/none")


def test_keys_are_listed_below_a_prefix(blobs: Blobs) -> None:
    for key in ("frames/a/1", "frames/a/2", "frames/b/1", "plans/1"):
        blobs.put(key, b"x")
    assert sorted(blobs.keys("frames/a")) == ["frames/a/1", "frames/a/2"]
    assert sorted(blobs.keys("frames")) == ["frames/a/1", "frames/a/2", "frames/b/1"]
    assert list(blobs.keys("nothing")) == []


@pytest.mark.usefixtures("far_time_zone")
def test_objects_are_as_old_as_they_are_in_any_time_zone(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path))
    blobs.put("frames/a/1", b"one")
    hour = timedelta(hours=1)
    assert blobs.list_unchanged("frames/", since=clock.now() + hour) == [("frames/a/1", 3)]
    assert blobs.list_unchanged("frames/", since=clock.now() - hour) == []


def test_a_deleted_object_is_gone(blobs: Blobs) -> None:
    blobs.put("a", b"x")
    blobs.delete("a")
    assert list(blobs.keys("")) == []


def test_ping_leaves_nothing_behind(blobs: Blobs) -> None:
    blobs.ping()
    assert list(blobs.keys("")) == []


def test_a_reader_never_sees_half_an_object(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path))
    sizes = {1_000_000, 2_000_000}
    blobs.put("a", b"x" * 1_000_000)
    seen: set[int] = set()
    writing = threading.Thread(target=lambda: [blobs.put("a", b"y" * size) for size in sorted(sizes) * 10])
    writing.start()
    while writing.is_alive():
        seen.add(len(blobs.get("a")))
    writing.join()
    assert seen <= sizes


def test_a_put_syncs_the_file_and_every_folder_it_changed(tmp_path: Path, synced: list[str]) -> None:
    Blobs(str(tmp_path / "blobs")).put("frames/a/b.pack", b"x")
    below = tmp_path / "blobs"
    *above, file, folder = synced
    assert Path(file).name.startswith(".b.pack.") and folder == str(below / "frames/a")
    assert {str(path) for path in (tmp_path, below, below / "frames")} <= set(above)
    synced.clear()
    Blobs(str(tmp_path / "blobs")).put("frames/a/c.pack", b"x")
    assert synced[1:] == [str(below / "frames/a")]
    synced.clear()
    Blobs(str(tmp_path / "blobs")).put("frames/d/c.pack", b"x")
    assert synced[::2] == [str(below / "frames"), str(below / "frames/d")]


def test_a_removal_syncs_the_folder_also_where_it_was_removed_before(
    tmp_path: Path, synced: list[str]
) -> None:
    blobs = Blobs(str(tmp_path))
    blobs.put("frames/a/b.pack", b"x")
    for size in (1, 0):
        synced.clear()
        assert blobs.delete_below("frames/a/") == size
        assert synced == [str(tmp_path / "frames")]


def test_parts_are_read_from_the_archive_as_from_the_store(tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    Blobs(archive).put("a", b"0123456789")
    both = Blobs(str(tmp_path / "store"), archive_url=archive)
    assert (both.get("a", 3, 4), both.get("a", 8), both.get("a")) == (b"3456", b"89", b"0123456789")


def test_temporary_files_of_writers_are_no_objects(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path))
    blobs.put("frames/a.pack", b"whole")
    (tmp_path / "frames" / ".a.pack.req_1").write_bytes(b"half")
    assert [(stored.key, stored.size) for stored in blobs.list_objects("frames/")] == [("frames/a.pack", 5)]


def test_a_large_object_is_synced_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def note_size(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fdatasync", note_size)
    parts = [bytes([number]) * size for number, size in enumerate((9_000_000, 1, 0, 3_500_000, 700_000))]
    blobs = Blobs(str(tmp_path))
    blobs.put_parts("a", parts)
    assert blobs.get("a") == b"".join(parts)
    assert synced[-1] == len(b"".join(parts))
    assert all(after - before < 8_000_000 for before, after in pairwise([0, *synced]))


def test_a_failed_put_leaves_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    blobs = Blobs(str(tmp_path))
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(Unavailable):
        blobs.put("a", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_put_that_fills_the_disk_is_refused(tmp_path: Path) -> None:
    # A process that may write 100,000 bytes to a file: the kernel takes a part of what is more.
    program = f"""
import resource, sys
from recorder.errors import Unavailable
from recorder.storage.blobs import Blobs
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
blobs = Blobs({str(tmp_path / "store")!r})
blobs.put("fits", bytes(100_000))
try:
    blobs.put("cut", bytes(150_000))
except Unavailable:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused"]
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["fits"]
    assert len(Blobs(str(tmp_path / "store")).get("fits")) == 100_000


def test_a_store_that_is_no_folder_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    blobs = Blobs(str(tmp_path / "file"))
    with pytest.raises(Unavailable):
        blobs.ping()


def test_a_bucket_that_takes_no_connections_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    # Nothing listens on this port.
    with blobs_lead_to("http://127.0.0.1:1"):
        blobs = Blobs(blob_url("s3", "hot"))
        for call in (
            lambda: blobs.put("frames/a", b"x"),
            lambda: blobs.get("frames/a"),
            lambda: blobs.delete("frames/a"),
            lambda: blobs.delete_below("frames/"),
            lambda: blobs.list_objects("frames/"),
            lambda: blobs.list_folders("frames/"),
        ):
            with pytest.raises(Unavailable):
                call()
