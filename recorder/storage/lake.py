"""Sealed rows in Delta tables, one per workspace, mode and kind. The only writer of the lake."""

import re
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from recorder.digest import bucket_of
from recorder.errors import Conflict, Unavailable
from recorder.storage.lake_files import Bounds, DataFile, RowFilter, SortedSource, merge_sorted, read_file
from recorder.storage.lake_schemas import LAYOUTS, Kind

#: Small row groups keep the read of one session at one group (research: 10 ms instead of 165).
_WRITER = WriterProperties(compression="ZSTD", compression_level=1, max_row_group_size=32_768)
_PARTITIONS = ["workflow", "date"]
_COMPACT_AT_FILES = 100
_TARGET_FILE_BYTES = 16 * 1024 * 1024
_MARK = "deployment"
_SAFE = re.compile(r"[A-Za-z0-9_\-]+", re.ASCII)


class LakeAhead(Conflict):
    """The lake holds later batches of this lane: another run went on, or the database is an older copy."""

    code = "lake_ahead"

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"The lake's {kind} hold later batches than the database knows of. If the database was restored, "
            "restore the lake of the same time."
        )


class _LocalTable(DeltaTable):
    """A table in a folder, whose files are named as the file system knows them.

    delta-rs gives their names as parts of an address, a space as `%20`, and polars opens them as they are.
    """

    def file_uris(self, *args: Any, **options: Any) -> list[str]:
        return [unquote(uri) for uri in super().file_uris(*args, **options)]


class Lake:
    """The Delta tables of a deployment, under `<url>/<workspace>/<mode>/<kind>`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def append(
        self, kind: Kind, workspace_id: str, mode: str, rows: pa.Table, *, lane: str, number: int
    ) -> bool:
        """Add the rows of one numbered batch; a number the table already holds adds nothing.

        Exactly once: the table is opened fresh, its last number of the lane is read, and the write uses
        that same handle, so a rival commit in between makes it fail and look again. Numbers of a lane
        must come in order.

        Args:
            rows: columns of the kind's schema, any order of rows.
            lane: who numbers, such as `seal:wsp_…:live`.
            number: rising from 1.

        Returns:
            Whether rows were added.

        Raises:
            LakeAhead: if the table holds a higher number of the lane.
            Unavailable: if the store does not answer.
        """
        layout = LAYOUTS[kind]
        ordered = rows.select(layout.schema.names).cast(layout.schema)
        ordered = ordered.sort_by([(column, "ascending") for column in layout.sort])
        while True:
            try:
                table = self._open_or_create(kind, workspace_id, mode)
                last = table.transaction_version(lane)
                if last == number:
                    return False
                if last is not None and last > number:
                    raise LakeAhead(kind)
                write_deltalake(
                    table,
                    ordered,
                    mode="append",
                    # A table that an earlier release made gets the columns that came since.
                    schema_mode="merge",
                    writer_properties=_WRITER,
                    commit_properties=CommitProperties(app_transactions=[Transaction(lane, number)]),
                )
            except CommitFailedError:
                continue
            except (DeltaError, OSError) as error:
                raise Unavailable("The lake") from error
            return True

    def version(self, kind: Kind, workspace_id: str, mode: str) -> int | None:
        """The newest version of a table; None before its first batch."""
        table = self._open(kind, workspace_id, mode)
        return None if table is None else table.version()

    def scan(self, kind: Kind, workspace_id: str, mode: str, *, version: int | None = None) -> pl.LazyFrame:
        """The rows of a table, at a pinned version if one is given; empty before the first batch.

        Columns that came since the table was made are null.
        """
        schema = pl.Schema(LAYOUTS[kind].schema)
        table = self._open(kind, workspace_id, mode, version)
        if table is None:
            return pl.LazyFrame(schema=schema)
        known = {field.name for field in table.schema().fields}
        missing = [pl.lit(None, dtype).alias(name) for name, dtype in schema.items() if name not in known]
        return pl.scan_delta(table).with_columns(missing)

    def read_session(
        self,
        kind: Kind,
        workspace_id: str,
        mode: str,
        *,
        workflow: str,
        date: str,
        session_id: str,
        only: pl.Expr | None = None,
    ) -> pl.DataFrame:
        """The rows of one session, in the kind's order; all of them, or those for which `only` is true.

        Partition, bucket and id together let the reader skip all but a row group or two.
        """
        rows = self.scan(kind, workspace_id, mode).filter(
            (pl.col("workflow") == workflow)
            & (pl.col("date") == date)
            & (pl.col("bucket") == bucket_of(session_id))
            & (pl.col("session_id") == session_id)
        )
        if only is not None:
            rows = rows.filter(only)
        return rows.collect().sort(LAYOUTS[kind].sort)

    def read_session_batches(
        self,
        kind: Kind,
        workspace_id: str,
        mode: str,
        *,
        workflow: str,
        date: str,
        session_id: str,
        after: tuple[int, str] | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of one session in the kind's order, a batch at a time.

        Memory does not grow with the session. Files and row groups without wanted rows are skipped by their
        statistics. Close the iterator if you do not exhaust it: it holds files open.

        Args:
            after: give the rows behind this `(t_ms, id)` only; for events and frames.
            columns: columns to give, all if None.
            limit: at most so many rows.

        Raises:
            Unavailable: if the store does not answer.
        """
        schema, sort = LAYOUTS[kind].schema, LAYOUTS[kind].sort
        order = [column for column in sort if column not in ("bucket", "session_id")]
        given = schema.names if columns is None else list(columns)
        read = pa.schema(
            [schema.field(name) for name in schema.names if name in {*given, *order, "session_id"}]
        )
        table = None if limit == 0 else self._open(kind, workspace_id, mode)
        if table is None:
            return
        wanted = RowFilter({session_id: bucket_of(session_id)}, None if after is None else after[0])
        try:
            files = [
                file for file in self._list_files(table, workflow, date) if wanted.may_match(file.bounds_of)
            ]
            store = self._data_files(kind, workspace_id, mode, table)
            sources = [
                SortedSource(_lower_bound(file, order), partial(read_file, store, file, read, wanted=wanted))
                for file in files
            ]
            with closing(merge_sorted(sources, order)) as batches:
                for found in batches:
                    batch = found if after is None else _after(found, order, after)
                    if limit is not None:
                        batch = batch.slice(0, limit)
                        limit -= batch.num_rows
                    if batch.num_rows:
                        yield batch.select(given)
                    if limit == 0:
                        return
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise Unavailable("The lake") from error
        finally:
            pa.default_memory_pool().release_unused()

    def compact(self, kind: Kind, workspace_id: str, mode: str) -> int:
        """Join small files where a partition holds many; returns how many files were taken away.

        Belongs to the sealing lane: it must not run beside a delete.
        """
        table = self._open(kind, workspace_id, mode)
        if table is None:
            return 0
        files = pl.DataFrame(pa.table(table.get_add_actions(flatten=True)))
        small = files.filter(pl.col("size_bytes") < _TARGET_FILE_BYTES // 2)
        crowded = small.group_by("partition.workflow", "partition.date").len()
        removed = 0
        for workflow, date, count in crowded.iter_rows():
            if count < _COMPACT_AT_FILES:
                continue
            metrics: dict[str, Any] = table.optimize.compact(
                partition_filters=[("workflow", "=", workflow), ("date", "=", date)],
                target_size=_TARGET_FILE_BYTES,
                writer_properties=_WRITER,
            )
            removed += metrics["numFilesRemoved"]
        return removed

    def mark_region(self, region: str) -> str:
        """Mark a new lake as one of this region; gives the region of the mark that is there.

        Raises:
            Unavailable: if the store does not answer.
        """
        # A table without rows: one library opens every store that the lake may lie in.
        address = f"{self.url}/{_MARK}"
        try:
            if not DeltaTable.is_deltatable(address):
                schema = pa.schema([pa.field("region", pa.string())])
                DeltaTable.create(address, schema, mode="ignore", description=region)
            return DeltaTable(address).metadata().description or region
        except (DeltaError, OSError) as error:
            raise Unavailable("The lake") from error

    def ping(self) -> None:
        """Ask the store for a sign of life.

        Raises:
            Unavailable: if it cannot be written to.
        """
        if "://" in self.url:
            self.version("sessions", "wsp_health", "live")
            return
        try:
            Path(self.url).mkdir(parents=True, exist_ok=True)
            probe = Path(self.url) / ".health"
            probe.write_bytes(b"ok")
            probe.unlink()
        except OSError as error:
            raise Unavailable("The lake") from error

    def _path(self, kind: Kind, workspace_id: str, mode: str) -> str:
        assert _SAFE.fullmatch(workspace_id) and mode in ("live", "test")
        return f"{self.url}/{workspace_id}/{mode}/{kind}"

    def _open(
        self, kind: Kind, workspace_id: str, mode: str, version: int | None = None
    ) -> DeltaTable | None:
        try:
            opened = DeltaTable if "://" in self.url else _LocalTable
            return opened(self._path(kind, workspace_id, mode), version=version)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise Unavailable("The lake") from error

    def _list_files(self, table: DeltaTable, workflow: str, date: str) -> list[DataFile]:
        """Return the data files of one partition."""
        actions = pa.table(table.get_add_actions(flatten=True))
        is_wanted = pc.and_(
            pc.equal(actions["partition.workflow"], workflow), pc.equal(actions["partition.date"], date)
        )
        return [_data_file(action) for action in actions.filter(is_wanted).to_pylist()]

    def _data_files(self, kind: Kind, workspace_id: str, mode: str, table: DeltaTable) -> pa_fs.FileSystem:
        """Return the file system in which a table's data files have relative paths."""
        if "://" in self.url:
            return pa_fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))
        return pa_fs.SubTreeFileSystem(self._path(kind, workspace_id, mode), pa_fs.LocalFileSystem())

    def _open_or_create(self, kind: Kind, workspace_id: str, mode: str) -> DeltaTable:
        table = self._open(kind, workspace_id, mode)
        if table is not None:
            return table
        layout = LAYOUTS[kind]
        return DeltaTable.create(
            self._path(kind, workspace_id, mode),
            schema=layout.schema,
            mode="ignore",
            partition_by=_PARTITIONS,
            # Default statistics would copy the first and last payload into the log, where they outlive
            # the rows; see docs/decisions/0003-lake-layout.md.
            configuration={"delta.dataSkippingStatsColumns": layout.statistics},
        )


def _data_file(action: dict[str, Any]) -> DataFile:
    names = [name.removeprefix("min.") for name in action if name.startswith("min.")]
    return DataFile(
        path=unquote(action["path"]),
        size_bytes=action["size_bytes"],
        rows=action["num_records"],
        partition={name: action[f"partition.{name}"] for name in _PARTITIONS},
        bounds={name: Bounds(action[f"min.{name}"], action[f"max.{name}"]) for name in names},
        modified_ms=action["modification_time"],
    )


def _lower_bound(file: DataFile, order: Sequence[str]) -> tuple[Any, ...]:
    """Return a key that is not above that of any row of the file, as far as its statistics tell."""
    bound: list[Any] = []
    for column in order:
        least = file.bounds_of(column).least
        if least is None:
            break
        bound.append(least)
    return tuple(bound)


def _after(batch: pa.RecordBatch, order: Sequence[str], after: tuple[int, str]) -> pa.RecordBatch:
    """Return the rows behind a position."""
    t_ms, row_id = (batch[name] for name in order)
    is_later = pc.greater(t_ms, after[0])
    is_same = pc.and_(pc.equal(t_ms, after[0]), pc.greater(row_id, after[1]))
    return batch.filter(pc.or_(is_later, is_same))
