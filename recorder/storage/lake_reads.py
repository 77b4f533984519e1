"""Reads of the lake that begin again where files vanish, and reads of one session's rows in batches.

Compaction and deletes replace files, which maintenance and purges delete later. Sealed rows never change, so
a read that meets a file that is gone opens the newest version and gets the same rows.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from recorder.errors import Unavailable
from recorder.errors.panics import convert_panics
from recorder.hashing import compute_hash_bucket
from recorder.storage.lake_files import LakeRowFilter, read_lake_file
from recorder.storage.lake_merge import SortedSource, merge_sorted_batches
from recorder.storage.lake_schemas import LAYOUTS, LakeKind, LakePartition
from recorder.storage.lake_tables import LakeTable, convert_lake_table_errors

#: Versions that a read tries. Files stay for a while after they were replaced: a second one is rarely needed.
_ATTEMPTS = 5

_Result = TypeVar("_Result")


def retry_lake_read(read: Callable[[], _Result]) -> _Result:
    """Return the result of a read; repeat the read when files vanish during it.

    Args:
        read: opens the newest version of the lake's tables at each call.

    Raises:
        Unavailable: if files vanish in every attempt.
        LibraryPanic: if a library panics, as polars does where a Parquet file is cut off.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            with convert_panics():
                return read()
        except FileNotFoundError:
            continue
    try:
        with convert_panics():
            return read()
    except FileNotFoundError as error:
        raise Unavailable("The lake") from error


class SessionPartition(NamedTuple):
    """A session and its partition in the table of a kind."""

    kind: LakeKind
    workflow: str
    date: str
    session_id: str


def read_lake_session_batches(
    stored: LakeTable,
    session: SessionPartition,
    *,
    after: tuple[Any, ...] | None,
    columns: Sequence[str] | None,
    limit: int | None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of one session in the kind's order; see `Lake.read_session_batches`.

    Args:
        stored: the table.
        session: the session and its partition.
        after: yield only rows after this `(t_ms, id)`; for events and frames.
        columns: columns to yield, all if None.
        limit: the largest number of rows.

    Raises:
        DeltaError, OSError, pa.ArrowException: if the store does not answer.
    """
    layout = LAYOUTS[session.kind]
    order = [column for column in layout.sort if column not in ("bucket", "session_id")]
    names = layout.schema.names if columns is None else list(columns)
    needed = {*names, *order, "session_id"}
    schema = pa.schema([field for field in layout.schema if field.name in needed])
    attempts = _ATTEMPTS
    try:
        while limit != 0:
            try:
                with closing(_read_newest_lake_rows(stored, session, schema, order, after, limit)) as batches:
                    for batch in batches:
                        limit = None if limit is None else limit - batch.num_rows
                        after = tuple(batch[name][-1].as_py() for name in order)
                        attempts = _ATTEMPTS
                        yield batch.select(names)
                return
            except FileNotFoundError:
                attempts -= 1
                if attempts == 0:
                    raise
    finally:
        pa.default_memory_pool().release_unused()


def read_lake_sessions(
    stored: LakeTable,
    kind: LakeKind,
    workflow: str,
    date: str,
    session_ids: Collection[str],
    *,
    columns: Sequence[str],
) -> list[pa.RecordBatch]:
    """Return the rows of small sessions of a partition, those of each session in the kind's order.

    The table is opened once for all of them, and their rows are in memory at once.

    Raises:
        Unavailable: if the store does not answer.
    """
    layout = LAYOUTS[kind]
    wanted = LakeRowFilter({session_id: compute_hash_bucket(session_id) for session_id in session_ids})
    needed = {*columns, *layout.sort}
    schema = pa.schema([field for field in layout.schema if field.name in needed])

    def read_newest() -> list[pa.RecordBatch]:
        table = stored.open()
        if table is None:
            return []
        read = partial(read_lake_file, stored.open_file_system(table), schema=schema, wanted=wanted)
        sources = [
            SortedSource(file.lower_bound(layout.sort), partial(read, file))
            for file in stored.list_files(table, partitions=[LakePartition(workflow, date)])
            if wanted.may_match(file.bounds_of)
        ]
        with closing(merge_sorted_batches(sources, layout.sort)) as batches:
            return [batch.select(columns) for batch in batches]

    with convert_lake_table_errors():
        return retry_lake_read(read_newest)


def _read_newest_lake_rows(
    stored: LakeTable,
    session: SessionPartition,
    schema: pa.Schema,
    order: Sequence[str],
    after: tuple[Any, ...] | None,
    limit: int | None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield rows of a session after a position from the newest version, without empty batches."""
    from_t_ms = after[0] if after and order[0] == "t_ms" else None
    wanted = LakeRowFilter({session.session_id: compute_hash_bucket(session.session_id)}, from_t_ms)
    table = stored.open()
    if table is None:
        return
    read = partial(read_lake_file, stored.open_file_system(table), schema=schema, wanted=wanted)
    if limit is not None:
        read = partial(read, batch_rows=limit)
    sources = [
        SortedSource(file.lower_bound(order), partial(read, file))
        for file in stored.list_files(table, partitions=[LakePartition(session.workflow, session.date)])
        if wanted.may_match(file.bounds_of)
    ]
    with closing(merge_sorted_batches(sources, order)) as batches:
        for unfiltered in batches:
            batch = unfiltered if after is None else _filter_lake_rows_after(unfiltered, order, after)
            if limit is not None:
                batch = batch.slice(0, limit)
                limit -= batch.num_rows
            if batch.num_rows:
                yield batch
            if limit == 0:
                return


def _filter_lake_rows_after(
    batch: pa.RecordBatch, order: Sequence[str], after: tuple[Any, ...]
) -> pa.RecordBatch:
    """Return the rows after a position; none if the kind has one row per session, which has no order."""
    is_later = pa.array([False] * batch.num_rows, pa.bool_())
    for name, value in reversed(list(zip(order, after, strict=True))):
        is_same = pc.and_(pc.equal(batch[name], value), is_later)
        is_later = pc.or_(pc.greater(batch[name], value), is_same)
    return batch.filter(is_later)
