"""Google Cloud Storage: created under a generation condition, compared by CRC32C. Spec §4.3, contract §5."""

import base64
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from recorder.errors import IdentityMissing, InvalidDestination, Unavailable
from recorder.exports.destinations.base import (
    PART_BYTES,
    AlreadyThere,
    Damaged,
    ExportLocation,
    StoreTimeouts,
    StoreUpload,
)
from recorder.exports.destinations.object_store import require_bucket_owner

log = logging.getLogger("recorder.exports")

_SUBJECT = "The export destination"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_PIECE_BYTES = 4 * 1024 * 1024
_REFUSED = (400, 401, 403)
_MISSING = 404
_TAKEN = 412


class GcsStore:
    """One bucket, opened as the target's service account, or as the service's own."""

    def __init__(self, target: ExportLocation, patience: StoreTimeouts) -> None:
        self._target = target
        self._timeout = (patience.connect_s, patience.read_s)
        self._retry = _make_gcs_retry(patience)
        with _translate_gcs_errors(""):
            client = open_gcs_client(target.service_account, target.endpoint)
        self._client = client
        self._bucket = client.bucket(target.bucket)

    def require_owner(self) -> None:
        """Check that the bucket takes files of this workspace."""
        if not self._target.is_trusted:
            require_bucket_owner(self, self._target.workspace_id)

    def put(self, staged: StoreUpload, key: str, *, replace: bool) -> None:
        """Upload a file, in parts where it is large, and compare what the store then holds."""
        with _translate_gcs_errors(key):
            if not replace:
                # Before the bytes travel; the condition below decides.
                with suppress(KeyError):
                    self.size(key)
                    raise AlreadyThere
            blob = self._bucket.blob(key, chunk_size=PART_BYTES if staged.size_bytes > PART_BYTES else None)
            blob.metadata = {"sha256": staged.sha256}
            staged.file.seek(0)
            blob.upload_from_file(
                staged.file,
                size=staged.size_bytes,
                if_generation_match=None if replace else 0,
                checksum="crc32c",
                **self._make_wait_options(),
            )
            blob.reload(**self._make_wait_options())
        if (blob.size, blob.crc32c) != (staged.size_bytes, _compute_crc32c(staged)):
            raise Damaged

    def size(self, key: str) -> int:
        """Return the size of an object."""
        return int(self._load_blob_metadata(key).size)

    def get(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`."""
        blob = self._bucket.blob(key)
        while start < end:
            last = min(start + _PIECE_BYTES, end) - 1
            with _translate_gcs_errors(key):
                piece = blob.download_as_bytes(
                    start=start, end=last, raw_download=True, checksum=None, **self._make_wait_options()
                )
            if not piece:
                raise Unavailable(_SUBJECT)
            start += len(piece)
            yield piece

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""
        with suppress(KeyError), _translate_gcs_errors(key):
            self._bucket.blob(key).delete(**self._make_wait_options())

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with a prefix."""
        with _translate_gcs_errors(prefix):
            for blob in self._client.list_blobs(self._bucket, prefix=prefix, **self._make_wait_options()):
                yield blob.name

    def copy(self, key: str, source_key: str, *, sha256: str) -> bool:
        """Return False: Google has no SHA-256 of its objects, so the caller reads and hashes them."""
        return False

    def abort_uploads(self, prefix: str) -> None:
        """Do nothing: Google lists no unfinished uploads, deletes them after a week and charges nothing."""

    def address(self, key: str) -> str:
        """Return the object's address for fsspec."""
        return f"gs://{self._target.bucket}/{key}"

    def _load_blob_metadata(self, key: str) -> Any:
        blob = self._bucket.blob(key)
        with _translate_gcs_errors(key):
            blob.reload(**self._make_wait_options())
        return blob

    def _make_wait_options(self) -> dict[str, Any]:
        return {"timeout": self._timeout, "retry": self._retry}


@lru_cache(maxsize=64)
def open_gcs_client(service_account: str | None, endpoint: str | None) -> Any:
    """Return a client with the rights of the account; without any at the operator's endpoint."""
    from google.api_core.client_options import ClientOptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    if endpoint is not None:
        options = ClientOptions(api_endpoint=endpoint)
        return storage.Client("recorder", credentials=AnonymousCredentials(), client_options=options)
    return storage.Client("recorder", credentials=load_gcs_credentials(service_account))


def load_gcs_credentials(service_account: str | None) -> Any:
    """Return the service's own identity (of a workload, federated or not), or that of the account."""
    import google.auth
    from google.auth import impersonated_credentials

    identity, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    if service_account is None:
        return identity
    return impersonated_credentials.Credentials(
        identity, service_account, target_scopes=[_SCOPE], lifetime=3600
    )


def _make_gcs_retry(patience: StoreTimeouts) -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY

    if patience.attempts == 1:
        return None
    return DEFAULT_RETRY.with_delay(initial=0.2, maximum=10).with_timeout(patience.read_s)


def _compute_crc32c(staged: StoreUpload) -> str:
    import google_crc32c

    digest = google_crc32c.Checksum()
    staged.file.seek(0)
    while piece := staged.file.read(PART_BYTES):
        digest.update(piece)
    return base64.b64encode(digest.digest()).decode()


@contextmanager
def _translate_gcs_errors(key: str) -> Iterator[None]:
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from requests.exceptions import RequestException

    try:
        yield
    except DataCorruption as error:
        raise Damaged from error
    except InvalidResponse as error:
        raise _convert_gcs_error(error.response.status_code, key) from error
    except GoogleAPICallError as error:
        raise _convert_gcs_error(int(error.code or 500), key) from error
    except DefaultCredentialsError as error:
        log.warning("the service has no Google credentials of its own; see docs/destinations.md")
        raise IdentityMissing("Google Cloud") from error
    except RefreshError as error:
        if error.retryable:
            raise Unavailable(_SUBJECT) from error
        text = "The service may not act as this service account; let it create tokens for the account."
        raise InvalidDestination(text, "/destination/service_account") from error
    except (GoogleAuthError, RetryError, RequestException, OSError) as error:
        raise Unavailable(_SUBJECT) from error


def _convert_gcs_error(status: int, key: str) -> Exception:
    if status == _TAKEN:
        return AlreadyThere()
    if status == _MISSING:
        return KeyError(key)
    if status in _REFUSED:
        return InvalidDestination("The bucket refuses writing; check its name and the account's rights.")
    return Unavailable(_SUBJECT)
