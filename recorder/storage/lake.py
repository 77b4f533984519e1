"""Lake: sealed rows in Delta tables, one per workspace, mode and kind, with the only writer.

In a local folder, files, log entries and their folders are synced before a call returns. In an object store
writes are durable once the store acknowledged them.
"""

import re
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from datetime import datetime

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
from deltalake import Transaction

from recorder.errors import Unavailable
from recorder.hashing import compute_hash_bucket
from recorder.storage.durable_files import write_probe_file
from recorder.storage.lake_cleanup import DeadFiles, clean_up_lake_log, delete_dead_files
from recorder.storage.lake_files import LakeFile, read_lake_file
from recorder.storage.lake_maintenance import LakeTimes, TableMaintenance, maintain_lake_table
from recorder.storage.lake_reads import SessionPartition, read_lake_session_batches, retry_lake_read
from recorder.storage.lake_rewrites import (
    DeletedRows,
    compact_small_files,
    count_session_rows,
    delete_sessions,
)
from recorder.storage.lake_schemas import LAYOUTS, PARTITIONS, LakeKind, LakePartition
from recorder.storage.lake_tables import (
    LakeTable,
    convert_lake_table_errors,
    holds_batch_number,
    retry_commit_conflicts,
)
from recorder.tenant import Tenant

_SAFE = re.compile(r"[A-Za-z0-9_\-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_\-.]+", re.ASCII)
_SESSION_ID = re.compile(r"[a-z]{3}_[0-9A-Za-z]+", re.ASCII)


class Lake:
    """Delta tables of a deployment, under `<url>/<workspace>/<mode>/<kind>`."""

    def __init__(
        self,
        url: str,
        *,
        compact_at_files: int = 100,
        checkpoint_every: int = 100,
        times: LakeTimes | None = None,
    ) -> None:
        """Name the tables; nothing is opened before its first use.

        Args:
            url: folder or address of an object store.
            compact_at_files: number of small files from which a partition is compacted.
            checkpoint_every: number of commits from one checkpoint of a table in a folder to the next.
            times: times for which maintenance keeps files, versions and entries of logs.
        """
        self.url = url.rstrip("/")
        self._compact_at_files = compact_at_files
        self._checkpoint_every = checkpoint_every
        self._times = times or LakeTimes()
        self._tables: dict[str, LakeTable] = {}

    def append(self, kind: LakeKind, tenant: Tenant, rows: pa.Table, *, lane: str, number: int) -> bool:
        """Add the rows of one numbered batch; a number the table already holds adds nothing.

        Args:
            kind: the table.
            tenant: workspace and mode.
            rows: columns of the kind's schema, any order of rows.
            lane: name of the sequence that is numbered, such as `seal:wsp_…:live`.
            number: rising from 1.

        Returns:
            Whether rows were added.

        Raises:
            LakeAhead: if the table holds a higher number of the lane.
            Unavailable: if the store does not answer.
        """
        with convert_lake_table_errors():
            stored = self.stored_table(kind, tenant)
            table = stored.open()
            if table is not None and holds_batch_number(table, kind, lane, number):
                stored.sync()
                return False
        partitions = rows.select(PARTITIONS).group_by(PARTITIONS).aggregate([]).to_pylist()
        files = []
        for partition in partitions:
            is_inside = pc.and_(*(pc.equal(rows[column], partition[column]) for column in PARTITIONS))
            part = rows.filter(is_inside)
            files.append(self.write_file(kind, tenant, part, **partition, name=f"batch-{number}"))
        return self.commit(kind, tenant, files, lane=lane, number=number)

    def write_file(
        self,
        kind: LakeKind,
        tenant: Tenant,
        rows: pa.Table | Iterable[pa.RecordBatch],
        *,
        workflow: str,
        date: str,
        name: str,
    ) -> LakeFile:
        """Write one data file into a partition, durable but not committed yet.

        A row group is held in memory at a time.

        Args:
            kind: the table.
            tenant: workspace and mode.
            rows: a table in any order, or batches in the kind's order. All belong to the partition.
            workflow: workflow of the partition.
            date: date of the partition.
            name: beginning of the file name; a random part follows, so that no file is overwritten.

        Raises:
            Unavailable: if the store does not answer.
            ValueError: if batches are not in order, or a name has other letters than `A-Z a-z 0-9 _ - .`.
        """
        if not all(_NAME.fullmatch(part) for part in (workflow, date, name)):
            raise ValueError("Names of lake files and partitions hold letters, digits, _, - and . only.")
        with convert_lake_table_errors():
            return self.stored_table(kind, tenant).write_file(
                rows, {"workflow": workflow, "date": date}, name
            )

    def read_file(
        self, kind: LakeKind, tenant: Tenant, file: LakeFile
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of a file that `write_file` wrote, whether it is committed or not.

        Raises:
            FileNotFoundError: if the file does not exist.
            Unavailable: if the store does not answer.
        """
        store = self.stored_table(kind, tenant).open_file_system()
        with convert_lake_table_errors():
            is_there = store.get_file_info(file.path).type == pa_fs.FileType.File
        if not is_there:
            raise FileNotFoundError(file.path)
        with convert_lake_table_errors():
            yield from read_lake_file(store, file, LAYOUTS[kind].schema)

    def commit(
        self, kind: LakeKind, tenant: Tenant, files: Sequence[LakeFile], *, lane: str, number: int
    ) -> bool:
        """Add data files under a number of a lane in one commit, durable when this returns.

        Exactly once: the table is opened, its last number of the lane is read, and the commit uses that same
        handle, so a commit of the same lane in between makes it fail and read the number again. Commits of
        other lanes do not. Numbers of a lane must come in order.

        Returns:
            Whether the files were added; False if the table holds the number already.

        Raises:
            LakeAhead: if the table holds a higher number of the lane.
            Unavailable: if the store does not answer.
        """
        stored = self.stored_table(kind, tenant)
        with convert_lake_table_errors():
            for attempt in retry_commit_conflicts():
                table = stored.open_for_writing()
                if holds_batch_number(table, kind, lane, number):
                    # Whoever committed it may have ended before it was durable.
                    stored.sync()
                    return False
                with attempt:
                    stored.commit(table, files, transaction=Transaction(lane, number))
                    return True
        raise Unavailable("The lake")

    def version(self, kind: LakeKind, tenant: Tenant) -> int | None:
        """Return the newest version of a table; None before its first batch."""
        with convert_lake_table_errors():
            table = self.stored_table(kind, tenant).open()
        return None if table is None else table.version()

    def scan(self, kind: LakeKind, tenant: Tenant, *, version: int | None = None) -> pl.LazyFrame:
        """Return the rows of a table, at a pinned version if one is given; empty before the first batch.

        Columns that came since the table was made are null. Collect the rows in `retry_lake_read`, since
        maintenance may delete replaced files in between.
        """
        schema = pl.Schema(LAYOUTS[kind].schema)
        with convert_lake_table_errors():
            table = self.stored_table(kind, tenant).open(version)
        if table is None:
            return pl.LazyFrame(schema=schema)
        known = {field.name for field in table.schema().fields}
        missing = [pl.lit(None, dtype).alias(name) for name, dtype in schema.items() if name not in known]
        return pl.scan_delta(table).with_columns(missing)

    def read_session(
        self,
        kind: LakeKind,
        tenant: Tenant,
        *,
        workflow: str,
        date: str,
        session_id: str,
        only: pl.Expr | None = None,
    ) -> pl.DataFrame:
        """Return the rows of one session in the kind's order: all, or those for which `only` is true.

        Partition, bucket and id together let the reader skip all but a row group or two.
        """
        wanted = (
            (pl.col("workflow") == workflow)
            & (pl.col("date") == date)
            & (pl.col("bucket") == compute_hash_bucket(session_id))
            & (pl.col("session_id") == session_id)
        )
        if only is not None:
            wanted &= only
        rows = retry_lake_read(lambda: self.scan(kind, tenant).filter(wanted).collect())
        return rows.sort(LAYOUTS[kind].sort)

    def read_session_batches(
        self,
        kind: LakeKind,
        tenant: Tenant,
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
            kind: the table.
            tenant: workspace and mode.
            workflow: workflow of the session.
            date: date of the session's partition.
            session_id: the session.
            after: yield only rows after this `(t_ms, id)`; for events and frames.
            columns: columns to yield, all if None.
            limit: the largest number of rows.

        Raises:
            Unavailable: if the store does not answer.
        """
        session = SessionPartition(kind, workflow, date, session_id)
        with convert_lake_table_errors():
            yield from read_lake_session_batches(
                self.stored_table(kind, tenant), session, after=after, columns=columns, limit=limit
            )

    def count_session_rows(
        self,
        kind: LakeKind,
        tenant: Tenant,
        *,
        partitions: Collection[LakePartition],
        session_ids: Collection[str],
    ) -> dict[str, int]:
        """Return the number of rows of each session in some partitions; only columns of ids are read.

        Raises:
            Unavailable: if the store does not answer.
        """
        with convert_lake_table_errors():
            stored = self.stored_table(kind, tenant)
            return retry_lake_read(lambda: count_session_rows(stored, partitions, session_ids))

    def delete_sessions(
        self,
        kind: LakeKind,
        tenant: Tenant,
        *,
        partitions: Collection[LakePartition],
        session_ids: Collection[str],
        is_time_up: Callable[[], bool] = lambda: False,
    ) -> DeletedRows:
        """Delete the rows of sessions in partitions, durable when this returns.

        Files that hold such rows are written again without them, in one commit. Appends may go on at the same
        time.

        Args:
            kind: the table.
            tenant: workspace and mode.
            partitions: partitions that may hold rows of the sessions.
            session_ids: the sessions.
            is_time_up: whether to leave further files to the next call; each call rewrites some.

        Raises:
            ValueError: if an id is not one of a session.
            Unavailable: if the store does not answer.
        """
        if not all(map(_SESSION_ID.fullmatch, session_ids)):
            raise ValueError("A session id has three lower-case letters, _ and letters or digits.")
        with convert_lake_table_errors():
            return delete_sessions(self.stored_table(kind, tenant), partitions, session_ids, is_time_up)

    def compact(self, kind: LakeKind, tenant: Tenant, *, check: Callable[[], None] = lambda: None) -> int:
        """Join the small files of partitions that have many of them; rows stay in their sort order.

        The caller holds the lease of the table. Appends and deletes may go on at the same time: files that a
        delete removed in between are left to the next call.

        Args:
            kind: the table.
            tenant: workspace and mode.
            check: called before each file that is written; it raises to stop, such as when the lease is lost.

        Returns:
            The number of committed files that were replaced.

        Raises:
            Unavailable: if the store does not answer.
        """
        with convert_lake_table_errors():
            stored = self.stored_table(kind, tenant)
            return compact_small_files(stored, check, at_files=self._compact_at_files)

    def maintain(
        self,
        kind: LakeKind,
        tenant: Tenant,
        *,
        pinned_since: datetime | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> TableMaintenance:
        """Compact a table, and delete files and log entries that are not needed; see `maintain_lake_table`.

        The caller holds the lease of the table, as for `compact`.

        Raises:
            Unavailable: if the store does not answer.
        """
        with convert_lake_table_errors():
            return maintain_lake_table(
                self.stored_table(kind, tenant),
                at_files=self._compact_at_files,
                times=self._times,
                pinned_since=pinned_since,
                check=check,
            )

    def delete_dead_files(
        self,
        kind: LakeKind,
        tenant: Tenant,
        *,
        partitions: Collection[LakePartition],
        session_ids: Collection[str],
    ) -> DeadFiles:
        """Delete files of partitions that hold deleted rows; see `lake_cleanup.delete_dead_files`.

        Raises:
            Unavailable: if the store does not answer.
        """
        with convert_lake_table_errors():
            stored = self.stored_table(kind, tenant)
            return delete_dead_files(stored, partitions=partitions, session_ids=session_ids)

    def clean_log(self, kind: LakeKind, tenant: Tenant) -> int:
        """Delete old entries of a table's log; see `lake_cleanup.clean_up_lake_log`.

        Raises:
            Unavailable: if the store does not answer, or other processes write checkpoints all the time.
        """
        with convert_lake_table_errors():
            return clean_up_lake_log(self.stored_table(kind, tenant), grace=self._times.log_entries)

    def stored_table(self, kind: LakeKind, tenant: Tenant) -> LakeTable:
        """Return a table as it is stored."""
        assert _SAFE.fullmatch(tenant.workspace_id) and tenant.mode in ("live", "test")
        path = f"{self.url}/{tenant.workspace_id}/{tenant.mode}/{kind}"
        if path not in self._tables:
            layout = LAYOUTS[kind]
            self._tables[path] = LakeTable(self.url, path, layout, checkpoint_every=self._checkpoint_every)
        return self._tables[path]

    def ping(self) -> None:
        """Check that the store answers.

        Raises:
            Unavailable: if the store cannot be written to.
        """
        try:
            if "://" in self.url:
                self.version("sessions", Tenant("wsp_health", "live"))
            else:
                write_probe_file(self.url)
        except OSError as error:
            raise Unavailable("The lake") from error
