"""Source of a dataset that the service hosts: signed addresses, API key, retries, renewal. Spec §2.5.

A manifest may be hostile, and can name the service by an address that is valid elsewhere. So a file is
requested below the address that the manifest was read from, with the signature that the manifest lists;
redirects are not followed.
"""

from collections.abc import Callable, Iterator, Mapping
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from recorder.client.errors import TEMPORARY_STATUSES, ApiError, ClientError, Unreachable
from recorder.client.service_address import is_loopback_service_host
from recorder.client.transport import make_response_error
from recorder.datasets.errors import (
    AddressExpired,
    DatasetChanged,
    FileGone,
    ManifestRefused,
    ManifestUnreadable,
)
from recorder.datasets.formats import CARD, CARD_BYTES
from recorder.datasets.manifest import MAX_BYTES, Shard, parse_manifest
from recorder.retries import retry

_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_ATTEMPTS = 5


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

    def _format_message(self) -> str:
        request_id = f" ({self.request_id})" if self.request_id else ""
        return f"{self.status} {self.code}: {self.detail} {self._advice}{request_id}"


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
            return self._download_small_file(self._url, self._headers, MAX_BYTES)
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
            ManifestRefused: if the address is not one of this file of this export.
            ApiError, Unreachable: if the service refuses or does not answer.
        """
        return _read_with_retries(lambda start: self._download_shard_from(shard, start))

    def read_card(self) -> bytes | None:
        """Return README.md from the address that the manifest signs for it; None where it cannot be read."""
        try:
            signed_url = parse_manifest(self.read_manifest()).card_url
            url = (
                None
                if signed_url is None
                else _make_own_file_url(manifest_url=self._url, signed_url=signed_url, path=CARD)
            )
            return None if url is None else self._download_small_file(url, {}, CARD_BYTES)
        except (ApiError, ManifestUnreadable):
            return None

    def list_data_paths(self) -> tuple[str, ...]:
        """Return none: the service has addresses for listed files only."""
        return ()

    def _download_shard_from(self, shard: Shard, start: int) -> Iterator[bytes]:
        url = self._renewed_urls.get(shard.path, shard.url)
        try:
            if url is not None:
                yield from _download_from_service(self._make_own_url(url, shard), {}, start)
                return
        except ApiError as error:
            # The answer of a request starts with its status, so that no bytes were read of this one.
            if error.status == 404:
                raise FileGone(shard.path, "service") from error
            if error.status not in (401, 403):
                raise
        url = self._renew_url(shard)
        try:
            yield from _download_from_service(self._make_own_url(url, shard), {}, start)
        except ApiError as error:
            if error.status == 404:
                raise FileGone(shard.path, "service") from error
            raise

    def _download_small_file(self, url: str, headers: Mapping[str, str], most_bytes: int) -> bytes:
        data = bytearray()
        for chunk in _read_with_retries(lambda start: _download_from_service(url, headers, start)):
            data += chunk
            if len(data) > most_bytes:
                raise ManifestUnreadable
        return bytes(data)

    def _make_own_url(self, signed_url: str, shard: Shard) -> str:
        """Return the address to request for a signed one; no other address is requested."""
        url = _make_own_file_url(manifest_url=self._url, signed_url=signed_url, path=shard.path)
        if url is None:
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


def _make_own_file_url(*, manifest_url: str, signed_url: str, path: str) -> str | None:
    """Return the address of a file beside its manifest, with a signed address's signature.

    The signature covers the path below the service's own address. So scheme, host and prefix are those of
    the manifest, which may be read through a tunnel or by another name of the host; any others are never
    requested.

    Args:
        manifest_url: address that the manifest was read from.
        signed_url: address that the manifest lists for the file.
        path: path of the file in the export.

    Returns:
        None if the signed address is not one of this file of this export.
    """
    try:
        manifest, signed = urlsplit(manifest_url), urlsplit(signed_url)
    except ValueError:
        return None
    folder = manifest.path.removesuffix("/manifest")
    file = f"/{'/'.join(folder.rsplit('/', 3)[1:])}/files/{path}"  # /v1/exports/{id}/files/{path}
    if not signed.path.endswith((file, quote(file), quote(file, safe="/="))):
        return None
    own_path = f"{folder}/files/{quote(path, safe='/=')}"
    return urlunsplit((manifest.scheme, manifest.netloc, own_path, signed.query, ""))


def _read_with_retries(read_from: Callable[[int], Iterator[bytes]]) -> Iterator[bytes]:
    """Yield bytes; after an error that may pass, continue at the byte where reading ended.

    The last of some attempts raises its error, unless they got on: a connection may break often in a large
    file.
    """
    done, reached = 0, -1
    while True:
        try:
            for attempt in retry(
                _is_temporary_download_error, attempts=_ATTEMPTS, first_s=0.2, longest_s=2.0, jitter_s=0.1
            ):
                with attempt:
                    for chunk in read_from(done):
                        done += len(chunk)
                        yield chunk
                    return
        except ClientError as error:
            if done <= max(reached, 0) or not _is_temporary_download_error(error):
                raise
            reached = done


def _is_temporary_download_error(error: Exception) -> bool:
    if isinstance(error, ApiError):
        return error.status in TEMPORARY_STATUSES
    return isinstance(error, ClientError)


def _download_from_service(url: str, headers: Mapping[str, str], start: int) -> Iterator[bytes]:
    """Yield the bytes of an address from `start` on, in one request; redirects are not followed."""
    part = {"Range": f"bytes={start}-"} if start else {}
    sent = {**headers, **part, "Accept-Encoding": "identity"}
    try:
        with httpx.stream(
            "GET",
            url,
            headers=sent,
            timeout=_TIMEOUT,
            follow_redirects=False,
            # A proxy of the environment cannot reach this machine's own loopback.
            trust_env=not is_loopback_service_host(httpx.URL(url).host),
        ) as answer:
            if not answer.is_success:
                answer.read()
                raise make_response_error(answer)
            skip = start if answer.status_code != 206 else 0
            # As they arrive: gathered ones would be lost where the connection breaks.
            for chunk in answer.iter_bytes():
                yield chunk[skip:]
                skip = max(0, skip - len(chunk))
    except (httpx.TransportError, httpx.InvalidURL) as error:
        base = "{0.scheme}://{0.netloc}/".format(urlsplit(url))
        raise Unreachable(base, f"the download broke ({type(error).__name__})", may_be_done=False) from error
