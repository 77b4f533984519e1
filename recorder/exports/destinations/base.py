"""Where an export's directory is: all that a worker in another process needs to open it. Contract §5."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from recorder.errors import Conflict
from recorder.exports.destinations.hashing import HashedFile


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
