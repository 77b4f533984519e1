"""Azure Blob Storage: created under a condition, compared by MD5. Spec §4.3, contract §5."""

import hashlib
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
from recorder.settings import read_azure_account_key

log = logging.getLogger("recorder.exports")

_SUBJECT = "The export destination"
_PIECE_BYTES = 4 * 1024 * 1024
_BLOCKS_AT_ONCE = 4


class AzureStore:
    """One container, opened with the service's own identity."""

    def __init__(self, target: ExportLocation, patience: StoreTimeouts) -> None:
        self._target = target
        with _translate_azure_errors(""):
            service = open_azure_client(target.account, target.endpoint, patience)
        self._container = service.get_container_client(target.bucket)

    def require_owner(self) -> None:
        """Check that the container takes files of this workspace."""
        if not self._target.is_trusted:
            require_bucket_owner(self, self._target.workspace_id)

    def put(self, staged: StoreUpload, key: str, *, replace: bool) -> None:
        """Upload a file, in blocks where it is large, and compare what the store then holds."""
        from azure.storage.blob import ContentSettings

        staged.file.seek(0)
        md5 = hashlib.file_digest(staged.file, lambda: hashlib.md5(usedforsecurity=False)).digest()
        staged.file.seek(0)
        with _translate_azure_errors(key):
            blob = self._container.get_blob_client(key)
            blob.upload_blob(
                staged.file,
                length=staged.size_bytes,
                overwrite=replace,
                validate_content=True,
                max_concurrency=_BLOCKS_AT_ONCE,
                metadata={"sha256": staged.sha256},
                content_settings=ContentSettings(content_md5=bytearray(md5)),
            )
            stored = blob.get_blob_properties()
        if stored.size != staged.size_bytes or bytes(stored.content_settings.content_md5 or b"") != md5:
            raise Damaged

    def size(self, key: str) -> int:
        """Return the size of an object."""
        with _translate_azure_errors(key):
            return int(self._container.get_blob_client(key).get_blob_properties().size)

    def get(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`."""
        with _translate_azure_errors(key):
            blob = self._container.get_blob_client(key)
            yield from blob.download_blob(offset=start, length=end - start).chunks()

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""
        with suppress(KeyError), _translate_azure_errors(key):
            self._container.get_blob_client(key).delete_blob()

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with a prefix."""
        with _translate_azure_errors(prefix):
            yield from self._container.list_blob_names(name_starts_with=prefix)

    def copy(self, key: str, source_key: str, *, sha256: str) -> bool:
        """Return False: a copy within Azure needs a signed address, which the service may not create."""
        return False

    def abort_uploads(self, prefix: str) -> None:
        """Do nothing: Azure deletes uncommitted blocks after a week, and when their blob is written."""

    def address(self, key: str) -> str:
        """Return the object's address for fsspec."""
        return f"abfs://{self._target.bucket}@{self._target.account}.dfs.core.windows.net/{key}"


@lru_cache(maxsize=64)
def open_azure_client(account: str, endpoint: str | None, patience: StoreTimeouts) -> Any:
    """Return a client with the service's identity, or with the account's key at the operator's endpoint."""
    from azure.storage.blob import BlobServiceClient, ExponentialRetry

    key = read_azure_account_key() if endpoint is not None else None
    return BlobServiceClient(
        f"https://{account}.blob.core.windows.net" if endpoint is None else f"{endpoint}/{account}",
        credential=_make_azure_identity() if key is None else {"account_name": account, "account_key": key},
        retry_policy=ExponentialRetry(
            initial_backoff=0, increment_base=2, retry_total=patience.attempts - 1, random_jitter_range=1
        ),
        connection_timeout=patience.connect_s,
        read_timeout=patience.read_s,
        max_single_put_size=PART_BYTES,
        max_block_size=PART_BYTES,
        min_large_block_upload_threshold=PART_BYTES + 1,
        max_single_get_size=_PIECE_BYTES,
        max_chunk_get_size=_PIECE_BYTES,
    )


def _make_azure_identity() -> Any:
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


@contextmanager
def _translate_azure_errors(key: str) -> Iterator[None]:
    from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
    from azure.identity import CredentialUnavailableError

    try:
        yield
    except CredentialUnavailableError as error:
        log.warning("the service has no Azure identity of its own; see docs/destinations.md")
        raise IdentityMissing("Azure") from error
    except ClientAuthenticationError as error:
        raise _convert_azure_error(error, key) from error
    except HttpResponseError as error:
        raise _convert_azure_error(error, key) from error
    except (AzureError, OSError) as error:
        raise Unavailable(_SUBJECT) from error


def _convert_azure_error(error: Any, key: str) -> Exception:
    code, status = str(getattr(error, "error_code", "") or ""), int(error.status_code or 401)
    if code in ("BlobAlreadyExists", "ConditionNotMet", "UnmodifiedConditionNotMet"):
        return AlreadyThere()
    if code in ("Md5Mismatch", "Crc64Mismatch", "InvalidBlockList"):
        return Damaged()
    if code == "ContainerNotFound":
        return InvalidDestination("There is no such container.", "/destination/container")
    if status == 404:
        return KeyError(key)
    if status >= 500 or status in (408, 429):
        return Unavailable(_SUBJECT)
    text = f"The container refuses writing ({code or status}); check its name and the rights given."
    return InvalidDestination(text)
