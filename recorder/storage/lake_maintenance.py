"""Maintenance of one lake table: compaction, deletion of unused files, checkpoint, cleanup of the log."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from recorder import clock
from recorder.storage.lake_cleanup import DataFileTotals, clean_log, count_data_files, delete_unused_files
from recorder.storage.lake_rewrites import compact_small_files
from recorder.storage.lake_tables import LakeTable

#: A file that a commit removed stays for so long: a request lasts two minutes at most, and a long read opens
#: a file some minutes after it listed it. A read that comes later still begins again with the newest version.
FILES_GRACE = timedelta(minutes=10)
#: Versions stay readable by their number for so long.
VERSIONS_KEPT = timedelta(days=1)
#: What a running export pins is kept for so long at most: after a week, checkpoints forget removed files.
_LONGEST_PIN = timedelta(days=6)
#: A batch is committed within a day of the date of its partition.
_CLOSED_AFTER = timedelta(days=1)


@dataclass(frozen=True)
class TableMaintenance:
    """Data files of a table before and after a pass, and what the pass did."""

    before: DataFileTotals = field(default_factory=DataFileTotals)
    after: DataFileTotals = field(default_factory=DataFileTotals)
    deleted: DataFileTotals = field(default_factory=DataFileTotals)
    #: Small files that were replaced by joined ones; they are deleted by a later pass.
    joined_files: int = 0
    deleted_log_entries: int = 0


def maintain_lake_table(
    stored: LakeTable, *, at_files: int, pinned_since: datetime | None, check: Callable[[], None]
) -> TableMaintenance:
    """Work on one table; every step may be repeated, so that a pass that was killed is done by the next one.

    Args:
        stored: the table.
        at_files: number of small files from which a partition that still grows is compacted.
        pinned_since: files that a commit removed since then are pinned by a running export.
        check: called before each file that is written or deleted; it raises to stop.
    """
    if stored.open() is None:
        return TableMaintenance()
    now = clock.now()
    pinned_since = max(pinned_since or now, now - _LONGEST_PIN)
    before = count_data_files(stored)
    closed_before = (now - _CLOSED_AFTER).date().isoformat()
    joined = compact_small_files(stored, check, at_files=at_files, closed_before=closed_before)
    check()
    deleted, after = delete_unused_files(
        stored, removed_before=min(now - FILES_GRACE, pinned_since), check=check
    )
    check()
    entries = clean_log(stored, kept_since=min(now - VERSIONS_KEPT, pinned_since))
    return TableMaintenance(before, after, deleted, joined, entries)
