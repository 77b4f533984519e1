"""Sources of a dataset: a folder, a store that fsspec opens, an export's destination, or the service.

Every reader uses these: `open_export`, `recorder verify`, and the checks after an export. A manifest may be
hostile, so a source reads nothing outside the dataset, whatever the manifest lists.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import fsspec
import httpx
import stamina

from recorder.client.errors import ApiError, ClientError, Unreachable
from recorder.client.transport import api_error
from recorder.datasets.errors import (
    AddressExpired,
    DatasetChanged,
    FileGone,
    ManifestRefused,
    ManifestUnreadable,
)
from recorder.datasets.formats import CARD, MANIFEST
from recorder.datasets.manifest import MAX_BYTES, Shard, parse_manifest

#: Errors of `read_file` and `copy_file` that concern one file; a destination raises `Unavailable` too.
FILE_ERRORS = (FileGone, ManifestRefused, AddressExpired, DatasetChanged, ClientError, OSError)
_CHUNK_BYTES = 1024 * 1024
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_ATTEMPTS = 5
_TRANSIENT_STATUSES = (429, 502, 503, 504)
#: Bytes that a copy may have beyond the size in the manifest, so that a longer file shows.
_MORE_BYTES = 1


class KeyRefused(ApiError):
    """The service does not let this caller read the manifest."""

    def __init__(self, error: ApiError, *, has_key: bool) -> None:
        advice = (
            "Check key= of open_export: it takes an API key of this service that may read, such as "
            "key=os.environ['RECORDER_KEY']."
            if has_key
            else "Pass an API key to open_export as key=, or open a manifest_url that was signed just now."
        )
        self._advice = advice
        super().__init__(
            error.status, error.code, error.detail, request_id=error.request_id, errors=error.errors
        )

    def _message(self) -> str:
        request_id = f" ({self.request_id})" if self.request_id else ""
        return f"{self.status} {self.code}: {self.detail} {self._advice}{request_id}"


class Source(Protocol):
    """Reader of the manifest and the files of one dataset; it can be sent to another process."""

    @property
    def folder(self) -> Path | None:
        """Folder of the dataset on this machine; None elsewhere."""

    def read_manifest(self) -> bytes:
        """Return the bytes of the manifest.

        Raises:
            ManifestUnreadable: if there is none, or it is longer than any manifest of the service.
        """

    def read_file(self, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of a file; the caller bounds and checks them.

        Raises:
            FileGone: if there is no such file.
        """

    def read_card(self) -> bytes | None:
        """Return README.md; None where it cannot be read."""


class Directory(Protocol):
    """Methods of an export's destination that reading it needs."""

    def size(self, path: str) -> int:
        """Return the size of a file; KeyError if there is none."""

    def read_range(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`; KeyError if there is no such file."""


def open_source(
    address: str, *, key: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> Source:
    """Return the source that a path, an address of a store or an address of the service names.

    Args:
        address: path, address of a store, or address of the service.
        key: API key, for an address of the service.
        storage_options: options of fsspec for a private store.

    Raises:
        ManifestUnreadable: if no library opens the address.
    """
    if address.startswith(("http://", "https://")):
        return ServiceSource(address, key)
    if "://" not in address and "::" not in address:
        return FolderSource(Path(address).expanduser())
    try:
        files, path = fsspec.core.url_to_fs(address, **(storage_options or {}))
    except ImportError as error:
        raise ManifestUnreadable(f"a library is missing ({error})") from error
    except (ValueError, OSError) as error:
        raise ManifestUnreadable from error
    protocols = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
    return FolderSource(Path(path)) if "file" in protocols else StoreSource(files, path)


def copy_file(source: Source, shard: Shard, folder: Path) -> Path:
    """Return the file itself where it is on this machine, else a copy in `folder`.

    A copy has at most one byte more than the manifest lists.

    Raises:
        FileGone, ManifestRefused, AddressExpired, DatasetChanged, ClientError, OSError: see `FILE_ERRORS`.
        Unavailable: if a destination does not answer.
    """
    if source.folder is not None:
        return local_path(source.folder, shard.path)
    copy = folder / "shard"
    left = shard.size_bytes + _MORE_BYTES
    with copy.open("wb") as file:
        for chunk in source.read_file(shard):
            left -= file.write(chunk[:left])
            if left <= 0:
                break
    return copy


def local_path(root: Path, path: str) -> Path:
    """Return the path of a file below a folder of this machine; links are followed within the folder only.

    Raises:
        FileGone: if there is no such file.
        ManifestRefused: if a link leads elsewhere.
    """
    try:
        resolved = (root / path).resolve()
        is_inside, is_file = resolved.is_relative_to(root.resolve()), resolved.is_file()
    except (OSError, RuntimeError) as error:
        raise FileGone(path) from error
    if not is_inside:
        reason = "is a link that leads out of the dataset's folder"
        raise ManifestRefused(f"{path} {reason}. Copy the files into the folder.", reason=reason)
    if not is_file:
        raise FileGone(path)
    return resolved


class FolderSource:
    """A dataset in a folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.folder: Path | None = path.parent if path.name == MANIFEST else path

    def read_manifest(self) -> bytes:
        """Return the bytes of the manifest."""
        data = self._read(MANIFEST)
        if data is None:
            raise ManifestUnreadable
        return data

    def read_file(self, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of a file."""
        assert self.folder is not None
        with local_path(self.folder, shard.path).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def read_card(self) -> bytes | None:
        """Return README.md; None if there is none."""
        return self._read(CARD)

    def _read(self, name: str) -> bytes | None:
        assert self.folder is not None
        path = self.folder / name
        try:
            # Only a plain file: reading a pipe would wait.
            return path.read_bytes() if path.is_file() and path.stat().st_size <= MAX_BYTES else None
        except (OSError, ValueError):
            return None


class StoreSource:
    """A dataset in a store that fsspec opens."""

    folder = None

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._root = path.removesuffix(f"/{MANIFEST}").rstrip("/")

    def read_manifest(self) -> bytes:
        """Return the bytes of the manifest."""
        data = self._read(MANIFEST)
        if data is None:
            raise ManifestUnreadable
        return data

    def read_file(self, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of a file; the store's own library retries."""
        try:
            with self._files.open(f"{self._root}/{shard.path}", "rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError as error:
            raise FileGone(shard.path) from error

    def read_card(self) -> bytes | None:
        """Return README.md; None where it cannot be read."""
        return self._read(CARD)

    def _read(self, name: str) -> bytes | None:
        try:
            with self._files.open(f"{self._root}/{name}", "rb") as file:
                data: bytes = file.read(MAX_BYTES + 1)
        except OSError:
            return None
        return data if len(data) <= MAX_BYTES else None


class DestinationSource:
    """A dataset in the destination of an export, read with the rights of the destination."""

    folder = None

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def read_manifest(self) -> bytes:
        """Return the bytes of the manifest."""
        try:
            size = self._directory.size(MANIFEST)
            if size > MAX_BYTES:
                raise ManifestUnreadable
            return b"".join(self._directory.read_range(MANIFEST, 0, size))
        except KeyError as error:
            raise ManifestUnreadable from error

    def read_file(self, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of a file, at most one more than the manifest lists."""
        try:
            size = min(self._directory.size(shard.path), shard.size_bytes + _MORE_BYTES)
            yield from self._directory.read_range(shard.path, 0, size)
        except KeyError as error:
            raise FileGone(shard.path) from error

    def read_card(self) -> bytes | None:
        """Return None: only `open_export` reads cards."""
        return None


class ServiceSource:
    """A dataset that the service hosts, read over signed addresses or with an API key."""

    folder = None

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._renewed_urls: dict[str, str | None] = {}

    def read_manifest(self) -> bytes:
        """Return the manifest with addresses for its files.

        Raises:
            ManifestUnreadable: if it is longer than any manifest of the service.
            KeyRefused: if the service does not let this caller read it.
            ApiError, Unreachable: if the service refuses or does not answer.
        """
        try:
            return self._read(self._url)
        except ApiError as error:
            if error.status in (401, 403):
                raise KeyRefused(error, has_key=bool(self._headers)) from error
            raise

    def read_file(self, shard: Shard) -> Iterator[bytes]:
        """Yield the bytes of a file; an expired address is renewed through the manifest's address.

        Raises:
            AddressExpired: if the manifest's own address has expired too.
            FileGone: if the service no longer has the file.
            DatasetChanged: if the manifest now lists another file at this path.
            ManifestRefused: if the address is not one of this export's own.
            ApiError, Unreachable: if the service refuses or does not answer.
        """
        return _read_with_retries(lambda start: self._read_from(shard, start))

    def read_card(self) -> bytes | None:
        """Return README.md; None without a key, because its address is not signed."""
        base = self._url.partition("?")[0].removesuffix("/manifest")
        try:
            return self._read(f"{base}/files/{CARD}") if self._headers else None
        except (ApiError, ManifestUnreadable):
            return None

    def _read_from(self, shard: Shard, start: int) -> Iterator[bytes]:
        url = self._renewed_urls.get(shard.path, shard.url)
        try:
            if url is not None:
                yield from _download_from(self._require_own(url, shard), {}, start)
                return
        except ApiError as error:
            # The answer of a request starts with its status, so that no bytes were read of this one.
            if error.status == 404:
                raise FileGone(shard.path) from error
            if error.status not in (401, 403):
                raise
        url = self._renew_url(shard)
        try:
            yield from _download_from(self._require_own(url, shard), {}, start)
        except ApiError as error:
            if error.status == 404:
                raise FileGone(shard.path) from error
            raise

    def _read(self, url: str) -> bytes:
        data = bytearray()
        for chunk in _read_with_retries(lambda start: _download_from(url, self._headers, start)):
            data += chunk
            if len(data) > MAX_BYTES:
                raise ManifestUnreadable
        return bytes(data)

    def _require_own(self, url: str, shard: Shard) -> str:
        """Return an address if the service serves this file there; no other address is requested."""
        if not _is_own_address(manifest_url=self._url, url=url, path=shard.path):
            reason = "has an address that is not the export's own"
            raise ManifestRefused(
                f"it gives {shard.path} an address that is not the export's own. Open the address of the "
                "service that wrote it, as GET /v1/exports/{id} has it in manifest_url.",
                reason=reason,
            )
        return url

    def _renew_url(self, shard: Shard) -> str:
        """Return a fresh address of a file, if the manifest still lists the same file."""
        export_id = self._url.partition("?")[0].removesuffix("/manifest").rpartition("/")[2]
        try:
            shards = {listed.path: listed for listed in parse_manifest(self.read_manifest()).shards}
        except ApiError as error:
            if error.status in (401, 403):
                raise AddressExpired(export_id) from error
            raise
        listed = shards.get(shard.path)
        if listed is None or listed.sha256 != shard.sha256:
            raise DatasetChanged
        if listed.url is None:
            raise AddressExpired(export_id)
        self._renewed_urls = {path: listed.url for path, listed in shards.items()}
        return listed.url


def _is_own_address(*, manifest_url: str, url: str, path: str) -> bool:
    """Return whether the service serves a file at an address: a hostile manifest can name any address."""
    try:
        manifest, file = urlsplit(manifest_url), urlsplit(url)
    except ValueError:
        return False
    expected = f"{manifest.path.removesuffix('/manifest')}/files/{path}"
    allowed = {expected, quote(expected), quote(expected, safe="/=")}
    return (file.scheme, file.netloc) == (manifest.scheme, manifest.netloc) and file.path in allowed


def _read_with_retries(read_from: Callable[[int], Iterator[bytes]]) -> Iterator[bytes]:
    """Yield bytes; after an error that may pass, continue at the byte where reading ended."""
    done = 0
    for attempt in stamina.retry_context(
        on=_may_pass, attempts=_ATTEMPTS, timeout=None, wait_initial=0.2, wait_max=2.0, wait_jitter=0.1
    ):
        with attempt:
            for chunk in read_from(done):
                done += len(chunk)
                yield chunk
            return


def _may_pass(error: Exception) -> bool:
    if isinstance(error, ApiError):
        return error.status in _TRANSIENT_STATUSES
    return isinstance(error, ClientError)


def _download_from(url: str, headers: Mapping[str, str], start: int) -> Iterator[bytes]:
    """Yield the bytes of an address from `start` on, in one request; redirects are not followed."""
    part = {"Range": f"bytes={start}-"} if start else {}
    sent = {**headers, **part, "Accept-Encoding": "identity"}
    try:
        with httpx.stream("GET", url, headers=sent, timeout=_TIMEOUT, follow_redirects=False) as answer:
            if not answer.is_success:
                answer.read()
                raise api_error(answer)
            skip = start if answer.status_code != 206 else 0
            for chunk in answer.iter_bytes(_CHUNK_BYTES):
                yield chunk[skip:]
                skip = max(0, skip - len(chunk))
    except (httpx.TransportError, httpx.InvalidURL) as error:
        base = "{0.scheme}://{0.netloc}/".format(urlsplit(url))
        raise Unreachable(base, f"the download broke ({type(error).__name__})", may_be_done=False) from error
