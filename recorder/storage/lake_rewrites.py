"""Rewrites of lake files: deletion of sessions, count of their rows, compaction of small files. Design §3."""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from recorder.errors import Unavailable
from recorder.hashing import compute_hash_bucket
from recorder.storage.lake_files import (
    DataFile,
    LakeFile,
    LakeRowFilter,
    count_lake_file_rows,
    read_lake_file,
)
from recorder.storage.lake_merge import SortedSource, merge_sorted_batches
from recorder.storage.lake_schemas import LakePartition
from recorder.storage.lake_tables import LakeTable, retry_commit_conflicts

_TARGET_FILE_BYTES = 16 * 1024 * 1024
# Compaction holds so many bytes of all the files that it reads at once.
_MERGE_BYTES = 32 * 1024 * 1024
# A delete holds so many bytes of the file that it rewrites, beside a row group of the new one.
_REWRITE_BYTES = 8 * 1024 * 1024
# Files that a delete rewrites at the same time: decoding, encoding and stores take turns.
_FILES_AT_ONCE = 2
# Files that a delete rewrites before it asks whether its time is up.
_FILES_BETWEEN_CHECKS = 8
# Compaction reads so many files at once.
_MERGED_FILES = 100


@dataclass(frozen=True)
class DeletedRows:
    """Number of rows that a call deleted, and whether it deleted all of them."""

    count: int
    is_complete: bool = True


def count_session_rows(
    stored: LakeTable, partitions: Collection[LakePartition], session_ids: Collection[str]
) -> dict[str, int]:
    """Return the number of rows of each session in some partitions, by one read of the table's log."""
    counts = dict.fromkeys(session_ids, 0)
    table = stored.open() if counts else None
    if table is None:
        return counts
    wanted = _make_session_filter(counts)
    for file in stored.list_files(table, partitions=partitions):
        if wanted.may_match(file.bounds_of):
            for session_id, count in _count_in_file(stored, table, file, wanted).items():
                counts[session_id] += count
    return counts


def delete_sessions(
    stored: LakeTable,
    partitions: Collection[LakePartition],
    session_ids: Collection[str],
    is_time_up: Callable[[], bool] = lambda: False,
) -> DeletedRows:
    """Delete the rows of sessions in some partitions in one commit.

    Once the time is up, the commit has those files alone that are rewritten by then, but at least some.
    """
    if not session_ids or stored.open() is None:
        return DeletedRows(0)
    wanted = _make_session_filter(session_ids)
    rewritten: dict[str, tuple[int, LakeFile | None]] = {}
    for attempt in retry_commit_conflicts():
        table = stored.open_for_writing()
        removed, added, count = [], [], 0
        files = [
            file
            for file in stored.list_files(table, partitions=partitions)
            if wanted.may_match(file.bounds_of)
        ]
        new = [file for file in files if file.path not in rewritten]
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            for start in range(0, len(new), _FILES_BETWEEN_CHECKS):
                if any(deleted for deleted, _ in rewritten.values()) and is_time_up():
                    break
                some = new[start : start + _FILES_BETWEEN_CHECKS]
                written = pool.map(partial(_rewrite_without_rows, stored, table, unwanted=wanted), some)
                rewritten |= {file.path: result for file, result in zip(some, written, strict=True)}
        is_complete = all(file.path in rewritten for file in files)
        for file in files:
            deleted, rest = rewritten.get(file.path, (0, None))
            if deleted:
                count += deleted
                removed.append(file)
                added += [] if rest is None else [rest]
        if not removed:
            # An earlier call may have been killed before its commit was durable.
            stored.sync()
            return DeletedRows(0, is_complete)
        with attempt:
            stored.commit(table, added, removed)
            return DeletedRows(count, is_complete)
    raise Unavailable("The lake")


def compact_small_files(
    stored: LakeTable, check: Callable[[], None], *, at_files: int, closed_before: str = ""
) -> int:
    """Join small files of partitions with many.

    Args:
        stored: the table.
        check: called before each file that is written; it raises to stop.
        at_files: number of small files from which a partition is compacted.
        closed_before: partitions of earlier dates get no more rows, and are compacted from two files on.

    Returns:
        The number of committed files that were replaced.
    """
    if stored.open() is None:
        return 0
    replaced = 0
    files = stored.list_files(stored.open_for_writing())
    for group in _group_small_files(files, at_files, closed_before):
        check()
        replaced += _rewrite_small_file_group(stored, group)
    return replaced


def _make_session_filter(session_ids: Collection[str]) -> LakeRowFilter:
    return LakeRowFilter({session_id: compute_hash_bucket(session_id) for session_id in session_ids})


def _count_in_file(
    stored: LakeTable, table: DeltaTable, file: DataFile, wanted: LakeRowFilter
) -> dict[str, int]:
    """Return the number of rows of each wanted session in a file; only the column of ids is read."""
    schema = pa.schema([stored.layout.schema.field("session_id")])
    counts: dict[str, int] = {}
    for batch in read_lake_file(stored.open_file_system(table), file, schema, wanted=wanted):
        for count in pc.value_counts(batch["session_id"]).to_pylist():
            counts[count["values"]] = counts.get(count["values"], 0) + count["counts"]
    return counts


def _rewrite_without_rows(
    stored: LakeTable, table: DeltaTable, file: DataFile, unwanted: LakeRowFilter
) -> tuple[int, LakeFile | None]:
    """Rewrite a file without some rows; return their number, and the new file if rows remain."""
    store, layout = stored.open_file_system(table), stored.layout
    deleted = count_lake_file_rows(store, file, unwanted)
    if deleted in (0, file.rows):
        return deleted, None
    batches = read_lake_file(
        store, file, layout.schema, batch_bytes=_REWRITE_BYTES, batch_rows=layout.row_group_rows
    )
    rest = (batch.filter(pc.invert(unwanted.mask(batch))) for batch in batches)
    return deleted, stored.write_file(rest, file.partition, "kept")


def _group_small_files(files: list[DataFile], at_files: int, closed_before: str) -> Iterator[list[DataFile]]:
    """Yield groups of small files to join, from partitions that hold many."""
    partitions: dict[tuple[str, ...], list[DataFile]] = {}
    for file in files:
        if file.size_bytes < _TARGET_FILE_BYTES // 2:
            partitions.setdefault(tuple(file.partition.values()), []).append(file)
    for small in partitions.values():
        is_closed = small[0].partition["date"] < closed_before
        if len(small) < (2 if is_closed else at_files):
            continue
        most = max(at_files, _MERGED_FILES if is_closed else 0)
        group: list[DataFile] = []
        size = 0
        for file in sorted(small, key=lambda file: (file.modified_ms, file.path)):
            if group and (size + file.size_bytes > _TARGET_FILE_BYTES or len(group) == most):
                yield group
                group, size = [], 0
            group.append(file)
            size += file.size_bytes
        if len(group) > 1:
            yield group


def _rewrite_small_file_group(stored: LakeTable, group: list[DataFile]) -> int:
    """Replace files by one file with their rows in order; return the number of replaced files."""
    layout, partition = stored.layout, group[0].partition
    store, share = stored.open_file_system(), _MERGE_BYTES // len(group)
    sources = [
        SortedSource(
            file.lower_bound(layout.sort),
            partial(read_lake_file, store, file, layout.schema, batch_bytes=share),
        )
        for file in group
    ]
    try:
        joined = stored.write_file(merge_sorted_batches(sources, layout.sort), partition, "compacted")
    finally:
        pa.default_memory_pool().release_unused()
    paths = {file.path for file in group}
    for attempt in retry_commit_conflicts():
        table = stored.open_for_writing()
        if paths - {file.path for file in stored.list_files(table, partitions=[LakePartition(**partition)])}:
            # A delete replaced one of the files: the next call joins the rest.
            return 0
        with attempt:
            stored.commit(table, [joined], group)
            return len(group)
    raise Unavailable("The lake")
