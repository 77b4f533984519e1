"""Sealed rows in Delta tables, one per workspace, mode and kind. The only writer of the lake."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from recorder.digest import bucket_of
from recorder.errors import Conflict, Unavailable
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
