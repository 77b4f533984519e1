"""Datasets that were made to do harm: nothing beside them is read or asked. docs/loading.md."""

import os
import shutil
import socket
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import recorder
from recorder.client.errors import ApiError
from recorder.datasets import service_source, sources
from recorder.datasets.errors import FileDamaged, ManifestRefused, ManifestUnreadable
from recorder.datasets.formats import CARD_BYTES
from recorder.loading import Dataset
from recorder.loading.cache import Cache
from recorder.loading.row_reader import read_dataset_file_rows


@pytest.fixture
def service(exports: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Yield a service that gives a manifest with addresses of its own choice, and counts other requests."""
    manifest = orjson.loads((exports["parquet"] / "manifest.json").read_bytes())
    state: dict[str, Any] = {"asked": [], "card": b""}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_card = self.path.endswith("/README.md") and state["card"]
            if not (is_card or self.path.endswith("/manifest")):
                state["asked"].append(self.path)
                self.send_response(302)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                return
            body = state["card"] if is_card else orjson.dumps(manifest)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    base = f"http://127.0.0.1:{server.server_port}"

    def opened(
        address: Callable[[str, str], str | None], folder: Path, card: bytes = b""
    ) -> tuple[Dataset, list[str]]:
        state["card"] = card
        for shard in manifest["shards"]:
            shard["url"] = address(base, shard["path"])
        manifest["card_url"] = address(base, "README.md")
        return recorder.open_export(f"{base}/v1/exports/exp_1/manifest", cache=folder), state["asked"]

    yield opened
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "address",
    [
        lambda base, path: f"{base}/admin/{path}",
        lambda base, path: f"{base}/v1/exports/exp_2/files/{path}",
        lambda base, path: f"{base}/v1/exports/exp_1/files/../{path}",
        lambda base, path: f"http://[{base}/v1/exports/exp_1/files/{path}",
    ],
)
def test_no_address_but_the_exports_own_is_asked(
    service: Callable[..., Any], tmp_path: Path, address: Callable[[str, str], str]
) -> None:
    unsigned, _ = service(lambda *_: None, tmp_path)
    dataset, requests = service(address, tmp_path)
    with pytest.raises(ManifestRefused, match="not the export's own"):
        dataset.polars()
    with pytest.raises(ManifestRefused, match="not the export's own"):  # also where they are signed anew
        unsigned.polars()
    with pytest.raises(ManifestRefused, match="not the export's own"):
        dataset.download(tmp_path / "set")
    assert requests == []
    assert not (tmp_path / "set" / "README.md").exists()


def test_another_host_in_an_address_is_not_asked(service: Callable[..., Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        base = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        dataset, requests = service(
            lambda _, path: f"{base}/prefix/v1/exports/exp_1/files/{path}?exp=1&sig=2", tmp_path
        )
        with pytest.raises(ApiError, match="302"):
            dataset.polars()
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):
            stranger.accept()
    assert requests
    for path in requests:
        assert path.startswith("/v1/exports/exp_1/files/data/") and path.endswith("?exp=1&sig=2")


def test_a_card_without_end_is_not_taken(service: Callable[..., Any], tmp_path: Path) -> None:
    for size, is_taken in ((CARD_BYTES, True), (CARD_BYTES + 1, False)):
        dataset, _ = service(
            lambda base, path: f"{base}/v1/exports/exp_1/files/{path}", tmp_path, b"#" * size
        )
        with pytest.raises(ApiError, match="302"):
            dataset.download(tmp_path / str(size))
        assert (tmp_path / str(size) / "README.md").exists() is is_taken


def test_a_redirect_is_not_followed(service: Callable[..., Any], tmp_path: Path) -> None:
    dataset, requests = service(lambda base, path: f"{base}/v1/exports/exp_1/files/{path}", tmp_path)
    with pytest.raises(ApiError, match="302"):
        dataset.polars()
    assert requests and "/elsewhere" not in requests


def test_a_manifest_that_never_ends_is_not_read_to_its_end(
    service: Callable[..., Any], exports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sources, service_source):
        monkeypatch.setattr(module, "MAX_BYTES", 1000)
    with pytest.raises(ManifestUnreadable):
        recorder.open_export(exports["parquet"])
    with pytest.raises(ManifestUnreadable):
        service(lambda base, path: base, tmp_path)


def test_a_link_out_of_the_folder_is_not_followed(exports: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(exports["jsonl"], tmp_path / "dataset"))
    path = next(folder.rglob("events-*"))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ManifestRefused, match="leads out of the dataset's folder"):
        recorder.open_export(folder).polars()


def test_arrow_buffers_are_not_taken_at_their_word(exports: dict[str, Path], tmp_path: Path) -> None:
    path = Path(shutil.copy(next(exports["arrow"].rglob("events-*")), tmp_path))
    data = bytearray(path.read_bytes())
    with pa.ipc.open_file(path) as file:
        offsets = file.get_batch(0).column("payload").buffers()[1].to_pybytes()
    at = bytes(data).index(offsets[:24])
    data[at + 8 : at + 16] = (2**40).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(FileDamaged):
        next(read_dataset_file_rows(path, "events"))


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
def test_every_damaged_byte_of_a_file_is_harmless_or_named(
    exports: dict[str, Path], tmp_path: Path, format: str
) -> None:
    path = Path(shutil.copy(next(exports[format].rglob("events-*")), tmp_path))
    data, damaged, count = path.read_bytes(), 0, 200
    for at in range(0, len(data), max(1, len(data) // count)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            list(read_dataset_file_rows(path, "events"))
        except FileDamaged:
            damaged += 1
    assert damaged > count / 4


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_file_that_is_gone_is_not_damaged(tmp_path: Path, format: str) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_dataset_file_rows(tmp_path / f"events-0.{format}", "events"))


def test_a_member_of_an_archive_is_as_long_as_it_lies_there(tmp_path: Path) -> None:
    path = tmp_path / "samples.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("ses_1-000000.png")
        member.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.map": "0,0",
            "GNU.sparse.size": str(2**40),
        }
        archive.addfile(member)
    with pytest.raises(FileDamaged):
        next(read_dataset_file_rows(path, "samples"))


def test_a_cache_without_a_home_belongs_to_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private_folder = tmp_path / f"recorder-cache-{os.getuid()}"
    assert Cache().folder == Cache().folder == private_folder
    assert stat.S_IMODE(private_folder.stat().st_mode) == 0o700
    private_folder.chmod(0o777)
    assert Cache().folder != private_folder, "others may have written in it"
    private_folder.rmdir()
    private_folder.symlink_to(tmp_path)
    assert private_folder not in (Cache().folder, Cache().folder.parent)
