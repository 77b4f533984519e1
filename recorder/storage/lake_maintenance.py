"""Maintenance of one lake table: compaction, deletion of unused files, checkpoint, cleanup of the log."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from recorder import clock
from recorder.storage.lake_cleanup import (
    LOG_GRACE,
    DataFileTotals,
    clean_up_lake_log,
    count_data_files,
    delete_unused_files,
)
from recorder.storage.lake_rewrites import compact_small_files
from recorder.storage.lake_tables import LakeTable

#: What a running export pins is kept for so long at most: after a week, checkpoints forget removed files.
_LONGEST_PIN = timedelta(days=6)


@dataclass(frozen=True)
class LakeTimes:
    """Times for which maintenance keeps what readers and writers may still need."""

    #: Of a file that a commit removed: a request lasts two minutes at most, and a long read opens a file some
    #: minutes after it listed it. A read that comes later still begins again with the newest version.
    removed_files: timedelta = timedelta(minutes=10)
    #: Of versions that are read by their number.
    versions: timedelta = timedelta(days=1)
    #: Of entries of the log that a checkpoint replaced.
    log_entries: timedelta = LOG_GRACE
    #: After the date of a partition: a batch is committed within a day of it.
    open_partitions: timedelta = timedelta(days=1)


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
    stored: LakeTable,
    *,
    at_files: int,
    times: LakeTimes,
    pinned_since: datetime | None,
    check: Callable[[], None],
) -> TableMaintenance:
    """Work on one table; every step may be repeated, so that a pass that was killed is done by the next one.

    Args:
        stored: the table.
        at_files: number of small files from which a partition that still grows is compacted.
        times: times for which files, versions and entries of the log are kept.
        pinned_since: files that a commit removed since then are pinned by a running export.
        check: called before each file that is written or deleted; it raises to stop.
    """
    if stored.open() is None:
        return TableMaintenance()
    now = clock.now()
    pinned_since = max(pinned_since or now, now - _LONGEST_PIN)
    before = count_data_files(stored)
    closed_before = (now - times.open_partitions).date().isoformat()
    joined = compact_small_files(stored, check, at_files=at_files, closed_before=closed_before)
    check()
    deleted, after = delete_unused_files(
        stored, removed_before=min(now - times.removed_files, pinned_since), check=check
    )
    check()
    kept_since = min(now - times.versions, pinned_since)
    entries = clean_up_lake_log(stored, kept_since=kept_since, grace=times.log_entries, check=check)
    return TableMaintenance(before, after, deleted, joined, entries)
