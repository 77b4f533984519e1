"""Object stores on this machine: S3 with STS (moto), Google's (gcp-storage-emulator), Azure's (Azurite)."""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from recorder.settings import extend_program_environment
from tests.support.databases import part_is_missing
from tests.support.ports import find_free_port

ROOT = Path(__file__).parents[2]
BUCKET = "datasets"
ACCOUNT = "devstoreaccount1"
#: What the emulators take for the service's own rights; Azurite's key is the one that its manual prints.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "SERVICE",
    "AWS_SECRET_ACCESS_KEY": "service",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AZURE_STORAGE_ACCOUNT_KEY": (
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    ),
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}
_START_SECONDS = 90.0


class EmulatedStore(ABC):
    """A running store, read directly: not through a proxy, and not through our code."""

    #: Settings that lead the service to it, but for the address.
    setting: str
    #: How the operator lists its bucket.
    listed: str

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def destination(self, prefix: str, **members: Any) -> dict[str, Any]:
        """Return the destination that names its bucket."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Store an object."""

    @abstractmethod
    def objects(self, prefix: str) -> dict[str, bytes]:
        """Return all objects below a prefix, by key."""

    def uploads(self) -> list[str]:
        """Return the keys of uploads that were begun and not ended, where the store shows them."""
        return []

    def chosen(self, url: str | None = None, *, is_listed: bool = True) -> dict[str, Any]:
        """Return the settings that lead the service to it, perhaps over another address."""
        return {self.setting: url or self.url, "export_buckets": (self.listed,) if is_listed else ()}


class EmulatedS3(EmulatedStore):
    """moto, with the log of what it was asked."""

    setting, listed = "s3_endpoint", f"s3://{BUCKET}"

    def __init__(self, url: str, log: Path) -> None:
        import botocore.session

        super().__init__(url)
        self._log = log
        keys = {"aws_access_key_id": "TEST", "aws_secret_access_key": "test"}
        session = botocore.session.get_session()
        self.client = session.create_client("s3", region_name="us-east-1", endpoint_url=url, **keys)
        self.client.create_bucket(Bucket=BUCKET)

    def destination(self, prefix: str, **members: Any) -> dict[str, Any]:
        return {"kind": "s3", "bucket": BUCKET, "prefix": prefix, **members}

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)

    def objects(self, prefix: str) -> dict[str, bytes]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return {key: self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}

    def uploads(self) -> list[str]:
        return [item["Key"] for item in self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests that it received so far."""
        return [orjson.loads(line) for line in self._log.read_bytes().splitlines()]


class EmulatedGcs(EmulatedStore):
    """gcp-storage-emulator; it ignores generation conditions."""

    setting, listed = "gcs_endpoint", f"gs://{BUCKET}"

    def __init__(self, url: str) -> None:
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        super().__init__(url)
        options = ClientOptions(api_endpoint=url)
        client = storage.Client("test", credentials=AnonymousCredentials(), client_options=options)
        self._bucket = client.create_bucket(BUCKET)

    def destination(self, prefix: str, **members: Any) -> dict[str, Any]:
        return {"kind": "gcs", "bucket": BUCKET, "prefix": prefix, **members}

    def put(self, key: str, data: bytes) -> None:
        self._bucket.blob(key).upload_from_string(data)

    def objects(self, prefix: str) -> dict[str, bytes]:
        # Not by the listed ones: their links lead to where they were uploaded through.
        names = [blob.name for blob in self._bucket.list_blobs(prefix=prefix)]
        return {name: self._bucket.blob(name).download_as_bytes() for name in names}


class EmulatedAzure(EmulatedStore):
    """Azurite."""

    setting, listed = "azure_endpoint", f"az://{ACCOUNT}/{BUCKET}"

    def __init__(self, url: str) -> None:
        from azure.storage.blob import BlobServiceClient

        super().__init__(url)
        key = {"account_name": ACCOUNT, "account_key": ENVIRONMENT["AZURE_STORAGE_ACCOUNT_KEY"]}
        self._container = BlobServiceClient(f"{url}/{ACCOUNT}", credential=key).create_container(BUCKET)

    def destination(self, prefix: str, **members: Any) -> dict[str, Any]:
        return {"kind": "azure_blob", "account": ACCOUNT, "container": BUCKET, "prefix": prefix, **members}

    def put(self, key: str, data: bytes) -> None:
        self._container.upload_blob(key, data)

    def objects(self, prefix: str) -> dict[str, bytes]:
        names = list(self._container.list_blob_names(name_starts_with=prefix))
        return {name: self._container.download_blob(name).readall() for name in names}


@contextmanager
def running_store(kind: str) -> Iterator[EmulatedStore]:
    """Yield the emulator of a kind of destination, with an empty bucket."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="recorder-store-") as folder:
        match kind:
            case "s3":
                log = Path(folder) / "requests"
                with _running([sys.executable, "-m", "tests.support.aws_server", str(port), str(log)], port):
                    yield EmulatedS3(url, log)
            case "gcs":
                command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--in-memory"]
                with _running([*command, "--host=127.0.0.1", f"--port={port}"], port):
                    yield EmulatedGcs(url)
            case _:
                # It sends how it is used to its maker, unless told not to.
                command = [_azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
                quiet = ["--disableTelemetry", "--silent", "--skipApiVersionCheck", "--location", folder]
                with _running([*command, *quiet], port):
                    yield EmulatedAzure(url)


@contextmanager
def _running(command: list[str], port: int, extra: Mapping[str, str] = ENVIRONMENT) -> Iterator[None]:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=extend_program_environment(extra),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process)
        yield
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"{process.args!r} does not answer")


def _azurite() -> str:
    """Return the path of the program: the one on PATH, or the one that `.ci/run` installs."""
    name = "azurite-blob"
    result = shutil.which(name) or shutil.which(name, path=str(Path(sys.prefix, "azurite/node_modules/.bin")))
    if result is None:
        part_is_missing("Azurite is not installed (npm install --prefix .venv/azurite azurite@3.37.0).")
    return result
