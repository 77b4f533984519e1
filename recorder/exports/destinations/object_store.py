"""Directory of an export in an object store, and the claim of a bucket by a workspace. Decision 0024.

An object in a bucket names the workspaces whose files the bucket takes: a writer of the bucket creates it.
Without such a claim, a client could name any bucket that the service's own rights reach: another customer's,
or the operator's.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recorder.errors import InvalidDestination, RecorderError, Unavailable
from recorder.exports.destinations.base import (
    PROBING,
    AlreadyThere,
    Damaged,
    Destination,
    FileConflict,
    ObjectStoreClient,
    StoreTimeouts,
    StoreUpload,
    call_within_time_limit,
)
from recorder.exports.destinations.hashed_files import HashedFile, raise_export_write_error
from recorder.ids import new_id
from recorder.lazy_property import lazy_property

#: `<this>/<workspace id>` is the key of the object, whose content does not matter.
CLAIMS = "recorder-workspaces"


def require_bucket_owner(store: ObjectStoreClient, workspace_id: str) -> None:
    """Check that a bucket or container takes files of a workspace.

    Raises:
        InvalidDestination: if it has no claim of the workspace.
    """
    key = f"{CLAIMS}/{workspace_id}"
    try:
        store.size(key)
    except KeyError as error:
        text = f"There is no such bucket, or no object {key} in it, which would say that it is yours."
        raise InvalidDestination(text) from error


_ATTEMPTS = 4
_SUBJECT = "The export destination"


class ObjectStoreDestination(Destination):
    """The directory of one export: the objects whose keys begin with its root."""

    def __init__(
        self,
        open_store: Callable[[StoreTimeouts], ObjectStoreClient],
        root: str,
        bucket: object,
        patience: StoreTimeouts,
    ) -> None:
        """Create the directory; the store is opened when it is first needed.

        Args:
            open_store: function that opens the store.
            root: common prefix of all keys, without a slash at its end.
            bucket: equal for directories between which the store itself can copy.
            patience: time limits for the store, except for a probe.
        """
        self._open_store = open_store
        self._root = root
        self._bucket = bucket
        self._patience = patience

    @lazy_property
    def _store(self) -> ObjectStoreClient:
        """Store, opened when it is first needed; a probe opens its own, with shorter time limits."""
        return self._open_store(self._patience)

    @contextmanager
    def create(self, path: str, *, replace: bool = False) -> Iterator[HashedFile]:
        """Yield a file that is staged on this machine and uploaded when the block ends.

        The staged file has no name, so that it disappears with the process.
        """
        hashed: HashedFile | None = None
        try:
            with tempfile.TemporaryFile(prefix="recorder-export-") as file, HashedFile(file) as hashed:
                yield hashed
                hashed.flush()
                self._publish_object(
                    StoreUpload(file, hashed.size_bytes, hashed.sha256), path, replace=replace
                )
        except RecorderError:
            raise
        except Exception as error:
            raise_export_write_error(error, hashed)

    def probe(self) -> None:
        """Write and remove one object, in ten seconds at most."""
        call_within_time_limit(self._probe_store)

    def require_owner(self) -> None:
        """Check that the bucket still takes files of this workspace."""
        self._store.require_owner()

    def size(self, path: str) -> int:
        """Return the size of a file."""
        return self._store.size(self._make_key(path))

    def read_range(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`; a cut answer is continued."""
        failures = 0
        while start < end:
            try:
                for piece in self._store.get(self._make_key(path), start, end):
                    start += len(piece)
                    failures = 0
                    yield piece
                if start < end:
                    raise Unavailable(_SUBJECT)
            except Unavailable:
                failures += 1
                if failures == _ATTEMPTS:
                    raise

    def fetch(self, path: str, folder: Path, *, size_bytes: int, sha256: str) -> Path:
        """Return the path of a copy in `folder`."""
        if self.size(path) != size_bytes:
            raise KeyError(path)
        copy, digest = folder / new_id("req"), hashlib.sha256()
        with copy.open("xb") as file:
            for piece in self.read_range(path, 0, size_bytes):
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != sha256:
            raise KeyError(path)
        return copy

    def copy(self, path: str, source: Destination, *, size_bytes: int, sha256: str) -> None:
        """Copy a file of another export; within one store the bytes stay there."""
        is_copied = (
            isinstance(source, ObjectStoreDestination)
            and source._bucket == self._bucket
            and self._store.copy(self._make_key(path), source._make_key(path), sha256=sha256)
        )
        if not is_copied:
            super().copy(path, source, size_bytes=size_bytes, sha256=sha256)

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is no error."""
        self._store.delete(self._make_key(path))

    def list_destination_paths(self) -> Iterator[str]:
        """Yield the paths of all files, in no order."""
        for key in self._store.list_keys(f"{self._root}/"):
            yield key.removeprefix(f"{self._root}/")

    def remove_unfinished_files(self) -> None:
        """Abort the uploads of killed runs."""
        self._store.abort_uploads(f"{self._root}/")

    def address(self, path: str) -> str:
        """Return the object's address for fsspec."""
        return self._store.address(self._make_key(path))

    def _probe_store(self) -> None:
        """Check that the bucket or container can be written, with an object that is deleted again."""
        store, key = self._open_store(PROBING), self._make_key(f".probe-{new_id('req')}")
        store.require_owner()
        try:
            store.put(StoreUpload.of(b"probe"), key, replace=False)
            store.delete(key)
        except KeyError as error:
            raise InvalidDestination("There is no such bucket or container.") from error
        except (AlreadyThere, Damaged) as error:
            raise Unavailable(_SUBJECT) from error

    def _make_key(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _publish_object(self, staged: StoreUpload, path: str, *, replace: bool) -> None:
        """Upload until the object has the staged bytes; a damaged object is removed."""
        for _ in range(_ATTEMPTS):
            # Another run removed the object, or the upload, in between.
            with suppress(KeyError):
                try:
                    return self._store.put(staged, self._make_key(path), replace=replace)
                except AlreadyThere:
                    return self._require_same_bytes(staged, path)
                except Damaged:
                    self.remove(path)
        raise Unavailable(_SUBJECT)

    def _require_same_bytes(self, staged: StoreUpload, path: str) -> None:
        """Compare the bytes of the object that exists: anyone may have written its tags."""
        digest = hashlib.sha256()
        if self.size(path) == staged.size_bytes:
            for piece in self.read_range(path, 0, staged.size_bytes):
                digest.update(piece)
        if digest.hexdigest() != staged.sha256:
            raise FileConflict(path)
