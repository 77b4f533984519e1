"""Record of the backups that were made from a data folder, so that `recorder doctor` names old ones.

Erased data remain in backups that were made before the erasure: each is to be deleted within 30 days.
"""

from datetime import datetime, timedelta
from pathlib import Path

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from recorder import clock
from recorder.errors import RecorderError
from recorder.governance.backup.backup_manifest import BackupManifest
from recorder.governance.backup.backup_store import BackupStore
from recorder.governance.backup.errors import BackupsAway, NoBackup
from recorder.storage.durable_files import sync_path_to_disk

#: Days that a backup may be kept.
LONGEST_DAYS = 30
_FILE = "backups.json"
_MOST = 1_000


class BackupRecord(BaseModel):
    """A backup that was made."""

    id: str
    to: str
    moment: datetime


_RECORDS = TypeAdapter(list[BackupRecord])


def note_backup(data: Path, to: str, manifest: BackupManifest) -> None:
    """Add a backup to the record; drop those that were deleted."""
    address = _make_record_address(to)
    others = [record for record in read_backup_records(data) if record.to != address]
    archive = BackupStore(to)
    for backup_id in archive.list_ids():
        moment = manifest.moment if backup_id == manifest.id else archive.read_moment(backup_id)
        others.append(BackupRecord(id=backup_id, to=address, moment=moment))
    newest = sorted(others, key=lambda record: record.moment)[-_MOST:]
    path = data / _FILE
    fresh = path.with_name(f".{_FILE}.new")
    fresh.write_bytes(orjson.dumps([record.model_dump(mode="json") for record in newest]))
    sync_path_to_disk(fresh)
    fresh.rename(path)


def require_recorded_backups(data: Path, archive: BackupStore) -> None:
    """Check that a place in which backups were made still holds one.

    Raises:
        BackupsAway: if it holds none: its volume may not be mounted.
    """
    address = _make_record_address(archive.url)
    if any(record.to == address for record in read_backup_records(data)) and not archive.list_ids():
        raise BackupsAway(archive.url)


def _make_record_address(to: str) -> str:
    return to if "://" in to else str(Path(to).resolve())


def read_backup_records(data: Path) -> list[BackupRecord]:
    """Return the backups that are recorded; a file that cannot be read counts as empty."""
    try:
        return _RECORDS.validate_json((data / _FILE).read_bytes())
    except (FileNotFoundError, ValidationError):
        return []


def list_old_backups(data: Path) -> list[BackupRecord]:
    """Return the backups of 30 days or more that exist, or whose location does not answer."""
    oldest = clock.now() - timedelta(days=LONGEST_DAYS)
    return [
        record
        for record in read_backup_records(data)
        if record.moment <= oldest and _may_backup_exist(record)
    ]


def _may_backup_exist(record: BackupRecord) -> bool:
    try:
        BackupStore(record.to).read_manifest(record.id)
    except NoBackup:
        return False
    except (RecorderError, OSError):
        return True
    return True
