"""Cleanup of lake tables: data files that no commit names any more, and the log of older versions.

Old files and old log entries hold rows and ids that later commits deleted.
"""

import logging
from collections.abc import Collection, Iterator
from datetime import timedelta
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from recorder import clock
from recorder.storage.lake_tables import LakeTable

log = logging.getLogger("recorder.lake")

_ABANDONED_AFTER = timedelta(days=1)
_ABANDONED_UNTIL = timedelta(days=20)
#: A reader that listed the log before may still open its entries for so long.
_LOG_GRACE = timedelta(seconds=60)


def delete_abandoned_files(stored: LakeTable) -> int:
    """Delete data files that no commit named since they were written; return their number.

    Files younger than a day may still be committed. The log may no longer name files older than 20 days.
    """
    table = stored.open()
    if table is None:
        return 0
    store = stored.data_files(table)
    now = clock.now()
    oldest, newest = now - _ABANDONED_UNTIL, now - _ABANDONED_AFTER
    active = {file.path for file in stored.list_files(table)}
    candidates = [
        info.path
        for info in _list_data_files(store, "")
        if info.path not in active and oldest < info.mtime < newest
    ]
    named = set(_read_named_paths(store, ("add", "remove"))) if candidates else set()
    abandoned = [path for path in candidates if path not in named]
    for path in abandoned:
        store.delete_file(path)
    if abandoned:
        log.info("deleted %s lake file(s) of %s that no commit names", len(abandoned), stored.path)
    return len(abandoned)


def delete_dead_files(stored: LakeTable, *, workflow: str, date: str, session_ids: Collection[str]) -> int:
    """Delete the files of a partition that later commits removed, or that hold rows of purged sessions.

    The second kind was written by a run that was killed, or lost against another one, before its commit. No
    run that works now writes rows of these sessions.

    Args:
        stored: the table.
        workflow: workflow of the partition.
        date: date of the partition.
        session_ids: sessions whose rows were deleted from the table.

    Returns:
        The number of deleted files.
    """
    table = stored.open()
    if table is None:
        return 0
    store = stored.data_files(table)
    active = {file.path for file in stored.list_files(table, workflow=workflow, date=date)}
    files = list(_list_data_files(store, f"workflow={workflow}/date={date}"))
    candidates = [info for info in files if info.path not in active]
    removed = set(_read_named_paths(store, ("remove",))) if candidates else set()
    oldest = clock.now() - _ABANDONED_AFTER
    dead = [
        info.path
        for info in candidates
        if info.path in removed or info.mtime < oldest or _holds_sessions(store, info.path, session_ids)
    ]
    for path in dead:
        store.delete_file(path)
    return len(dead)


def clean_log(stored: LakeTable) -> int:
    """Write a checkpoint and delete the log entries before it, which name deleted rows; return their number.

    Numbers of batches stay known: a checkpoint holds them.
    """
    table = stored.open()
    if table is None:
        return 0
    version = stored.checkpoint(table)
    store = stored.data_files(table)
    before = clock.now() - _LOG_GRACE
    old = [
        info.path
        for info in store.get_file_info(pa_fs.FileSelector("_delta_log"))
        if info.type == pa_fs.FileType.File
        and info.mtime < before
        and info.base_name[:20].isdigit()
        and (int(info.base_name[:20]) < version or ".damaged-" in info.base_name)
    ]
    for path in old:
        store.delete_file(path)
    return len(old)


def _list_data_files(store: pa_fs.FileSystem, folder: str) -> Iterator[pa_fs.FileInfo]:
    for info in store.get_file_info(pa_fs.FileSelector(folder, recursive=True, allow_not_found=True)):
        if info.path.endswith(".parquet") and not info.path.startswith("_"):
            yield info


def _read_named_paths(store: pa_fs.FileSystem, actions: Collection[str]) -> Iterator[str]:
    """Yield the data files that entries of the log add or remove."""
    for info in store.get_file_info(pa_fs.FileSelector("_delta_log", allow_not_found=True)):
        if not info.path.endswith(".json"):
            continue
        try:
            with store.open_input_file(info.path) as source:
                lines = source.read().splitlines()
        except FileNotFoundError:
            continue  # a checkpoint that another process wrote since replaces it
        for line in filter(None, lines):
            action = orjson.loads(line)
            yield from (unquote(action[name]["path"]) for name in actions if name in action)


def _holds_sessions(store: pa_fs.FileSystem, path: str, session_ids: Collection[str]) -> bool:
    """Return whether a file holds rows of sessions; False for one that was cut off while it was written."""
    try:
        with store.open_input_file(path) as source:
            column = pq.ParquetFile(source).read(columns=["session_id"])["session_id"]
    except (pa.ArrowInvalid, FileNotFoundError):
        return False
    return bool(pc.any(pc.is_in(column, pa.array(session_ids, pa.string()))).as_py())
