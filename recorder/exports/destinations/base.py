"""Interfaces of destinations and stores: uploads, files, and time limits for using them. Contract §5."""

import hashlib
import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from recorder.errors import Conflict, Unavailable
from recorder.exports.destinations.hashed_files import HashedFile

PROBE_SECONDS = 10.0
#: Time limit for reads of an API request; the client may repeat the request.
READ_SECONDS = 5.0

_Result = TypeVar("_Result")


def call_within_time_limit(act: Callable[[], _Result], *, seconds: float = PROBE_SECONDS) -> _Result:
    """Call a function that may wait for a network, with a time limit for all its requests together.

    Raises:
        Unavailable: if it does not return in time; it then ends by its own time limits.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []

    def _act_once() -> None:
        try:
            results.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=_act_once, name="export-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Unavailable("The export destination")
    if errors:
        raise errors[0]
    return results[0]


#: Largest body of one request, which is held in memory; larger files are sent in parts of this size.
PART_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class StoreTimeouts:
    """Time limits for the requests to a store."""

    connect_s: float
    read_s: float
    #: Number of tries of a request.
    attempts: int


WORKING = StoreTimeouts(connect_s=5, read_s=60, attempts=6)
PROBING = StoreTimeouts(connect_s=3, read_s=5, attempts=1)
#: For requests of the API, whose client waits.
READING = StoreTimeouts(connect_s=2, read_s=3, attempts=2)


class AlreadyThere(Exception):
    """The key of an object is taken."""


class Damaged(Exception):
    """The store has other bytes than were sent."""


@dataclass(frozen=True)
class StoreUpload:
    """A file on this machine that is to be uploaded."""

    #: A file with a descriptor; a small one may be in memory.
    file: Any
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "StoreUpload":
        """Return a few bytes as a file."""
        return cls(io.BytesIO(data), len(data), hashlib.sha256(data).hexdigest())


def compute_store_part_bytes(size_bytes: int, parts: int) -> int:
    """Return the size of a file's parts if there may be at most `parts`."""
    return max(PART_BYTES, -(-size_bytes // parts))


class ObjectStoreClient(Protocol):
    """Objects by key in one bucket or container.

    All methods raise `Unavailable` where the store does not answer and `InvalidDestination` where it refuses.
    """

    def put(self, staged: StoreUpload, key: str, *, replace: bool) -> None:
        """Upload a file, whole or not at all, and compare what the store then holds.

        Raises:
            AlreadyThere: if the key is taken and not to be replaced.
            Damaged: if the store has other bytes now.
        """

    def require_owner(self) -> None:
        """Check that the bucket takes files of this workspace; the operator's own take those of all."""

    def size(self, key: str) -> int:
        """Return the size of an object; KeyError if there is none."""

    def get(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`; KeyError if there is no such object."""

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""

    def list_keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with a prefix."""

    def copy(self, key: str, source_key: str, *, sha256: str) -> bool:
        """Copy an object within the bucket; return False if the copy might have other bytes."""

    def abort_uploads(self, prefix: str) -> None:
        """Abort unfinished uploads below a prefix; a store that does not list them deletes them itself."""

    def address(self, key: str) -> str:
        """Return the object's address for fsspec."""


@dataclass(frozen=True, kw_only=True)
class ExportLocation:
    """Location of an export's directory, without secrets: it may be pickled, shown and logged."""

    kind: Literal["local", "s3", "gcs", "azure_blob", "address"]
    workspace_id: str
    export_id: str
    #: Folder, key in the bucket, or fsspec address of the export's directory; no slash at its end.
    root: str
    #: Bucket or container.
    bucket: str = ""
    #: Storage account (Azure).
    account: str = ""
    region: str | None = None
    role_arn: str | None = None
    service_account: str | None = None
    #: The operator's address of the store; None is the cloud itself.
    endpoint: str | None = None
    #: Whether the service hosts the files: without `endpoint`, `AWS_ENDPOINT_URL` then names the store.
    is_hosted: bool = False
    #: Whether the operator chose or listed the bucket: then the service's own rights may be used there.
    is_trusted: bool = False


class FileConflict(Conflict):
    """Another file has the path of a file of this export."""

    code = "destination_conflict"

    def __init__(self, path: str) -> None:
        super().__init__(f"The destination holds another file at {path}; remove it and export again.")


@dataclass(frozen=True)
class PinnedFile:
    """A file whose size and bytes belong together."""

    size_bytes: int
    #: Yields the bytes from the first number up to, not including, the second.
    read: Callable[[int, int], Iterator[bytes]]


class Destination(ABC):
    """The directory of one export; files appear in it whole or not at all.

    Paths are relative to it, as in the manifest. All methods raise `Unavailable` if the store is away.
    """

    @abstractmethod
    def create(self, path: str, *, replace: bool = False) -> AbstractContextManager[HashedFile]:
        """Return a context manager with a file that is published when the block ends.

        An existing file with the same bytes is kept; one with other bytes is a conflict, unless `replace`.

        Raises:
            FileConflict: if another file has this path.
            InvalidDestination: if writing is refused.
            DiskFull: if the disk has no space for it.
        """

    @abstractmethod
    def probe(self) -> None:
        """Write and remove one file, in ten seconds at most.

        Raises:
            InvalidDestination: if writing is refused.
        """

    @abstractmethod
    def require_owner(self) -> None:
        """Check that the destination still takes files of this workspace.

        Raises:
            InvalidDestination: if it does not.
        """

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the size of a file.

        Raises:
            KeyError: if there is no such file.
        """

    @abstractmethod
    def read_range(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a file from `start` up to, not including, `end`, in pieces.

        Raises:
            KeyError: if there is no such file.
        """

    def pin(self, path: str) -> "PinnedFile":
        """Return a file to be read in parts, as it is now where the store allows it.

        Raises:
            KeyError: if there is no such file.
        """
        return PinnedFile(self.size(path), partial(self.read_range, path))

    @abstractmethod
    def fetch(self, path: str, folder: Path, *, size_bytes: int, sha256: str) -> Path:
        """Return the path of a copy in `folder`, or of the file itself where it is local.

        No more than the listed bytes are copied: anyone with rights to the bucket may replace the file.

        Raises:
            KeyError: if there is no such file, or it has other bytes.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; a missing one is no error."""

    @abstractmethod
    def list_destination_paths(self) -> Iterator[str]:
        """Yield the paths of all files, in no order."""

    @abstractmethod
    def remove_unfinished_files(self) -> None:
        """Remove unfinished files of killed runs."""

    @abstractmethod
    def address(self, path: str) -> str:
        """Return the address of a file, for people; fsspec opens it, given the rights."""

    def read(self, path: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            KeyError: if there is no such file.
        """
        return b"".join(self.read_range(path, 0, self.size(path)))

    def copy(self, path: str, source: "Destination", *, size_bytes: int, sha256: str) -> None:
        """Copy a file of another export to the same path, within the store where both are in one.

        Args:
            path: path of the file in both exports.
            source: directory of the other export.
            size_bytes: size that the file must have; no more bytes are read.
            sha256: digest that the bytes must have; a file with another is not kept.

        Raises:
            KeyError: if the source has no such file, or other bytes.
            FileConflict: if another file has this path here.
        """
        if source.size(path) != size_bytes:
            raise KeyError(path)
        with self.create(path) as file:
            for piece in source.read_range(path, 0, size_bytes):
                file.write(piece)
            if file.sha256 != sha256:
                raise KeyError(path)
