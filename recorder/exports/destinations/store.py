"""What a bucket or container must be able to do; S3, Google, Azure and fsspec each do it their way."""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

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
