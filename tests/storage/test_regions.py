"""Data stay in their region: stores are marked at the first start and asked at each later one. Spec §1."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import pytest
from sqlmodel import select
from typer.testing import CliRunner

from recorder.access.workspaces import create_workspace
from recorder.cli import app
from recorder.models.workspace import DeploymentRow, WorkspaceRow
from recorder.runtime import Runtime
from recorder.setting_parsers import UnknownRegion
from recorder.settings import Settings
from recorder.storage.deployment import WrongRegion
from recorder.storage.known_content import StoreContentMissing
from recorder.storage.store_regions import StoreAway, StoreUnusable, require_store_marks
from tests.support.databases import create_database
from tests.support.export_runs import ask
from tests.support.recorded_sessions import execute
from tests.support.sealed_sessions import START, Recording, make_runtime, make_settings, seal


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Return settings of a new deployment in the US, on either engine."""
    if request.param == "sqlite":
        return make_settings(tmp_path)
    return make_settings(tmp_path, database_url=create_database(request.getfixturevalue("postgres")))


def open_and_close(settings: Settings, **changed: Any) -> None:
    """Check the regions as a start does."""
    Runtime.open(replace(settings, **changed)).close()


@pytest.mark.parametrize("store", ["blob", "lake", "export", "cold"])
def test_a_setting_with_an_address_of_no_store_is_named(tmp_path: Path, store: str) -> None:
    settings = make_settings(tmp_path)
    for url in ("bogus://x", "simplecache::bogus://x", *(["zip://x"] if store != "lake" else [])):
        with pytest.raises(
            StoreUnusable,
            match=f"^The store that RECORDER_{store.upper()}_URL names cannot be opened: .*[^.]\\.$",
        ):
            open_and_close(settings, **{f"{store}_url": url})


@pytest.mark.parametrize("store", ["blob", "lake", "export", "cold"])
@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "gs://",
        "az://",
        "abfs://",
        "s3:///folder",
        "s3:// ",
        "file://",
        "simplecache::s3://",
        "https://",
    ],
)
def test_an_address_without_a_bucket_is_refused_by_one_sentence(tmp_path: Path, store: str, url: str) -> None:
    with pytest.raises(StoreUnusable) as refused:
        open_and_close(make_settings(tmp_path), **{f"{store}_url": url})
    assert str(refused.value) == (
        f"The store that RECORDER_{store.upper()}_URL names cannot be opened: its address has no bucket; "
        "write it as s3://bucket/folder."
    )


def test_a_deployment_starts_again_in_its_own_region(settings: Settings) -> None:
    for _ in range(2):
        open_and_close(settings, region="eu")


def test_a_deployment_does_not_start_in_another_region(settings: Settings) -> None:
    open_and_close(settings, region="eu")
    with pytest.raises(
        WrongRegion, match=r"^The database belongs to the region eu, and RECORDER_REGION is us"
    ):
        open_and_close(settings)


@pytest.mark.parametrize(
    ("name", "store"),
    [
        ("blob_url", "The store of frames"),
        ("export_url", "The store of exports"),
        ("cold_url", "The store of archived frames"),
        ("lake_url", "The lake"),
    ],
)
def test_no_store_of_another_region_is_taken(tmp_path: Path, name: str, store: str) -> None:
    theirs = make_settings(tmp_path / "theirs", region="apac", cold_url=str(tmp_path / "theirs" / "cold"))
    open_and_close(theirs)
    ours = make_settings(tmp_path / "ours", **{name: getattr(theirs, name)})
    with pytest.raises(WrongRegion, match=f"^{store} belongs to the region apac"):
        open_and_close(ours)


def test_a_new_store_of_an_old_deployment_is_marked(tmp_path: Path) -> None:
    ours = make_settings(tmp_path / "ours")
    open_and_close(ours)
    open_and_close(ours, blob_url=str(tmp_path / "moved"))
    theirs = make_settings(tmp_path / "theirs", region="eu", blob_url=str(tmp_path / "moved"))
    with pytest.raises(WrongRegion):
        open_and_close(theirs)


def test_a_run_or_command_marks_no_store(tmp_path: Path) -> None:
    # A volume that is not mounted would become a new store, from which a purge removes nothing.
    settings = make_settings(tmp_path)
    open_and_close(settings)
    folders = [Path(getattr(settings, f"{name}_url")) for name in ("blob", "export", "cold", "lake")]
    for folder in folders:
        folder.rename(tmp_path / f"{folder.name}-mounted")
        folder.mkdir()
    Runtime.open(settings, create=False).close()
    with pytest.raises(StoreAway, match="RECORDER_BLOB_URL"):
        require_store_marks(settings)
    assert not any(path for folder in folders for path in folder.iterdir())
    open_and_close(settings)
    require_store_marks(settings)


@pytest.mark.parametrize("name", ["blob", "lake", "cold", "export"])
def test_no_start_takes_an_empty_folder_for_a_store_with_known_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    data = tmp_path / "data"
    runtime = make_runtime(data)
    seal(runtime, [Recording(frames=[0])])
    if name == "cold":
        execute(runtime, "UPDATE sessions SET frames_archived_at = sealed_at")
    if name == "export":
        ask(runtime, destination={"kind": "signed_url"})
        execute(runtime, "UPDATE exports SET status = 'completed'")
    runtime.close()
    folder = Path(getattr(runtime.settings, f"{name}_url"))
    folder.rename(tmp_path / "mounted")
    for is_there in (False, True):
        if is_there:
            folder.mkdir()
        with pytest.raises(StoreContentMissing, match=f"^The store that RECORDER_{name.upper()}_URL names"):
            open_and_close(runtime.settings)
    assert not any(folder.iterdir())
    folder.rmdir()
    (tmp_path / "mounted").rename(folder)
    open_and_close(runtime.settings)
    # Content that is lost is given up by a command of its own.
    folder.rename(tmp_path / "mounted")
    for variable in [variable for variable in os.environ if variable.startswith("RECORDER_")]:  # noqa: TID251
        monkeypatch.delenv(variable)
    words = ["db", "accept-stores", "--data", str(data), "--json"]
    for expected in ([f"RECORDER_{name.upper()}_URL"], []):
        accepted = CliRunner().invoke(app, words)
        assert accepted.exit_code == 0, accepted.output
        assert json.loads(accepted.stdout) == {"accepted": expected}
    open_and_close(runtime.settings)


@pytest.mark.parametrize("region", ["", "mars", "US", "eu-west-1"])
def test_what_is_no_region_is_refused(tmp_path: Path, region: str) -> None:
    with pytest.raises(UnknownRegion, match=r"^RECORDER_REGION takes one of us, eu, apac\.$"):
        open_and_close(make_settings(tmp_path), region=region)


def test_a_database_from_before_the_mark_tells_its_region_by_its_workspaces(settings: Settings) -> None:
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=True) as db:
        db.delete(db.get_one(DeploymentRow, 1))
        db.add(WorkspaceRow(id="wsp_old", name="old", region="eu", created_at=START))
    runtime.close()
    with pytest.raises(WrongRegion, match=r"^The database belongs to the region eu"):
        open_and_close(settings)


def test_a_workspace_of_another_region_cannot_be_made(settings: Settings) -> None:
    runtime = Runtime.open(settings)
    with pytest.raises(WrongRegion), runtime.database.transaction(write=True) as db:
        create_workspace(db, "acme", region="eu", secret=b"x")
    with runtime.database.transaction(write=False) as db:
        assert db.exec(select(WorkspaceRow)).all() == []
    runtime.close()


def test_a_store_that_is_away_is_asked_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings(tmp_path)
    Path(settings.blob_url).write_text("a file where a folder should be")
    open_and_close(settings)
    assert "The store of frames does not answer (Unavailable); its region was not checked" in caplog.text
    Path(settings.blob_url).unlink()
    open_and_close(settings)
    assert (Path(settings.blob_url) / "deployment.json").exists()


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as keeps objects in memory and answers with the location of the bucket."""

    protocol_version = "HTTP/1.1"  # clients wait for its 100 before they send an object
    location = ""
    objects: dict[str, bytes]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if "location" in query:
            xmlns = "http://s3.amazonaws.com/doc/2006-03-01/"
            text = f'<LocationConstraint xmlns="{xmlns}">{self.location}</LocationConstraint>'
            self._answer(200, text.encode())
        elif path in self.objects:
            self._answer(200, self.objects[path])
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")

    def do_HEAD(self) -> None:
        self._answer(200 if self.path in self.objects else 404, b"")

    def do_PUT(self) -> None:
        body = self.rfile.read(
            int(self.headers["x-amz-decoded-content-length"] or self.headers["content-length"])
        )
        self.objects[self.path.partition("?")[0]] = body
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def bucket() -> Iterator[type[Bucket]]:
    """Yield a bucket on the loopback; the environment alone leads to it."""
    handler = type("Handler", (Bucket,), {"objects": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    values = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "NO_PROXY": "127.0.0.1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        yield handler
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("location", "region"),
    [
        ("eu-west-1", "eu"),
        ("EU", "eu"),
        ("us-west-2", "us"),
        ("ap-south-1", "apac"),
        ("", "eu"),
        ("rack", "us"),
    ],
)
def test_a_bucket_of_the_region_is_taken(
    tmp_path: Path, bucket: type[Bucket], location: str, region: str
) -> None:
    bucket.location = location
    for _ in range(2):
        open_and_close(make_settings(tmp_path, blob_url=f"s3://frames/{tmp_path.name}", region=region))
    assert any(tmp_path.name in key for key in bucket.objects)


@pytest.mark.parametrize(
    ("location", "region"),
    [("eu-central-1", "eu"), ("EU", "eu"), ("ap-northeast-1", "apac"), ("ca-central-1", "ca-central-1")],
)
def test_a_bucket_that_lies_elsewhere_is_refused(
    tmp_path: Path, bucket: type[Bucket], location: str, region: str
) -> None:
    bucket.location = location
    message = (
        rf"^The store of frames \(its bucket\) belongs to the region {region}, and RECORDER_REGION is us"
    )
    with pytest.raises(WrongRegion, match=message):
        open_and_close(make_settings(tmp_path, blob_url=f"s3://frames/{tmp_path.name}"))
    assert not any(tmp_path.name in key for key in bucket.objects)
