"""Restore of a backup into an empty deployment: everything is checked before anything is written.

Files go to a folder beside the wanted one, which is renamed once the deletions that came after the backup are
applied: a restore that is killed leaves no deployment there.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path

from sqlalchemy import make_url, update
from sqlmodel import delete

from recorder.data_folder import make_sqlite_url, store_secret
from recorder.errors import Unavailable
from recorder.governance.backup.backup_manifest import BackupFileEntry, BackupManifest, Store
from recorder.governance.backup.backup_store import BackupStore
from recorder.governance.backup.create import GONE
from recorder.governance.backup.errors import (
    BackupStoreUnusable,
    DamagedBackup,
    NotEmpty,
    OtherEngine,
    RestoreTargetUnusable,
)
from recorder.governance.backup.later_changes import AppliedChanges, LaterChanges, apply_later_changes
from recorder.governance.backup.snapshot import FILE, make_copy_statement
from recorder.governance.backup.unfinished_restores import (
    hold_staged_folder,
    name_staged_folder,
)
from recorder.models.operations import LeaseRow, SealPortionRow
from recorder.models.workspace import DeploymentRow
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database, UnknownSchema
from recorder.storage.deployment import WrongRegion
from recorder.storage.durable_files import keep_files_private, make_durable_folder, sync_path_to_disk
from recorder.storage.lake import Lake
from recorder.storage.lake_maintenance import LakeTimes
from recorder.storage.store_regions import check_store_regions

_KEY = re.compile(r"[A-Za-z0-9_\-.=%+@, ]+(?:/[A-Za-z0-9_\-.=%+@, ]+)*", re.ASCII)
#: Files that are read or written at a time, and that are listed at a time.
_AT_ONCE = 4
_BATCH = 1_000
OnStep = Callable[[str], object]
OnBytes = Callable[[int], object]


@dataclass(frozen=True)
class RestoreReport:
    """Result of a restore."""

    id: str
    data: str
    moment: datetime
    files: int
    bytes: int
    changes: AppliedChanges


@dataclass(frozen=True)
class _RestoreTarget:
    """The deployment that is restored: in the folder beside the wanted one until the end."""

    wanted: Settings
    staged: Settings

    def open_store(self, store: Store) -> Blobs:
        """Return the store that files of a backup go to."""
        urls = {
            "lake": self.staged.lake_url,
            "frames": self.staged.blob_url,
            "exports": self.staged.export_url,
            "cold": self.staged.cold_url,
        }
        url = urls.get(store)
        if url is None:
            raise DamagedBackup("it has archived frames: set RECORDER_COLD_URL to an empty store for them")
        return Blobs(url)


def restore_backup(
    archive: BackupStore,
    wanted: Settings,
    staged: Settings,
    *,
    backup_id: str | None = None,
    audit: Path | None = None,
    secret: bytes | None = None,
    on_step: OnStep = lambda step: None,
    on_bytes: OnBytes = lambda count: None,
) -> RestoreReport:
    """Restore a backup, and apply the deletions that came after it.

    Args:
        archive: the backups.
        wanted: settings of the deployment, with the secret that it had.
        staged: the same settings with a data folder beside the wanted one, which does not exist.
        backup_id: the backup; by default the newest.
        audit: export of the audit log that was made after the backup.
        secret: secret to store in the new data folder; None where the environment holds it.
        on_step: called with the name of each step.
        on_bytes: called with the bytes that were checked or written.

    Raises:
        NoBackup: if there is no such backup.
        DamagedBackup: if a part is missing or differs from its hash.
        WrongSecret: if the secret is another one.
        WrongRegion: if the backup is of another region.
        NotEmpty: if the folder, the database or a store holds something.
        RestoreBusy: if another restore to the folder is at work.
        RestoreTargetUnusable: if the folder cannot be written, or its disk is full.
        OtherEngine: if the database is of another kind.
        UnknownSchema: if the backup is of a later release.
        AuditDoesNotFit: if the audit log does not continue the chains of the backup.
    """
    keep_files_private()
    target = _RestoreTarget(wanted, staged)
    manifest = archive.read_manifest(backup_id)
    manifest.check(wanted.secret)
    if manifest.region != wanted.region:
        raise WrongRegion("The backup", stored=manifest.region, region=wanted.region)
    _require_empty_target(target, manifest)
    changes = LaterChanges.read(audit, manifest.audit_heads)
    on_step("check")
    files = _work_on_files_to_restore(
        archive.read_listing(manifest), partial(_check_file_to_restore, archive, on_bytes)
    )
    if files != manifest.files:
        raise DamagedBackup("its list of files is incomplete")
    with _translate_target_errors(wanted.data_dir), _staged_folder(target):
        on_step("write")
        gone = _restore_files(archive, manifest, target, on_bytes)
        on_step("changes")
        # A backup holds no marks of stores.
        blobs, lake = target.open_store("frames"), Lake(target.staged.lake_url)
        check_store_regions(target.staged, blobs, lake, marks_new=True)
        opened = Runtime.open(target.staged, create=True)
        # No reader has listed the logs yet: no entry that names a purged session has to stay for one.
        times = LakeTimes(log_entries=timedelta(0))
        runtime = replace(opened, lake=Lake(target.staged.lake_url, times=times))
        try:
            _release_restored_work(runtime.database)
            applied = apply_later_changes(runtime, manifest, changes, gone)
        finally:
            runtime.close()
        if secret is not None:
            store_secret(target.staged.data_dir, secret)
    return RestoreReport(
        id=manifest.id,
        data=str(wanted.data_dir),
        moment=manifest.moment,
        files=manifest.files,
        bytes=manifest.total_bytes,
        changes=applied,
    )


def _require_empty_target(target: _RestoreTarget, manifest: BackupManifest) -> None:
    """Check that nothing is overwritten, and that the database takes the backup.

    Raises:
        NotEmpty: if something is there.
        OtherEngine: if the database is of another kind.
    """
    data = target.wanted.data_dir
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise NotEmpty(f"The data folder {data}")
    engine = "sqlite" if target.wanted.database_url.startswith("sqlite") else "postgresql"
    if engine != manifest.engine:
        raise OtherEngine(manifest.engine)
    database = Database(target.staged.database_url)
    try:
        if database.has_schema():
            # A restore that was killed leaves a schema without rows.
            with database.transaction(write=False) as db:
                if db.get(DeploymentRow, 1) is not None:
                    raise NotEmpty("The database that RECORDER_DATABASE_URL names")
    finally:
        database.close()
    stores = {
        "lake": target.staged.lake_url,
        "frames": target.staged.blob_url,
        "exports": target.staged.export_url,
        # A purge of the copy would delete archived frames of the deployment that uses it.
        "archived frames": target.staged.cold_url,
    }
    for name, url in stores.items():
        if any(key != "deployment.json" for key in Blobs(url).keys("")):
            raise NotEmpty(f"The store of {name}")


def _work_on_files_to_restore(
    entries: Iterable[BackupFileEntry], work: Callable[[BackupFileEntry], object]
) -> int:
    """Call a function for each file, several at a time; return their number."""
    count = 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="restore") as pool:
        remaining = iter(entries)
        while batch := list(islice(remaining, _BATCH)):
            for _ in pool.map(work, batch):
                count += 1
    return count


def _check_file_to_restore(archive: BackupStore, on_bytes: OnBytes, entry: BackupFileEntry) -> None:
    """Check that a file stays in its store, and that its parts are what was written.

    Raises:
        DamagedBackup: if not.
    """
    _check_entry_to_restore(entry)
    for part in archive.read_file(entry):
        on_bytes(len(part))


def _check_entry_to_restore(entry: BackupFileEntry) -> None:
    """Check that a file of the list stays in its store.

    Raises:
        DamagedBackup: if it does not.
    """
    stores = ("database", "lake", "frames", "exports", "cold", "changes")
    is_safe = isinstance(entry.key, str) and _KEY.fullmatch(entry.key) and ".." not in entry.key.split("/")
    if entry.store not in stores or not is_safe or not isinstance(entry.parts, list):
        raise DamagedBackup("its list of files names a file that cannot exist")


@contextmanager
def _translate_target_errors(data: Path) -> Iterator[None]:
    """Name the data folder in the error of a disk that is full, or of a folder that cannot be created."""
    try:
        yield
    except BackupStoreUnusable:
        raise
    except OSError as error:
        raise RestoreTargetUnusable(data, error) from error
    except Unavailable as error:
        if isinstance(error.__cause__, OSError):
            raise RestoreTargetUnusable(data, error.__cause__) from error
        raise


@contextmanager
def _staged_folder(target: _RestoreTarget) -> Iterator[None]:
    """Create the folder beside the wanted one; rename it at the end, delete it after an error."""
    staged, wanted = target.staged.data_dir, target.wanted.data_dir
    make_durable_folder(staged.parent)
    with hold_staged_folder(staged, wanted):
        try:
            yield
            if wanted.exists():
                wanted.rmdir()
            staged.rename(wanted)
            sync_path_to_disk(wanted.parent)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise


def _restore_files(
    archive: BackupStore, manifest: BackupManifest, target: _RestoreTarget, on_bytes: OnBytes
) -> dict[str, str]:
    """Write the files of a backup, the database last; return the sessions that were purged during it."""
    database: list[BackupFileEntry] = []
    gone: dict[str, str] = {}

    def write(entry: BackupFileEntry) -> None:
        data = list(archive.read_file(entry))
        target.open_store(entry.store).put_parts(entry.key, data)
        on_bytes(entry.size)

    def select_objects() -> Iterator[BackupFileEntry]:
        for entry in archive.read_listing(manifest):
            if entry.store == "database":
                database.append(entry)
            elif entry.store == "changes" and entry.key == GONE:
                content = b"".join(archive.read_file(entry)).decode()
                for line in content.splitlines():
                    session_id, _, cause = line.partition(" ")
                    gone[session_id] = cause
            else:
                yield entry

    _work_on_files_to_restore(select_objects(), write)
    if manifest.engine == "sqlite":
        _restore_sqlite(archive, database, target, on_bytes)
    else:
        _restore_postgres(archive, manifest, database, target, on_bytes)
    return gone


def _restore_sqlite(
    archive: BackupStore, entries: list[BackupFileEntry], target: _RestoreTarget, on_bytes: OnBytes
) -> None:
    path = Path(str(make_url(target.staged.database_url).database))
    make_durable_folder(path.parent)
    for entry in entries:
        if entry.key != FILE:
            raise DamagedBackup("its list of files names a file that cannot exist")
        with path.open("wb") as file:
            for part in archive.read_file(entry):
                file.write(part)
                on_bytes(len(part))
        sync_path_to_disk(path)
    sync_path_to_disk(path.parent)


def _restore_postgres(
    archive: BackupStore,
    manifest: BackupManifest,
    entries: list[BackupFileEntry],
    target: _RestoreTarget,
    on_bytes: OnBytes,
) -> None:
    """Create the schema that the rows had, and copy all tables in one transaction."""
    database = Database(target.staged.database_url)
    try:
        database.migrate(manifest.schema_revision)
        connection = database.raw_connection()
        try:
            with connection.transaction(), connection.cursor() as cursor:
                for entry in entries:
                    table = entry.key.removesuffix(".copy")
                    if table not in manifest.tables:
                        raise UnknownSchema
                    statement = make_copy_statement(table, manifest.tables[table], "FROM STDIN")
                    with cursor.copy(statement) as copy:
                        for part in archive.read_file(entry):
                            copy.write(part)
                            on_bytes(len(part))
        finally:
            connection.close()
    finally:
        database.close()


def _release_restored_work(database: Database) -> None:
    """Release the leases of processes that are not here, and drop progress whose files are not here."""
    with database.transaction(write=True) as db:
        db.connection().execute(update(LeaseRow).values(owner="", expires_ms=0))
        db.connection().execute(delete(SealPortionRow))


def stage_settings(wanted: Settings) -> Settings:
    """Return settings whose data folder, with all that it holds, is one beside the wanted folder."""
    data = wanted.data_dir
    staged = name_staged_folder(data)

    def move(address: str) -> str:
        for before, after in (
            (str(data), str(staged)),
            (make_sqlite_url(data), make_sqlite_url(staged)),
        ):
            if address == before or address.startswith(f"{before}/"):
                return f"{after}{address[len(before) :]}"
        return address

    return replace(
        wanted,
        data_dir=staged,
        database_url=move(wanted.database_url),
        blob_url=move(wanted.blob_url),
        lake_url=move(wanted.lake_url),
        export_url=move(wanted.export_url),
        cold_url=move(wanted.cold_url),
    )
