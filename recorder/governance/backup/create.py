"""Backup of a deployment while everything runs. Contract §9; docs/decisions/0040-backups.md.

Order: files of the lake that are there now, without regard to their version; then the instant, at which the
database's snapshot and the versions of the lake belong together, and the few files of the lake that came
since; then pictures, plans and hosted exports of what the snapshot knows. The manifest is written last.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from sqlmodel import select

from recorder import clock
from recorder.errors import Unavailable
from recorder.governance.backup.backup_manifest import (
    VERSION,
    BackupFileEntry,
    BackupManifest,
    LakeVersion,
    Store,
    deployment_digest,
)
from recorder.governance.backup.backup_records import note_backup, require_recorded_backups
from recorder.governance.backup.backup_store import BackupStore
from recorder.governance.backup.errors import BackupBusy, DamagedBackup
from recorder.governance.backup.lake_moment import FilesChanged, is_log_key, read_lake_moment
from recorder.governance.backup.object_copies import OnProgress, copy_stored_objects
from recorder.governance.backup.snapshot import DatabaseSnapshot, Engine, open_database_snapshot
from recorder.ids import new_timed_id
from recorder.models.governance import PurgeRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing.lanes import Lane
from recorder.storage.blobs import Blobs, StoredObject
from recorder.storage.leases import HeldLease, LeaseKeeper, lease_for_block
from recorder.storage.store_regions import require_store_marks
from recorder.storage.temporary_files import BACKUP_PREFIX
from recorder.tenant import Tenant
from recorder.version import __version__

LEASE = "backup"
GONE = "gone_sessions"
_LEASE_MS = 60_000
_BEATS_PER_LEASE = 4
#: Instants that are tried: one is given up if a purge removes files of the lake before they are copied.
_MOMENTS = 20
_WORKSPACES = "SELECT id FROM workspaces UNION SELECT workspace_id FROM sessions"


@dataclass(frozen=True)
class BackupReport:
    """Result of a backup."""

    id: str
    to: str
    moment: datetime
    files: int
    bytes: int
    copied_bytes: int
    seconds: float
    deleted_backups: list[str]


@dataclass
class _Contents:
    """Parts of a snapshot that the backup needs, and the entries that were copied for it."""

    engine: Engine
    moment: datetime
    tables: dict[str, list[str]]
    session_ids: set[str]
    purged_ids: set[str]
    export_ids: set[str]
    audit_heads: dict[str, tuple[int, str]]
    lake: list[LakeVersion] = field(default_factory=list)
    entries: list[BackupFileEntry] = field(default_factory=list)


def create_backup(
    runtime: Runtime,
    to: str,
    *,
    keep_days: int | None = None,
    starts_over: bool = False,
    on_progress: OnProgress = lambda handled, copied: None,
    on_step: Callable[[str], object] = lambda step: None,
) -> BackupReport:
    """Back up a deployment, whose processes may go on with everything.

    Args:
        runtime: the deployment.
        to: folder or address of a store.
        keep_days: delete backups of this deployment that are older; None keeps all.
        starts_over: accept that no earlier backup is left where some were made.
        on_progress: called with bytes that were handled, and those of them that were copied.
        on_step: called with the name of each step.

    Raises:
        BackupBusy: if another backup is at work.
        TargetInsideDeployment: if the folder is inside one that the backup protects.
        BackupStoreUnusable: if the folder or store of the backups refuses or does not answer.
        BackupsAway: if no earlier backup is left where some were made.
        DatabaseNotCopied: if the data folder has no room for a copy of SQLite's file.
        OtherDeployment: if the folder holds backups of another deployment.
        OldBackupDamaged: if the backup was made, but no old parts were deleted: an older one is damaged.
        StoreAway: if a store of the deployment is away.
        PartsRemoved: if parts of this backup were removed while it was made; there is no backup then.
        LeaseLost: if this run did not renew its lease in time, and another run took over.
        Unavailable: if a store or the database does not answer.
    """
    with lease_for_block(runtime.database, LEASE, new_timed_id("req")[0], ttl_ms=_LEASE_MS) as held:
        if held is None:
            raise BackupBusy
        every_s = _LEASE_MS / 1000 / _BEATS_PER_LEASE
        with LeaseKeeper(runtime.database, lambda: [held], every_s=every_s):
            work = _BackupRun(runtime, held, to, on_progress, on_step)
            try:
                return work.run(keep_days, starts_over=starts_over)
            except Exception:
                # A run that took over removes this one's folder and parts: then that is why this one failed.
                with suppress(Unavailable), runtime.database.transaction(write=True) as db:
                    held.require(db)
                raise


class _BackupRun:
    """The work of one backup, under the lease of backups."""

    def __init__(
        self,
        runtime: Runtime,
        held: HeldLease,
        to: str,
        on_progress: OnProgress,
        on_step: Callable[[str], object],
    ) -> None:
        self._runtime, self._held = runtime, held
        self._archive = BackupStore(to)
        self._on_progress, self._on_step = on_progress, on_step
        self._known: dict[tuple[str, str], BackupFileEntry] = {}
        self._lake_files = Blobs(runtime.lake.url)

    def run(self, keep_days: int | None, *, starts_over: bool) -> BackupReport:
        """Make the backup; return its report."""
        began = clock.now()
        settings = self._runtime.settings
        stores = (settings.blob_url, settings.lake_url, settings.export_url, settings.cold_url)
        self._archive.require_outside((str(settings.data_dir), *stores))
        self._archive.require_owner(settings.secret)
        if not starts_over:
            require_recorded_backups(settings.data_dir, self._archive)
        require_store_marks(settings)
        self._read_known()
        self._on_step("lake")
        self._copy_lake_beforehand()
        self._on_step("database")
        contents = self._copy_moment()
        self._on_step("objects")
        for store, objects in self._list_objects(contents):
            self._copy(contents, store, self._open_store(store), objects)
        contents.entries.append(self._store_gone_sessions(contents))
        manifest = self._write_manifest(contents)
        self._on_step("old parts")
        deleted = self._delete_old_backups(keep_days)
        note_backup(self._runtime.settings.data_dir, self._archive.url, manifest)
        self._archive.prune(require_lease=self._require_lease, require_time=self._held.require_time)
        return BackupReport(
            id=manifest.id,
            to=self._archive.url,
            moment=manifest.moment,
            files=manifest.files,
            bytes=manifest.total_bytes,
            copied_bytes=self._archive.stored_bytes,
            seconds=(clock.now() - began).total_seconds(),
            deleted_backups=deleted,
        )

    def _require_lease(self) -> None:
        """Check that no other run took over, before something is removed or replaced that it may need.

        Raises:
            LeaseLost: if another run took over.
        """
        with self._held.transaction(self._runtime.database):
            pass
        self._held.require_time()

    def _read_known(self) -> None:
        """Read the list of the backup before; without it everything is copied.

        Files of the lake's log are copied again: a deployment that was restored from an older backup commits
        other entries under the same numbers. All other files have names that no other file ever has.
        """
        for backup_id in self._archive.list_ids()[:1]:
            try:
                listing = self._archive.read_listing(self._archive.read_manifest(backup_id))
                self._known = {
                    (entry.store, entry.key): entry
                    for entry in listing
                    if entry.store != "lake" or not is_log_key(entry.key)
                }
            except DamagedBackup:
                self._known = {}

    def _copy_lake_beforehand(self) -> None:
        """Copy what the newest versions need, so that little is left to copy at the instant."""
        with self._runtime.database.transaction(write=False) as db:
            tenants = _list_backup_tenants(db.connection().exec_driver_sql(_WORKSPACES).all())
        try:
            for table in read_lake_moment(self._runtime.lake, tenants, None, 0):
                for entry in self._copy_files("lake", self._lake_files, table.files):
                    if entry is not None:
                        self._known[entry.store, entry.key] = entry
        except FilesChanged:
            return  # a purge or a checkpoint removed files; the instant copies what is missing

    def _copy_moment(self) -> _Contents:
        """Copy the database and the lake as they are at one instant."""
        for _ in range(_MOMENTS):
            try:
                with (
                    self._make_folder() as folder,
                    open_database_snapshot(self._runtime.database, folder) as snapshot,
                ):
                    return self._copy_snapshot(snapshot)
            except FilesChanged:
                continue
        raise Unavailable("The lake")

    def _copy_snapshot(self, snapshot: DatabaseSnapshot) -> _Contents:
        """Copy the database of a snapshot, and the files of the stores that it names."""
        counters = {
            Lane(Tenant(workspace_id, mode), slot): number
            for workspace_id, mode, slot, number in snapshot.read(
                "SELECT workspace_id, mode, slot, batch_number FROM seal_counters"
            )
        }
        ((slots,),) = snapshot.read("SELECT seal_slots FROM deployment")
        tenants = _list_backup_tenants(snapshot.read(_WORKSPACES))
        contents = _Contents(
            engine=snapshot.engine,
            moment=snapshot.moment,
            tables=snapshot.list_tables(),
            session_ids={row[0] for row in snapshot.read("SELECT id FROM sessions")},
            purged_ids={row[0] for row in snapshot.read("SELECT session_id FROM purges")},
            export_ids={row[0] for row in snapshot.read("SELECT id FROM exports")},
            audit_heads={
                workspace_id: (number, last_hash)
                for workspace_id, number, last_hash in snapshot.read(
                    "SELECT workspace_id, number, hash FROM audit_heads"
                )
            },
        )
        for table in read_lake_moment(self._runtime.lake, tenants, counters, slots):
            contents.lake.append(table.version)
            for entry in self._copy_files("lake", self._lake_files, table.files):
                if entry is None:
                    raise FilesChanged
                contents.entries.append(entry)
        for name, chunks in snapshot.read_database_files():
            parts, size = self._archive.put_stream(chunks)
            self._on_progress(size, size)
            contents.entries.append(BackupFileEntry("database", name, size, "", parts))
        return contents

    def _list_objects(self, contents: _Contents) -> Iterator[tuple[Store, Sequence[StoredObject]]]:
        """Yield the objects of each store that belong to sessions and exports of the snapshot."""
        # Archived frames last: one that is archived during the backup is in the cold store by then.
        stores: list[tuple[Store, str]] = [
            *(("frames", "frames/"), ("frames", "exports/"), ("exports", ""), ("cold", "frames/"))
        ]
        visible = contents.session_ids - contents.purged_ids
        for store, prefix in stores:
            blobs = self._open_store(store)
            wanted = visible if prefix == "frames/" else contents.export_ids
            objects = blobs.list_objects(prefix)
            yield store, [stored for stored in objects if not wanted.isdisjoint(stored.key.split("/"))]

    def _open_store(self, store: Store) -> Blobs:
        settings = self._runtime.settings
        if store == "frames":
            return self._runtime.blobs
        return Blobs(settings.export_url if store == "exports" else settings.cold_url)

    def _copy(self, contents: _Contents, store: Store, blobs: Blobs, objects: Sequence[StoredObject]) -> None:
        """Copy objects; one that is gone belonged to a session or export that was removed since."""
        for entry in self._copy_files(store, blobs, objects):
            if entry is not None:
                contents.entries.append(entry)

    def _copy_files(
        self, store: Store, blobs: Blobs, objects: Sequence[StoredObject]
    ) -> Iterator[BackupFileEntry | None]:
        return copy_stored_objects(
            self._archive, blobs, store, objects, known=self._known, on_progress=self._on_progress
        )

    def _store_gone_sessions(self, contents: _Contents) -> BackupFileEntry:
        """Store the ids of sessions that were purged since the instant: some of their files are missing."""
        with self._runtime.database.transaction(write=False) as db:
            causes = dict(db.exec(select(PurgeRow.session_id, PurgeRow.cause)).all())
            remaining = set(db.exec(select(SessionRow.id)))
        gone = (contents.session_ids - contents.purged_ids) - (remaining - causes.keys())
        # The purge of an erased session leaves no row.
        lines = [f"{session_id} {causes.get(session_id, 'erasure')}\n" for session_id in sorted(gone)]
        data = "".join(lines).encode()
        parts, size = self._archive.put_stream([data])
        return BackupFileEntry("changes", GONE, size, "", parts)

    def _write_manifest(self, contents: _Contents) -> BackupManifest:
        settings = self._runtime.settings
        listing, listing_bytes = self._archive.put_stream(entry.to_line() for entry in contents.entries)
        backup_id, _ = new_timed_id("bak")
        manifest = BackupManifest(
            manifest_version=VERSION,
            id=backup_id,
            release=__version__,
            schema_revision=self._runtime.database.read_schema_revision() or "",
            engine=contents.engine,
            region=settings.region,
            deployment=deployment_digest(settings.secret),
            moment=contents.moment,
            tables=contents.tables,
            lake=contents.lake,
            audit_heads=contents.audit_heads,
            files=len(contents.entries),
            total_bytes=sum(entry.size for entry in contents.entries),
            listing=listing,
            listing_bytes=listing_bytes,
        ).sealed(settings.secret)
        # What was read from a store that has gone since may be incomplete.
        require_store_marks(settings)
        self._require_lease()
        self._archive.require_parts({*listing, *(part for entry in contents.entries for part in entry.parts)})
        self._require_lease()
        self._archive.write_manifest(manifest)
        return manifest

    def _delete_old_backups(self, keep_days: int | None) -> list[str]:
        if keep_days is None:
            return []
        oldest = clock.now() - timedelta(days=keep_days)
        old = [
            backup_id
            for backup_id in self._archive.list_ids()[1:]
            if self._archive.read_moment(backup_id) < oldest
        ]
        for backup_id in old:
            self._require_lease()
            self._archive.delete_backup(backup_id)
        return old

    @contextmanager
    def _make_folder(self) -> Iterator[Path]:
        """Create a folder for a copy of the database; remove those of backups that were killed."""
        self._require_lease()
        root = self._runtime.settings.data_dir / "tmp"
        root.mkdir(mode=0o700, exist_ok=True)
        for left in root.glob(f"{BACKUP_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=BACKUP_PREFIX, dir=root) as folder:
            yield Path(folder)


def _list_backup_tenants(workspaces: Sequence[tuple[str]] | Iterator[tuple[str, ...]]) -> list[Tenant]:
    return [Tenant(row[0], mode) for row in workspaces for mode in ("live", "test")]
