"""An end to waiting: client libraries bound each request, not what they make of them in all. Contract §5."""

import hashlib
import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeVar

from recorder.errors import Conflict, Unavailable
from recorder.exports.destinations.hashing import HashedFile

PROBE_SECONDS = 10.0
#: For what a request of the API reads; the client may ask again.
READ_SECONDS = 5.0

_Found = TypeVar("_Found")


def within(act: Callable[[], _Found], *, seconds: float = PROBE_SECONDS) -> _Found:
    """Do something that may wait for a network; its errors are raised here.

    Raises:
        Unavailable: if it is not done in time; it is then left to its own time limits.
    """
    found: list[_Found] = []
    errors: list[BaseException] = []

    def _act() -> None:
        try:
            found.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=_act, name="export-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Unavailable("The export destination")
    if errors:
        raise errors[0]
    return found[0]


#: What is sent as one request, and held in memory; larger files travel in parts of this size.
PART_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Patience:
    """How long a store is waited for."""

    connect_s: float
    read_s: float
    #: Requests in all until one counts as unanswered.
    attempts: int


WORKING = Patience(connect_s=5, read_s=60, attempts=6)
PROBING = Patience(connect_s=3, read_s=5, attempts=1)
#: Of requests of the API, which a client waits for.
READING = Patience(connect_s=2, read_s=3, attempts=2)


class AlreadyThere(Exception):
    """An object has this key already."""


class Damaged(Exception):
    """The store holds other bytes than were sent."""


@dataclass(frozen=True)
class Staged:
    """A file that waits on this machine to be uploaded."""

    #: Has the file's descriptor, unless it is small.
    file: Any
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "Staged":
        """A few bytes, as a file."""
        return cls(io.BytesIO(data), len(data), hashlib.sha256(data).hexdigest())


def part_bytes(size_bytes: int, parts: int) -> int:
    """How large the parts of a file are, where there may be so many of them."""
    return max(PART_BYTES, -(-size_bytes // parts))


class Store(Protocol):
    """Objects by key in one bucket or container.

    All methods raise `Unavailable` where the store does not answer and `InvalidDestination` where it refuses.
    """

    def put(self, staged: Staged, key: str, *, replace: bool) -> None:
        """Upload a file, whole or not at all, and compare what the store then holds.

        Raises:
            AlreadyThere: if the key is taken and not to be replaced.
            Damaged: if the store holds other bytes now.
        """

    def require_owner(self) -> None:
        """See that the place takes files of this workspace; the operator's own places take everybody's."""

    def size(self, key: str) -> int:
        """Bytes of an object; KeyError if there is none."""

    def get(self, key: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` up to, not including, `end`; KeyError if there is no such object."""

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys that begin with a prefix."""

    def copy(self, key: str, source_key: str, *, sha256: str) -> bool:
        """Copy an object within the bucket; False where that is not certain to give these bytes."""

    def abort_uploads(self, prefix: str) -> None:
        """End uploads that were begun below a prefix; a store that hides them is left to forget them."""

    def address(self, key: str) -> str:
        """The object's address as fsspec knows it."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What and where, without secrets: it may be pickled, shown and logged."""

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
    #: Whether the operator chose or listed the place: then the service's own rights may be used there.
    is_trusted: bool = False


class FileConflict(Conflict):
    """Another file lies where a file of this export belongs."""

    code = "destination_conflict"

    def __init__(self, path: str) -> None:
        super().__init__(f"The destination holds another file at {path}; remove it and export again.")


class Destination(ABC):
    """The directory of one export; files appear in it whole or not at all.

    Paths are relative to it, as the manifest has them. All methods raise `Unavailable` where the store does
    not answer.
    """

    @abstractmethod
    def create(self, path: str, *, replace: bool = False) -> AbstractContextManager[HashedFile]:
        """A file that is published when the block ends.

        Publishing creates: a file that is there already with the same bytes is left, with other bytes it
        is a conflict, unless it is to be replaced.

        Raises:
            FileConflict: if another file has this path.
            InvalidDestination: if writing is refused.
            DiskFull: if the disk has no room for it.
        """

    @abstractmethod
    def probe(self) -> None:
        """Write and remove one file, in ten seconds at most.

        Raises:
            InvalidDestination: if writing is refused.
        """

    @abstractmethod
    def require_owner(self) -> None:
        """See that the place still takes files of this workspace.

        Raises:
            InvalidDestination: if it does not.
        """

    @abstractmethod
    def size(self, path: str) -> int:
        """How many bytes a file has.

        Raises:
            KeyError: if there is no such file.
        """

    @abstractmethod
    def read_range(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes of a file from `start` up to, not including, `end`, in pieces.

        Raises:
            KeyError: if there is no such file.
        """

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """A file to read in, forth and back.

        Raises:
            KeyError: if there is no such file.
        """

    @abstractmethod
    def fetch(self, path: str, folder: Path) -> Path:
        """A file of this machine with the bytes: a copy in `folder`, or the file itself where it is local.

        Raises:
            KeyError: if there is no such file.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Take a file away; a missing one is no error."""

    @abstractmethod
    def files(self) -> Iterator[str]:
        """Paths of all files, in no order."""

    @abstractmethod
    def finish(self) -> None:
        """Take away what killed runs left unfinished."""

    @abstractmethod
    def address(self, path: str) -> str:
        """Where the file lies, for people; fsspec opens it, given the rights."""

    def read(self, path: str) -> bytes:
        """The bytes of a file.

        Raises:
            KeyError: if there is no such file.
        """
        return b"".join(self.read_range(path, 0, self.size(path)))

    def copy(self, path: str, source: "Destination", *, sha256: str) -> None:
        """Take a file of another export over under its own path, within the store where both lie in one.

        Args:
            sha256: what its bytes must hash to; nothing is kept of others.

        Raises:
            KeyError: if the source has no such file, or other bytes.
            FileConflict: if another file has this path here.
        """
        with self.create(path) as file:
            for piece in source.read_range(path, 0, source.size(path)):
                file.write(piece)
            if file.sha256 != sha256:
                raise KeyError(path)
