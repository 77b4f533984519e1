"""Cleanup of lake tables: deletion of data files that no commit names, and of log entries of older versions.

Old files and old log entries hold rows and ids that later commits deleted.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from recorder import clock
from recorder.storage.lake_log import CHECKPOINT_NAME
from recorder.storage.lake_schemas import LakePartition
from recorder.storage.lake_tables import LakeTable

#: Younger files that no commit names may still be committed.
_ABANDONED_AFTER = timedelta(days=1)
#: A file without an end that was not written to for so long is none that a run still writes: each row group
#: takes seconds, and a run that was suspended for so long has lost its lease.
_UNFINISHED_AFTER = timedelta(minutes=2)
#: A reader that listed the log before may still open its entries for so long.
LOG_GRACE = timedelta(seconds=60)
#: A file whose time is so far in the future was written before the clock was set back: a store whose clock
#: differs by more refuses requests.
_CLOCK_STEP = timedelta(minutes=15)


@dataclass(frozen=True)
class DataFileTotals:
    """Number and bytes of data files in a store."""

    count: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, infos: Iterable[pa_fs.FileInfo]) -> "DataFileTotals":
        """Count files."""
        sizes = [info.size for info in infos]
        return cls(len(sizes), sum(sizes))


class DeadFiles(NamedTuple):
    """Number of files that were deleted, and partitions with a file that some run may be writing."""

    deleted: int = 0
    unfinished: frozenset[LakePartition] = frozenset()


def count_data_files(stored: LakeTable) -> DataFileTotals:
    """Return number and bytes of all data files of a table, in use or not."""
    return DataFileTotals.of(list_data_files(stored.open_file_system(), ""))


def delete_unused_files(
    stored: LakeTable, *, removed_before: datetime, check: Callable[[], None] = lambda: None
) -> tuple[DataFileTotals, DataFileTotals]:
    """Delete data files that the newest version does not name.

    A file that a commit removed is deleted once that is long enough ago; one that the log does not name, such
    as that of a writer that was killed, once it is a day old.

    Args:
        stored: the table.
        removed_before: files that were removed later may still be read, and are kept.
        check: called before each file is deleted; it raises to stop.

    Returns:
        The files that were deleted, and those that are left.
    """
    # Files are listed before the table is opened, whose version then names those committed in between.
    infos = list(list_data_files(stored.open_file_system(), ""))
    table = stored.open()
    if table is None:
        return DataFileTotals(), DataFileTotals.of(infos)
    # A removal must be durable before the file goes.
    stored.sync()
    store = stored.open_file_system(table)
    active = {file.path for file in stored.list_files(table)}
    candidates = [info for info in infos if info.path not in active]
    removed_ms = _read_data_file_removals(store) if candidates else {}
    limit_ms, oldest = clock.to_ms(removed_before), clock.now() - _ABANDONED_AFTER
    unused = [
        info
        for info in candidates
        if (removed_ms[info.path] < limit_ms if info.path in removed_ms else info.mtime < oldest)
    ]
    for info in unused:
        check()
        _delete_dead_file(store, info.path)
    gone = {info.path for info in unused}
    return DataFileTotals.of(unused), DataFileTotals.of(info for info in infos if info.path not in gone)


def delete_dead_files(
    stored: LakeTable, *, partitions: Collection[LakePartition], session_ids: Collection[str]
) -> DeadFiles:
    """Delete the files of partitions that later commits removed, or that hold rows of purged sessions.

    The second kind was written by a run that was killed, or lost against another one, before its commit. No
    run that works now writes rows of these sessions. A file without an end cannot be read, so that it counts
    as one of them: that of a killed run is deleted, and a younger one may be complete at the next call.

    Args:
        stored: the table.
        partitions: partitions that may hold rows of the sessions.
        session_ids: sessions whose rows were deleted from the table.

    Returns:
        The number of deleted files, and the partitions with a younger file without an end.
    """
    table = stored.open()
    if table is None:
        return DeadFiles()
    store = stored.open_file_system(table)
    active = {file.path for file in stored.list_files(table, partitions=partitions)}
    files = [
        (partition, info)
        for partition in sorted(partitions)
        for info in list_data_files(store, f"workflow={partition.workflow}/date={partition.date}")
    ]
    candidates = [(partition, info) for partition, info in files if info.path not in active]
    removed = _read_data_file_removals(store) if candidates else {}
    now, dead, unfinished = clock.now(), [], set()
    for partition, info in candidates:
        is_dead = info.path in removed or info.mtime < now - _ABANDONED_AFTER
        holds_sessions = None if is_dead else _has_data_file_session_rows(store, info.path, session_ids)
        is_left = _is_older(info, now - _UNFINISHED_AFTER)
        if is_dead or holds_sessions or (holds_sessions is None and is_left):
            dead.append(info.path)
        elif holds_sessions is None:
            unfinished.add(partition)
    for path in dead:
        _delete_dead_file(store, path)
    return DeadFiles(len(dead), frozenset(unfinished))


def clean_up_lake_log(
    stored: LakeTable,
    *,
    kept_since: datetime | None = None,
    grace: timedelta = LOG_GRACE,
    check: Callable[[], None] = lambda: None,
) -> int:
    """Write a checkpoint and delete the log entries before it, which name deleted rows; return their number.

    Numbers of batches stay known: a checkpoint holds them.

    Args:
        stored: the table.
        kept_since: versions since then stay readable; None keeps the newest version alone.
        grace: entries that are younger stay.
        check: called before each entry is deleted; it raises to stop.

    Raises:
        Unavailable: if other processes write checkpoints all the time.
    """
    table = stored.open()
    if table is None:
        return 0
    version = stored.checkpoint(table)
    store = stored.open_file_system(table)
    infos = _list_log_to_clean_up(store)
    before = clock.now() - grace
    if kept_since is not None:
        before = min(before, kept_since)
        version = max((_checkpoint_version(info) for info in infos if info.mtime < before), default=-1)
    old = [
        info.path
        for info in infos
        if (info.mtime < before if kept_since is not None else _is_older(info, before))
        and info.base_name[:20].isdigit()
        and (int(info.base_name[:20]) < version or ".damaged-" in info.base_name)
    ]
    for path in old:
        check()
        _delete_dead_file(store, path)
    stored.delete_unfinished_checkpoints()
    return len(old)


def list_data_files(store: pa_fs.FileSystem, folder: str) -> Iterator[pa_fs.FileInfo]:
    """Yield the data files below a folder of a table, in use or not."""
    for info in store.get_file_info(pa_fs.FileSelector(folder, recursive=True, allow_not_found=True)):
        if info.path.endswith(".parquet") and not info.path.startswith("_"):
            yield info


def _is_older(info: pa_fs.FileInfo, before: datetime) -> bool:
    """Return whether a file was written before an instant, or before the clock was set back."""
    return bool(info.mtime < before or info.mtime > clock.now() + _CLOCK_STEP)


def _list_log_to_clean_up(store: pa_fs.FileSystem) -> list[pa_fs.FileInfo]:
    infos = store.get_file_info(pa_fs.FileSelector("_delta_log", allow_not_found=True))
    return [info for info in infos if info.type == pa_fs.FileType.File]


def _checkpoint_version(info: pa_fs.FileInfo) -> int:
    """Return the version of a checkpoint's file; -1 for other files."""
    match = CHECKPOINT_NAME.fullmatch(info.base_name)
    return -1 if match is None else int(match[1])


def _read_data_file_removals(store: pa_fs.FileSystem) -> dict[str, int]:
    """Return the data files that commits removed, with the time of each removal in milliseconds.

    Removals that are older than a week may be missing: a checkpoint leaves them out.
    """
    removed: dict[str, int] = {}
    for info in _list_log_to_clean_up(store):
        if not info.path.endswith(".json"):
            continue
        try:
            with store.open_input_file(info.path) as source:
                lines = source.read().splitlines()
        except FileNotFoundError:
            continue  # a checkpoint that another process wrote since replaces it
        for line in filter(None, lines):
            if action := orjson.loads(line).get("remove"):
                removed[unquote(action["path"])] = action["deletionTimestamp"]
    # Listed again, since it may be newer than the entries that are gone.
    infos = _list_log_to_clean_up(store)
    newest = max(map(_checkpoint_version, infos), default=-1)
    for info in infos:
        if _checkpoint_version(info) == newest >= 0:
            with store.open_input_file(info.path) as source:
                actions = pq.ParquetFile(source).read(columns=["remove.path", "remove.deletionTimestamp"])
            for action in actions["remove"].drop_null().to_pylist():
                removed[unquote(action["path"])] = action["deletionTimestamp"]
    return removed


def _delete_dead_file(store: pa_fs.FileSystem, path: str) -> None:
    """Delete a file; another run may have deleted it already."""
    with suppress(FileNotFoundError):
        store.delete_file(path)


def _has_data_file_session_rows(
    store: pa_fs.FileSystem, path: str, session_ids: Collection[str]
) -> bool | None:
    """Return whether a file holds rows of sessions; None for a truncated file, which has no footer."""
    try:
        with store.open_input_file(path) as source:
            column = pq.ParquetFile(source).read(columns=["session_id"])["session_id"]
    except pa.ArrowInvalid:
        return None
    except FileNotFoundError:
        return False
    return bool(pc.any(pc.is_in(column, pa.array(session_ids, pa.string()))).as_py())
