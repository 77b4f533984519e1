"""Folder or store with the backups of one deployment: parts by their hash, and a manifest for each backup.

A file is stored in parts of 16 MiB, named by their SHA-256. Backups share equal parts, so unchanged files,
and unchanged parts of the database, are stored once. Memory does not grow with a file.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from recorder.errors import Unavailable
from recorder.governance.backup.backup_manifest import (
    BackupFileEntry,
    BackupManifest,
    deployment_digest,
    parse_backup_listing,
    parse_backup_manifest,
)
from recorder.governance.backup.errors import (
    BackupStoreUnusable,
    DamagedBackup,
    NoBackup,
    OldBackupDamaged,
    OtherDeployment,
    PartsRemoved,
    TargetInsideDeployment,
)
from recorder.ids import is_id, read_time_of_id
from recorder.storage.blobs import Blobs

PART_BYTES = 16 * 1024 * 1024
#: Parts that are deleted under one check of the lease in the database: each check is a transaction.
_DELETIONS_PER_CHECK = 20
_PARTS = "parts/"
_BACKUPS = "backups/"
_SHA = re.compile(r"[0-9a-f]{64}", re.ASCII)


class BackupStore:
    """Backups of one deployment in a folder or store."""

    def __init__(self, url: str) -> None:
        """Name the folder or store.

        Raises:
            BackupStoreUnusable: if no store can have this address, or its kind needs credentials to be named.
        """
        self.url = url
        try:
            self._store = Blobs(url)
        except Exception as error:  # the packages of stores have errors of their own
            raise BackupStoreUnusable(url, error) from error
        self._lock = threading.Lock()
        self._present: set[str] | None = None
        #: Bytes that this process stored.
        self.stored_bytes = 0

    def list_ids(self) -> list[str]:
        """Return the ids of the complete backups, newest first."""
        with self._translate_store_errors():
            keys = [stored.key for stored in self._store.list_objects(_BACKUPS)]
        ids = [key.removeprefix(_BACKUPS).removesuffix(".json") for key in keys if key.endswith(".json")]
        return sorted((backup_id for backup_id in ids if is_id(backup_id, "bak")), reverse=True)

    def read_manifest(self, backup_id: str | None = None) -> BackupManifest:
        """Return the manifest of a backup, the newest one by default.

        Raises:
            NoBackup: if there is no such backup.
            DamagedBackup: if the manifest cannot be read.
        """
        if backup_id is None:
            backup_id = next(iter(self.list_ids()), None)
        if backup_id is None:
            raise NoBackup(self.url)
        if not is_id(backup_id, "bak"):
            raise NoBackup(self.url, self.list_ids())
        try:
            with self._translate_store_errors():
                data = self._store.get(_make_backup_manifest_key(backup_id))
        except KeyError as error:
            raise NoBackup(self.url, self.list_ids()) from error
        return parse_backup_manifest(data, backup_id)

    def read_moment(self, backup_id: str) -> datetime:
        """Return the moment of a backup; where its manifest is damaged, when it was written."""
        try:
            return self.read_manifest(backup_id).moment
        except DamagedBackup:
            return read_time_of_id(backup_id)

    def write_manifest(self, manifest: BackupManifest) -> None:
        """Store the manifest: from now on the backup exists."""
        with self._translate_store_errors():
            self._store.put(
                _make_backup_manifest_key(manifest.id), manifest.model_dump_json(indent=1).encode()
            )

    def require_outside(self, protected: Iterable[str]) -> None:
        """Check that this folder is not inside one of the folders that a backup protects.

        Raises:
            TargetInsideDeployment: if it is.
        """
        for url in protected:
            if self._store.is_folder_inside(Blobs(url)):
                raise TargetInsideDeployment(self.url, url)

    def require_owner(self, secret: bytes) -> None:
        """Check that the newest backup whose manifest can be read is of the deployment with this secret.

        Raises:
            OtherDeployment: if it is not.
        """
        for backup_id in self.list_ids():
            with suppress(DamagedBackup):
                if self.read_manifest(backup_id).deployment != deployment_digest(secret):
                    raise OtherDeployment(self.url)
                return

    def has_parts(self, parts: Iterable[str]) -> bool:
        """Return whether all of these parts are stored."""
        return all(part in self._list_present_parts() for part in parts)

    def require_parts(self, parts: Collection[str]) -> None:
        """List the stored parts again, and check that these are among them.

        Raises:
            PartsRemoved: if one is missing.
        """
        with self._lock:
            self._present = None
        if not self.has_parts(parts):
            raise PartsRemoved(self.url)

    def put_part(self, data: bytes) -> str:
        """Store a part unless it is there; return its SHA-256."""
        name = hashlib.sha256(data).hexdigest()
        present = self._list_present_parts()
        if name not in present:
            with self._translate_store_errors():
                self._store.put(_make_part_key(name), data)
            with self._lock:
                present.add(name)
                self.stored_bytes += len(data)
        return name

    def put_stream(self, chunks: Iterable[bytes]) -> tuple[list[str], int]:
        """Store chunks of any sizes as parts; return the parts and their bytes."""
        parts, size, buffer = [], 0, bytearray()
        for chunk in chunks:
            buffer += chunk
            size += len(chunk)
            while len(buffer) >= PART_BYTES:
                parts.append(self.put_part(bytes(buffer[:PART_BYTES])))
                del buffer[:PART_BYTES]
        if buffer:
            parts.append(self.put_part(bytes(buffer)))
        return parts, size

    def read_part(self, name: str) -> bytes:
        """Return a part whose bytes have the hash of its name.

        Raises:
            DamagedBackup: if it is missing or has other bytes.
        """
        if not isinstance(name, str) or not _SHA.fullmatch(name):
            raise DamagedBackup("its list of files names a part that cannot exist")
        try:
            with self._translate_store_errors():
                data = self._store.get(_make_part_key(name))
        except KeyError as error:
            raise DamagedBackup(f"the part {name[:12]}… is missing") from error
        if hashlib.sha256(data).hexdigest() != name:
            raise DamagedBackup(f"the part {name[:12]}… has other bytes than were written")
        return data

    def read_file(self, entry: BackupFileEntry) -> Iterator[bytes]:
        """Yield the parts of a file.

        Raises:
            DamagedBackup: if a part is missing or damaged, or the size is another.
        """
        size = 0
        for part in entry.parts:
            data = self.read_part(part)
            size += len(data)
            yield data
        if size != entry.size:
            raise DamagedBackup(f"the file {entry.key} has another size than was written")

    def read_listing(self, manifest: BackupManifest) -> Iterator[BackupFileEntry]:
        """Yield the files of a backup.

        Raises:
            DamagedBackup: if the list is missing or damaged.
        """
        yield from parse_backup_listing(self.read_part(part) for part in manifest.listing)

    def delete_backup(self, backup_id: str) -> None:
        """Delete a backup's manifest; `prune` then deletes the parts that no other backup needs."""
        with self._translate_store_errors():
            self._store.delete(_make_backup_manifest_key(backup_id))

    def prune(self, *, require_lease: Callable[[], object], require_time: Callable[[], object]) -> int:
        """Delete parts that no backup lists, those of interrupted backups too; return their number.

        The caller holds the lease of backups: the parts of one at work are not listed yet.

        Args:
            require_lease: raises if another run took the lease; called at first, and after some deletions.
            require_time: raises if the lease ran out by this process's clock; called before each deletion.

        Raises:
            OldBackupDamaged: if the parts of a backup are not known.
        """
        needed: set[str] = set()
        for backup_id in self.list_ids():
            try:
                manifest = self.read_manifest(backup_id)
                needed.update(manifest.listing)
                for entry in self.read_listing(manifest):
                    needed.update(entry.parts)
            except DamagedBackup as error:
                raise OldBackupDamaged(f"{self.url}/{_make_backup_manifest_key(backup_id)}") from error
        with self._translate_store_errors():
            spare = [key for key in self._store.keys(_PARTS) if key.rpartition("/")[2] not in needed]
            for number, key in enumerate(spare):
                if number % _DELETIONS_PER_CHECK == 0:
                    require_lease()
                require_time()
                self._store.delete(key)
        self._present = None
        return len(spare)

    def _list_present_parts(self) -> set[str]:
        with self._lock:
            if self._present is None:
                with self._translate_store_errors():
                    listed = self._store.list_objects(_PARTS)
                names = {stored.key.rpartition("/")[2] for stored in listed}
                self._present = {name for name in names if _SHA.fullmatch(name)}
            return self._present

    @contextmanager
    def _translate_store_errors(self) -> Iterator[None]:
        """Name this store, and why it fails, in the error of a store that refuses or does not answer."""
        try:
            yield
        except Unavailable as error:
            raise BackupStoreUnusable(self.url, error.__cause__ or error) from error


def _make_backup_manifest_key(backup_id: str) -> str:
    return f"{_BACKUPS}{backup_id}.json"


def _make_part_key(name: str) -> str:
    return f"{_PARTS}{name[:2]}/{name}"
