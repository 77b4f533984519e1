"""Opening an export from any place: folders, stores, signed addresses; what is refused. docs/loading.md."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import orjson
import polars as pl
import pytest

import recorder
from recorder import clock
from recorder.client import ApiError
from recorder.datasets.errors import AddressExpired, FileDamaged, FileGone, ManifestUnreadable
from recorder.datasets.service_source import KeyRefused
from recorder.errors import RecorderError
from recorder.exports.verify import verify_manifest
from recorder.loading import Dataset
from recorder.loading.cache import Cache
from tests.support.hosted_exports import Host
from tests.support.ports import find_free_port
from tests.support.unreliable_connections import UnreliableLine


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that lets two days pass."""
    then = clock.now() + timedelta(days=2)
    return lambda: monkeypatch.setattr(clock, "now", lambda: then)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return everything in a folder, by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_folder_a_manifest_and_an_address_open_the_same(
    exports: dict[str, Path], events: pl.DataFrame, tmp_path: Path
) -> None:
    folder = exports["parquet"]
    store = fsspec.filesystem("memory")
    store.put(f"{folder}/", "/somewhere", recursive=True)
    places: list[Any] = [folder, str(folder) + "/", folder / "manifest.json", f"file://{folder}"]
    for index in [*places, "memory://somewhere", "memory://somewhere/manifest.json"]:
        dataset = recorder.open_export(index, cache=tmp_path)
        assert dataset.polars().collect().equals(events)
    assert dataset.verify().problems == []
    assert (dataset.sessions, dataset.rows, dataset.frames) == (60, events.height, 120)
    assert repr(dataset).endswith(f"parquet, 60 sessions, {events.height} rows, 120 frames)")
    assert {shard.workflow for shard in dataset.shards("frames")} == {"checkout", "refund", "triage"}
    assert dataset.spec["split"] == {"by": "session", "validation": 0.2, "test": 0.2}


def test_options_open_a_private_store(exports: dict[str, Path], events: pl.DataFrame, tmp_path: Path) -> None:
    dataset = recorder.open_export(
        "dir://", storage_options={"path": str(exports["arrow"]), "target_protocol": "file"}, cache=tmp_path
    )
    assert dataset.polars().collect().height == events.height
    assert len(files_of(tmp_path)) == len(dataset.shards("events"))


def test_a_signed_address_opens_without_a_key_and_is_read_once(host: Host, tmp_path: Path) -> None:
    export = host.export()
    dataset = recorder.open_export(export["manifest_url"], cache=tmp_path)
    events = dataset.polars().collect()
    assert (events.height, "sig=" in repr(dataset.shards())) == (export["rows"], False)
    for file in host.folder(export).rglob("*.parquet"):
        file.unlink()
    assert recorder.open_export(export["manifest_url"], cache=tmp_path).polars().collect().equals(events)
    with pytest.raises(FileGone, match="keeps hosted files for 30 days"):
        dataset.polars("frames")


def test_a_proxy_of_the_environment_is_not_used_for_loopback(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{find_free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    export = host.export()
    dataset = recorder.open_export(export["manifest_url"], cache=tmp_path)
    assert dataset.polars().collect().height == export["rows"]


def test_addresses_that_are_over_are_signed_anew_with_a_key(
    host: Host, tmp_path: Path, later: Callable[[], None]
) -> None:
    export = host.export()
    url = f"{host.url}/v1/exports/{export['id']}/manifest"
    keyed = recorder.open_export(url, key=host.key, cache=tmp_path / "a")
    keyless = recorder.open_export(export["manifest_url"], cache=tmp_path / "b")
    later()
    assert keyed.polars().collect().height == export["rows"]
    with pytest.raises(AddressExpired, match=f"GET /v1/exports/{export['id']}"):
        keyless.polars()


def test_a_key_that_opens_nothing_is_named_as_the_argument_it_is(host: Host, tmp_path: Path) -> None:
    export = host.export()
    url = f"{host.url}/v1/exports/{export['id']}/manifest"
    with pytest.raises(KeyRefused, match=r"401 invalid_api_key: .* Check key= of open_export") as wrong:
        recorder.open_export(url, key="nsk_local_wrong", cache=tmp_path)
    assert isinstance(wrong.value, ApiError) and "nsk_local_wrong" not in str(wrong.value)
    with pytest.raises(KeyRefused, match="Pass an API key to open_export as key="):
        recorder.open_export(url, cache=tmp_path)
    with pytest.raises(KeyRefused, match="403 invalid_signature"):
        recorder.open_export(export["manifest_url"] + "0", cache=tmp_path)


def test_only_this_user_can_read_a_cache_that_a_verification_makes(host: Host, tmp_path: Path) -> None:
    dataset = recorder.open_export(host.export()["manifest_url"], cache=tmp_path / "cache")
    before = os.umask(0o022)
    try:
        assert dataset.verify().is_valid
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


def test_damaged_bytes_are_not_kept(host: Host, tmp_path: Path) -> None:
    export = host.export(format="arrow")
    file = next(host.folder(export).rglob("events-*.arrow"))
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(FileDamaged, match="nothing of it was kept"):
        recorder.open_export(export["manifest_url"], cache=tmp_path).polars()
    assert file.name not in " ".join(files_of(tmp_path))
    assert not list(tmp_path.rglob(".part-*"))


def test_a_download_is_the_export_byte_for_byte_and_goes_on_where_it_was_cut(
    host: Host, tmp_path: Path
) -> None:
    export = host.export(format="webdataset")
    moved: list[tuple[int, int]] = []
    dataset = recorder.open_export(export["manifest_url"])  # signed: the card too needs no key
    dataset.download(tmp_path / "set", on_progress=lambda *bytes: moved.append(bytes))
    assert files_of(tmp_path / "set") == files_of(host.folder(export))
    assert moved[-1][0] == moved[-1][1] == dataset.manifest["totals"]["bytes"]
    first = tmp_path / "set" / dataset.shards()[0].path
    first.write_bytes(b"half")
    kept = (tmp_path / "set" / dataset.shards()[1].path).stat().st_ino
    (tmp_path / "set" / "README.md").unlink()
    url = f"{host.url}/v1/exports/{export['id']}/manifest"
    recorder.open_export(url, key=host.key).download(tmp_path / "set")
    assert files_of(tmp_path / "set") == files_of(host.folder(export))
    assert (tmp_path / "set" / dataset.shards()[1].path).stat().st_ino == kept


def test_a_verification_names_why_the_service_refuses_a_manifest(
    host: Host, later: Callable[[], None]
) -> None:
    url = host.export()["manifest_url"]
    with pytest.raises(ManifestUnreadable, match="The service answered 403 invalid_signature"):
        verify_manifest(url + "0")
    later()
    with pytest.raises(ManifestUnreadable, match="The service answered 403 url_expired"):
        verify_manifest(url)


class _ShortLine(UnreliableLine):
    """Brings back so many bytes of each connection."""

    def __init__(self, url: str, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.cuts = 0
        super().__init__(url)

    def limit_answer(self) -> int:
        """Return the bytes of answers that a new connection passes on."""
        return self.most_bytes

    def note_cut(self) -> None:
        """Count the cuts."""
        self.cuts += 1


def test_a_download_goes_on_as_long_as_each_connection_brings_some_bytes(host: Host, tmp_path: Path) -> None:
    export = host.export(format="webdataset", frame_sampling={"mode": "all"})
    largest = max(path.stat().st_size for path in host.folder(export).rglob("*.tar"))
    line = _ShortLine(host.url, most_bytes=largest // 6)
    dataset = recorder.open_export(
        export["manifest_url"].replace(host.url, line.url), cache=tmp_path / "cache"
    )
    with closing(line):
        dataset.download(tmp_path / "set")
    assert files_of(tmp_path / "set") == files_of(host.folder(export))
    assert line.cuts > 5, "more than one round of attempts"


def test_many_may_fetch_one_file_at_once(exports: dict[str, Path], tmp_path: Path) -> None:
    dataset = recorder.open_export(exports["parquet"])
    shard = dataset.shards()[0]
    data = (exports["parquet"] / shard.path).read_bytes()
    chunks = [data[:10], data[10:]]
    threads = [threading.Thread(target=lambda: Cache(tmp_path).add(shard, iter(chunks))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files_of(tmp_path) == {f"{shard.sha256[:2]}/{shard.sha256}.parquet": data}


def hostile(exports: dict[str, Path], folder: Path, **changes: Any) -> Path:
    """Return a manifest with other members, and with changes of its first file."""
    manifest = orjson.loads((exports["parquet"] / "manifest.json").read_bytes())
    manifest["shards"][0] |= changes.pop("shard", {})
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest | changes))
    return folder


@pytest.mark.parametrize(
    "path",
    [
        "../secret.parquet",
        "/etc/secret.parquet",
        "data/workflow=a/../../../secret.parquet",
        "data\\workflow=a\\events-00000-of-00001.parquet",
        "C:/data/events-00000-of-00001.parquet",
        "data/workflow=a/events-00000-of-00001.parquet\0.parquet",
        "https://elsewhere.example/events-00000-of-00001.parquet",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(exports: dict[str, Path], tmp_path: Path, path: str) -> None:
    with pytest.raises(RecorderError, match="not written by this service") as refused:
        recorder.open_export(hostile(exports, tmp_path, shard={"path": path}))
    assert path not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"manifest_version": 2}, "version 2, this release reads 1. Upgrade"),
        ({"manifest_version": "1"}, "no number"),
        ({"format": "lance"}, "not written by this service"),
        ({"shards": []}, "does not list as many files"),
        ({"shard": {"url": "file:///etc/passwd"}}, "not HTTP"),
        ({"shard": {"rows": -1}}, "not written by this service"),
        ({"schema": {}}, "No manifest can be read"),
    ],
)
def test_a_manifest_that_cannot_be_followed_is_refused(
    exports: dict[str, Path], tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RecorderError, match=sentence):
        recorder.open_export(hostile(exports, tmp_path, **changes))


@pytest.mark.parametrize("text", [b"", b"[1]", b"{", b"null", b"\xff", b'{"manifest_version": 1}'])
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(RecorderError, match="No manifest can be read"):
        recorder.open_export(tmp_path)
    with pytest.raises(RecorderError, match=f"No manifest can be read in the folder {tmp_path}/nowhere"):
        recorder.open_export(tmp_path / "nowhere")


def test_a_source_that_is_no_address_is_refused() -> None:
    with pytest.raises(TypeError, match=r"open_export takes the path of a manifest .* of type NoneType"):
        recorder.open_export(None)  # type: ignore[arg-type]


def test_a_dataset_without_rows_has_none_in_any_form(host: Host, tmp_path: Path) -> None:
    export = host.export(filter={"tag": "nobody-has-it"})
    dataset = recorder.open_export(export["manifest_url"], cache=tmp_path)
    assert isinstance(dataset, Dataset)
    assert (dataset.shards(), len(dataset.torch()), list(dataset.torch())) == ([], 0, [])
    assert dataset.polars().collect().height == dataset.arrow().read_all().num_rows == 0
    assert dataset.verify().problems == []


def test_nothing_secret_is_shown(host: Host) -> None:
    url = f"{host.url}/v1/exports/{host.export()['id']}/manifest"
    dataset = recorder.open_export(url, key=host.key)
    assert host.key not in repr(dataset) + repr(dataset._source) + repr(dataset.torch()._files)


def test_the_library_alone_opens_loads_and_verifies(exports: dict[str, Path]) -> None:
    program = """
import sys
for name in ("sqlmodel", "sqlalchemy", "pydantic", "deltalake", "fastapi", "dagster", "networkx", "structlog",
             "s3fs", "gcsfs", "adlfs", "torch", "datasets", "webdataset"):
    sys.modules[name] = None
import recorder
for folder in sys.argv[1:]:
    dataset = recorder.open_export(folder)
    assert dataset.verify().is_valid and len(list(dataset.torch(split="train"))) > 0
    assert dataset.format == "webdataset" or dataset.polars().collect().height == dataset.rows
"""
    subprocess.run([sys.executable, "-c", program, *map(str, exports.values())], check=True)
