"""Reads of one session's rows from a lake table, a batch at a time."""

from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from recorder.digest import bucket_of
from recorder.storage.lake_files import RowFilter, SortedSource, merge_sorted, read_file
from recorder.storage.lake_schemas import LAYOUTS, Kind
from recorder.storage.lake_tables import LakeTable


class SessionPlace(NamedTuple):
    """A session and its partition in the table of a kind."""

    kind: Kind
    workflow: str
    date: str
    session_id: str


def read_session_batches(
    stored: LakeTable,
    session: SessionPlace,
    *,
    after: tuple[int, str] | None,
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
    given = layout.schema.names if columns is None else list(columns)
    needed = {*given, *order, "session_id"}
    schema = pa.schema([field for field in layout.schema if field.name in needed])
    wanted = RowFilter(
        {session.session_id: bucket_of(session.session_id)}, None if after is None else after[0]
    )
    if limit == 0:
        return
    try:
        table = stored.open()
        if table is None:
            return
        read = partial(read_file, stored.data_files(table), schema=schema, wanted=wanted)
        if limit is not None:
            read = partial(read, batch_rows=limit)
        sources = [
            SortedSource(file.lower_bound(order), partial(read, file))
            for file in stored.list_files(table, workflow=session.workflow, date=session.date)
            if wanted.may_match(file.bounds_of)
        ]
        with closing(merge_sorted(sources, order)) as batches:
            for unfiltered in batches:
                batch = unfiltered if after is None else _filter_after(unfiltered, order, after)
                if limit is not None:
                    batch = batch.slice(0, limit)
                    limit -= batch.num_rows
                if batch.num_rows:
                    yield batch.select(given)
                if limit == 0:
                    return
    finally:
        pa.default_memory_pool().release_unused()


def _filter_after(batch: pa.RecordBatch, order: Sequence[str], after: tuple[int, str]) -> pa.RecordBatch:
    """Return the rows after a position."""
    t_ms, row_id = (batch[name] for name in order)
    is_later = pc.greater(t_ms, after[0])
    is_same = pc.and_(pc.equal(t_ms, after[0]), pc.greater(row_id, after[1]))
    return batch.filter(pc.or_(is_later, is_same))
