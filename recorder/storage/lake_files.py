"""Parquet data files of the lake: sorted writing in bounded memory, filtered and sorted reading."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from recorder import clock
from recorder.lazy_property import lazy_property
from recorder.storage.lake_schemas import PARTITIONS, TableLayout

#: Bytes of one row group before compression, which a writer holds in memory.
ROW_GROUP_BYTES = 16 * 1024 * 1024
# A batch that is read holds about this many bytes; row groups tell how wide their rows are.
_BATCH_BYTES = 1024 * 1024
_BATCH_ROWS = 2_048
# Rows of a batch where narrow columns alone are read.
_SCAN_ROWS = 32_768
# Column chunks are read through a buffer of this size, not whole.
_READ_BUFFER_BYTES = 256 * 1024
# Small pages let a reader that wants the first rows of a group decode few.
_PAGE_ROWS = 1_024
# Values that differ in every row: a dictionary of them would only cost memory.
_UNIQUE = {"event_id", "payload", "sha256", "t_ms", "ts", "seq", "offset"}


@dataclass(frozen=True)
class LakeFileBounds:
    """Least and greatest value of a column; None if unknown."""

    least: Any = None
    greatest: Any = None

    def may_hold(self, value: Any) -> bool:
        """Return whether the bounds may include a value."""
        return (self.least is None or self.least <= value) and (
            self.greatest is None or value <= self.greatest
        )


@dataclass(frozen=True)
class LakeFile:
    """Data file that was written, for a commit now or later; it can be stored as JSON."""

    #: Relative to the folder of the table.
    path: str
    rows: int
    size_bytes: int
    partition: dict[str, str]
    #: Statistics in the form of the Delta log (a JSON document).
    statistics: str
    modified_ms: int

    def to_json(self) -> dict[str, Any]:
        """Return the file as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "LakeFile":
        """Return the file that `to_json` described."""
        return cls(**value)


@dataclass(frozen=True)
class DataFile:
    """Data file of a table's version, as the Delta log describes it."""

    path: str
    size_bytes: int
    rows: int
    partition: dict[str, str]
    #: Bounds by column, for the columns that carry statistics.
    bounds: dict[str, LakeFileBounds]
    modified_ms: int

    @classmethod
    def from_action(cls, action: dict[str, Any]) -> "DataFile":
        """Return the file of a flattened add action."""
        names = [name.removeprefix("min.") for name in action if name.startswith("min.")]
        return cls(
            path=unquote(action["path"]),
            size_bytes=action["size_bytes"],
            rows=action["num_records"],
            partition={name: action[f"partition.{name}"] for name in PARTITIONS},
            bounds={name: LakeFileBounds(action[f"min.{name}"], action[f"max.{name}"]) for name in names},
            modified_ms=action["modification_time"],
        )

    def bounds_of(self, column: str) -> LakeFileBounds:
        """Return the bounds of a column."""
        return self.bounds.get(column, LakeFileBounds())

    def lower_bound(self, order: Sequence[str]) -> tuple[Any, ...]:
        """Return a key that is not above any row's key, by the statistics."""
        least = [self.bounds_of(column).least for column in order]
        return tuple(least[: least.index(None)] if None in least else least)


def write_lake_file(
    sink: Any, batches: Iterable[pa.RecordBatch], layout: TableLayout, partition: dict[str, str], path: str
) -> LakeFile:
    """Write sorted batches to a sink as one Parquet file, a row group in memory at a time.

    Args:
        sink: opened for writing; it is left open.
        batches: with the columns of the layout; partition columns are left out of the file.
        layout: sort order, statistics and size of row groups.
        partition: values of the partition columns.
        path: path of the file in the table.

    Raises:
        ValueError: if a batch begins before the end of the one before it.
    """
    schema = pa.schema([field for field in layout.schema if field.name not in PARTITIONS])
    measured = layout.statistics.split(",")
    bounds: dict[str, LakeFileBounds] = {}
    rows = 0
    last: tuple[Any, ...] | None = None
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=_list_dictionary_columns(schema),
        write_statistics=measured,
        max_rows_per_page=_PAGE_ROWS,
        store_schema=False,
    ) as writer:
        for group in _gather_row_groups(batches, schema, layout.row_group_rows):
            first = read_lake_row_key(group, 0, layout.sort)
            if last is not None and first < last:
                raise ValueError("Rows of a lake file must be sorted.")
            last = read_lake_row_key(group, group.num_rows - 1, layout.sort)
            writer.write_table(group, row_group_size=group.num_rows)
            rows += group.num_rows
            for name in measured:
                extremes = pc.min_max(group[name]).as_py()
                least, greatest = extremes["min"], extremes["max"]
                known = bounds.get(name, LakeFileBounds(least, greatest))
                bounds[name] = LakeFileBounds(min(known.least, least), max(known.greatest, greatest))
    return LakeFile(
        path, rows, sink.tell(), dict(partition), _encode_statistics(rows, bounds), clock.now_ms()
    )


def _gather_row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most: int) -> Iterator[pa.Table]:
    """Yield batches joined to row groups of bounded rows and bytes."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _split_batch_by_row_group(batch.select(schema.names).cast(schema), most):
            if gathered and (rows + piece.num_rows > most or size + piece.nbytes > ROW_GROUP_BYTES):
                yield pa.Table.from_batches(gathered)
                gathered, rows, size = [], 0, 0
            gathered.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if gathered:
        yield pa.Table.from_batches(gathered)


def _split_batch_by_row_group(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Yield pieces of a batch that each fit into a row group."""
    if batch.num_rows > 1 and (batch.num_rows > most or batch.nbytes > ROW_GROUP_BYTES):
        half = min(batch.num_rows // 2, most)
        yield from _split_batch_by_row_group(batch.slice(0, half), most)
        yield from _split_batch_by_row_group(batch.slice(half), most)
    elif batch.num_rows:
        yield batch


def _list_dictionary_columns(schema: pa.Schema) -> list[str]:
    return [
        f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
        for field in schema
        if field.name not in _UNIQUE
    ]


def _encode_statistics(rows: int, bounds: dict[str, LakeFileBounds]) -> str:
    """Return statistics in the form of the Delta log."""

    def format_value(value: Any) -> Any:
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else value

    document = {
        "numRecords": rows,
        "minValues": {name: format_value(bound.least) for name, bound in bounds.items()},
        "maxValues": {name: format_value(bound.greatest) for name, bound in bounds.items()},
        "nullCount": dict.fromkeys(bounds, 0),
    }
    return orjson.dumps(document).decode()


def read_lake_row_key(rows: pa.Table | pa.RecordBatch, row: int, order: Sequence[str]) -> tuple[Any, ...]:
    """Return the sort key of one row."""
    return tuple(rows[name][row].as_py() for name in order)


@dataclass(frozen=True)
class LakeRowFilter:
    """Filter for the rows of some sessions from a time on."""

    #: Hash bucket by session id.
    sessions: dict[str, int]
    from_t_ms: int | None = None

    def may_match(self, bounds_of: Callable[[str], LakeFileBounds]) -> bool:
        """Return whether a file or row group with these bounds may hold wanted rows."""
        ids, buckets = bounds_of("session_id"), bounds_of("bucket")
        ordered = self._ordered
        first = 0 if buckets.least is None else bisect_left(ordered, (buckets.least, ""))
        end = len(ordered) if buckets.greatest is None else bisect_left(ordered, (buckets.greatest + 1, ""))
        if not any(ids.may_hold(ordered[index][1]) for index in range(first, end)):
            return False
        latest = bounds_of("t_ms").greatest
        return self.from_t_ms is None or latest is None or latest >= self.from_t_ms

    def matches_every_row(self, bounds_of: Callable[[str], LakeFileBounds]) -> bool:
        """Return whether all rows with these bounds are wanted."""
        ids, earliest = bounds_of("session_id"), bounds_of("t_ms").least
        if ids.least is None or ids.least != ids.greatest or ids.least not in self.sessions:
            return False
        return self.from_t_ms is None or (earliest is not None and earliest >= self.from_t_ms)

    @lazy_property
    def _ordered(self) -> list[tuple[int, str]]:
        """Buckets and ids in order."""
        return sorted((bucket, session_id) for session_id, bucket in self.sessions.items())

    @lazy_property
    def _session_ids(self) -> pa.Array:
        return pa.array(self.sessions, pa.string())

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Return for each row whether it is wanted."""
        wanted = pc.is_in(batch["session_id"], value_set=self._session_ids)
        if self.from_t_ms is not None:
            wanted = pc.and_(wanted, pc.greater_equal(batch["t_ms"], self.from_t_ms))
        return wanted


def read_lake_file(
    files: pa_fs.FileSystem,
    file: DataFile | LakeFile,
    schema: pa.Schema,
    *,
    wanted: LakeRowFilter | None = None,
    batch_bytes: int = _BATCH_BYTES,
    batch_rows: int = _BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in its order; only the wanted rows if a filter is given.

    Row groups that cannot match are skipped by their statistics. One batch is decoded at a time, in this
    thread, through a small buffer: memory depends neither on the file nor on the session.

    Args:
        files: the file system of the table.
        file: the data file.
        schema: columns to yield; partition values and missing columns are filled in.
        wanted: filter of rows.
        batch_bytes: bytes of a batch at most.
        batch_rows: rows of a batch at most, if the wanted rows begin with the row group.
    """
    with files.open_input_file(file.path) as source:
        parquet = pq.ParquetFile(source, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False)
        present = set(parquet.schema_arrow.names)
        columns = [name for name in schema.names if name in present]
        for index in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(index)
            bounds = _read_group_bounds(group)
            if group.num_rows == 0 or (wanted is not None and not wanted.may_match(bounds)):
                continue
            filtered = None if wanted is None or wanted.matches_every_row(bounds) else wanted
            first, end = 0, group.num_rows
            if filtered is not None:
                # Narrow columns are read first to find the wanted rows, so that few wide values are decoded.
                first, end = _find_lake_row_range(parquet, index, filtered)
            width = max(1, group.total_byte_size // group.num_rows)
            rows = max(16, min(_BATCH_ROWS if first else batch_rows, batch_bytes // width))
            for batch in _read_lake_row_range(parquet, index, columns, rows, first, end):
                yield _complete_lake_file_columns(batch, file, schema, filtered)


def count_lake_file_rows(files: pa_fs.FileSystem, file: DataFile, wanted: LakeRowFilter) -> int:
    """Return the number of wanted rows of a file; only columns of ids and times are read."""
    columns = ["session_id"] if wanted.from_t_ms is None else ["session_id", "t_ms"]
    count = 0
    with files.open_input_file(file.path) as source:
        parquet = pq.ParquetFile(source, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False)
        for index in range(parquet.num_row_groups):
            if wanted.may_match(_read_group_bounds(parquet.metadata.row_group(index))):
                for batch in parquet.iter_batches(
                    _SCAN_ROWS, row_groups=[index], columns=columns, use_threads=False
                ):
                    count += pc.sum(wanted.mask(batch)).as_py() or 0
    return count


def _find_lake_row_range(parquet: pq.ParquetFile, index: int, wanted: LakeRowFilter) -> tuple[int, int]:
    """Return the first wanted row of a row group, and the row after the last wanted row."""
    columns = ["session_id"] if wanted.from_t_ms is None else ["session_id", "t_ms"]
    position, first, end = 0, 0, 0
    for batch in parquet.iter_batches(_SCAN_ROWS, row_groups=[index], columns=columns, use_threads=False):
        rows = pc.indices_nonzero(wanted.mask(batch))
        if len(rows):
            first = first if end else position + rows[0].as_py()
            end = position + rows[-1].as_py() + 1
        position += batch.num_rows
    return first, end


def _read_lake_row_range(
    parquet: pq.ParquetFile, index: int, columns: list[str], batch_rows: int, first: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield some rows of a row group."""
    position = 0
    if end == 0:
        return
    batches = parquet.iter_batches(batch_rows, row_groups=[index], columns=columns, use_threads=False)
    for batch in batches:
        start, stop = max(first - position, 0), min(end - position, batch.num_rows)
        position += batch.num_rows
        if start < stop:
            yield batch.slice(start, stop - start)
        if position >= end:
            return


def _complete_lake_file_columns(
    batch: pa.RecordBatch, file: DataFile | LakeFile, schema: pa.Schema, wanted: LakeRowFilter | None
) -> pa.RecordBatch:
    """Return a batch with all columns of the schema, partition values and missing ones filled in."""
    if wanted is not None:
        mask = wanted.mask(batch)
        if not pc.all(mask).as_py():
            batch = batch.filter(mask)
    columns = []
    for field in schema:
        if field.name in file.partition:
            columns.append(pa.repeat(pa.scalar(file.partition[field.name], field.type), batch.num_rows))
        elif field.name in batch.schema.names:
            columns.append(batch[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_group_bounds(group: pq.RowGroupMetaData) -> Callable[[str], LakeFileBounds]:
    """Return a function that gives the least and greatest value of a column in a Parquet row group."""
    known: dict[str, LakeFileBounds] = {}
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema in ("bucket", "session_id", "t_ms") and column.is_stats_set:
            statistics = column.statistics
            if statistics.has_min_max:
                known[column.path_in_schema] = LakeFileBounds(statistics.min, statistics.max)
    return lambda name: known.get(name, LakeFileBounds())
