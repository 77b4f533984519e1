"""Blob stores in emulated buckets: the environment that leads the clients of fsspec to an emulator."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.object_stores import ACCOUNT, BUCKET, ENVIRONMENT

_ADDRESSES = {"s3": f"s3://{BUCKET}", "gcs": f"gs://{BUCKET}", "azure_blob": f"abfs://{BUCKET}"}


def blob_url(kind: str, prefix: str) -> str:
    """Return the address of a blob store in the bucket of an emulator."""
    return f"{_ADDRESSES[kind]}/{prefix}"


@contextmanager
def blobs_lead_to(url: str) -> Iterator[None]:
    """Let all blob stores of this process be in the emulator at an address while the block runs."""
    key = ENVIRONMENT["AZURE_STORAGE_ACCOUNT_KEY"]
    azure = {"AccountName": ACCOUNT, "AccountKey": key, "BlobEndpoint": f"{url}/{ACCOUNT}"}
    environment = {
        **ENVIRONMENT,
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        # Of the lake's client, which reads the same variables.
        "AWS_ALLOW_HTTP": "true",
        "STORAGE_EMULATOR_HOST": url,
        # Google's client asks the machine that it runs on for credentials, unless it is kept from that.
        "NO_GCE_CHECK": "true",
        "AZURE_STORAGE_CONNECTION_STRING": ";".join(f"{name}={value}" for name, value in azure.items()),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        _forget_clients()
        try:
            yield
        finally:
            _forget_clients()


def _forget_clients() -> None:
    """Forget the clients, which fsspec keeps by their arguments, whatever address the environment gave."""
    # Imported here, after `ENVIRONMENT` is set: gcsfs reads it when it is imported.
    from adlfs import AzureBlobFileSystem
    from gcsfs import GCSFileSystem
    from s3fs import S3FileSystem

    for client in (S3FileSystem, GCSFileSystem, AzureBlobFileSystem):
        client.clear_instance_cache()
