"""Where a dataset lies: a folder here, a store that fsspec opens, or the service that hosts it."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import fsspec
import httpx

from recorder.client.errors import ApiError, ClientError, Unreachable
from recorder.client.transport import api_error
from recorder.exports.formats import CARD, MANIFEST
from recorder.exports.verify import ManifestUnreadable
from recorder.exports.verify.dataset_source import NotFetched, is_own, path_within
from recorder.exports.verify.listing import MAX_BYTES
from recorder.loading.cache import Cache
from recorder.loading.errors import (
    AddressExpired,
    DatasetChanged,
    FileDamaged,
    FileGone,
    KeyRefused,
    ManifestRefused,
)
from recorder.loading.manifest import Shard, read_shards

_CHUNK_BYTES = 1024 * 1024
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_WAITS_S = (0.2, 0.5, 1.0, 2.0)


class Source(Protocol):
    """Gives the manifest and the files of one dataset; it can be sent to another process."""

    @property
    def here(self) -> Path | None:
        """The dataset's folder, where it is one of this machine."""

    def manifest(self) -> bytes:
        """The manifest's bytes."""

    def fetch(self, shard: Shard, cache: Cache) -> Path:
        """The file on this machine: itself, or a checked copy."""

    def card(self) -> bytes | None:
        """README.md; None where it cannot be had."""


class Folder:
    """A dataset in a folder of this machine or of a store."""

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        self._fs, path = fsspec.core.url_to_fs(address, **options)
        self._root = path.removesuffix(f"/{MANIFEST}").rstrip("/")
        self._is_here = "file" in _protocols(self._fs)

    @property
    def here(self) -> Path | None:
        """The folder, where it is one of this machine."""
        return Path(self._root) if self._is_here else None

    def manifest(self) -> bytes:
        """The manifest's bytes.

        Raises:
            ManifestUnreadable: if there is none, or one longer than any of ours.
        """
        data = self._read(MANIFEST)
        if data is None:
            raise ManifestUnreadable
        return data

    def fetch(self, shard: Shard, cache: Cache) -> Path:
        """The file itself where it lies on this machine, else a copy that was checked.

        Raises:
            FileGone: if it is not there.
            ManifestRefused: if it is a link that leads out of the dataset's folder.
            FileDamaged: if it has other bytes than the manifest says; here its size alone is looked at.
        """
        if self.here is not None:
            try:
                path = path_within(self.here, shard.path)
            except NotFetched as error:
                if (self.here / shard.path).is_file():
                    raise ManifestRefused(f"{shard.path} {error}. Copy the files into the folder.") from error
                raise FileGone(shard.path) from error
            if path.stat().st_size != shard.size_bytes:
                raise FileDamaged(shard.path)
            return path
        return cache.find(shard) or cache.add(shard, self._chunks(shard))

    def card(self) -> bytes | None:
        """README.md."""
        return self._read(CARD)

    def _read(self, name: str) -> bytes | None:
        try:
            with self._fs.open(f"{self._root}/{name}", "rb") as file:
                data: bytes = file.read(MAX_BYTES + 1)
        except OSError:
            return None
        return data if len(data) <= MAX_BYTES else None

    def _chunks(self, shard: Shard) -> Iterator[bytes]:
        try:
            with self._fs.open(f"{self._root}/{shard.path}", "rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError as error:
            raise FileGone(shard.path) from error


class Hosted:
    """A dataset that the service keeps, behind signed addresses or an API key."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._addresses: dict[str, str | None] = {}

    @property
    def here(self) -> Path | None:
        """None: it lies with the service."""
        return None

    def manifest(self) -> bytes:
        """The manifest with addresses for its files.

        Raises:
            ManifestUnreadable: if it is longer than any of ours.
            KeyRefused: if the service does not let this caller read it.
            ApiError, Unreachable: if the service refuses or does not answer.
        """
        try:
            return self._text(self._url)
        except ApiError as error:
            if error.status in (401, 403):
                raise KeyRefused(error, has_key=bool(self._headers)) from error
            raise

    def fetch(self, shard: Shard, cache: Cache) -> Path:
        """A checked copy; addresses that are over are signed anew through the manifest's, while that is good.

        Raises:
            AddressExpired, FileGone, DatasetChanged, FileDamaged: as their names say.
            ManifestRefused: if the manifest gives it an address that is not the export's own.
            ApiError, Unreachable: if the service refuses or does not answer.
        """
        found = cache.find(shard)
        if found is not None:
            return found
        url = self._addresses.get(shard.path, shard.url)
        try:
            if url is not None:
                return cache.add(shard, _download(self._own(url, shard)))
        except ApiError as error:
            _check_gone(error, shard)
            if error.status not in (401, 403):
                raise
        url = self._renewed(shard)
        try:
            return cache.add(shard, _download(self._own(url, shard)))
        except ApiError as error:
            _check_gone(error, shard)
            raise

    def card(self) -> bytes | None:
        """README.md; without a key nothing opens it."""
        base = self._url.partition("?")[0].removesuffix("/manifest")
        try:
            return self._text(f"{base}/files/{CARD}") if self._headers else None
        except (ApiError, ManifestUnreadable):
            return None

    def _text(self, url: str) -> bytes:
        data = b""
        for chunk in _download(url, self._headers):
            data += chunk
            if len(data) > MAX_BYTES:
                raise ManifestUnreadable
        return data

    def _own(self, url: str, shard: Shard) -> str:
        """An address, if it is where this service serves the file: nothing else is asked for it."""
        if not is_own(manifest_url=self._url, url=url, path=shard.path):
            raise ManifestRefused(
                f"it gives {shard.path} an address that is not the export's own. Open the address of the "
                "service that wrote it, as GET /v1/exports/{id} has it in manifest_url."
            )
        return url

    def _renewed(self, shard: Shard) -> str:
        """A fresh address of a file, if it is still the file that was opened."""
        export_id = self._url.partition("?")[0].removesuffix("/manifest").rpartition("/")[2]
        try:
            fresh = {one.path: one for one in read_shards(self.manifest())}
        except ApiError as error:
            if error.status in (401, 403):
                raise AddressExpired(export_id) from error
            raise
        found = fresh.get(shard.path)
        if found is None or found.sha256 != shard.sha256:
            raise DatasetChanged
        if found.url is None:
            raise AddressExpired(export_id)
        self._addresses = {path: one.url for path, one in fresh.items()}
        return found.url


def open_source(address: str, options: Mapping[str, Any], key: str | None) -> Folder | Hosted:
    """The place that an address names."""
    if address.startswith(("http://", "https://")):
        return Hosted(address, key)
    return Folder(address, options)


def _check_gone(error: ApiError, shard: Shard) -> None:
    if error.status == 404:
        raise FileGone(shard.path) from error


def _download(url: str, headers: Mapping[str, str] | None = None) -> Iterator[bytes]:
    """The bytes behind an address; what fails is tried again, from where it broke off."""
    done = 0
    for wait_s in (*_WAITS_S, None):
        try:
            for chunk in _try_download(url, headers or {}, done):
                done += len(chunk)
                yield chunk
            return
        except ClientError as error:
            if wait_s is None or (isinstance(error, ApiError) and error.status not in (429, 502, 503, 504)):
                raise
        time.sleep(wait_s)


def _try_download(url: str, headers: Mapping[str, str], start: int) -> Iterator[bytes]:
    part = {"Range": f"bytes={start}-"} if start else {}
    asked = {**headers, **part, "Accept-Encoding": "identity"}
    try:
        with httpx.stream("GET", url, headers=asked, timeout=_TIMEOUT, follow_redirects=False) as answer:
            if not answer.is_success:
                answer.read()
                raise api_error(answer)
            whole = answer.iter_bytes(_CHUNK_BYTES)
            skip = start if answer.status_code != 206 else 0
            for chunk in whole:
                yield chunk[skip:]
                skip = max(0, skip - len(chunk))
    except httpx.TransportError as error:
        base = str(httpx.URL(url).copy_with(path="/", query=None))
        raise Unreachable(base, f"the download broke ({type(error).__name__})", may_be_done=False) from error


def _protocols(filesystem: Any) -> tuple[str, ...]:
    found = filesystem.protocol
    return (found,) if isinstance(found, str) else tuple(found)
