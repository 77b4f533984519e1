"""An end to waiting: client libraries bound each request, not what they make of them in all. Contract §5."""

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from recorder.errors import Unavailable

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
