"""Delta tables of the lake: opened, created, and changed by commits that survive a power cut."""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import stamina
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from recorder import clock
from recorder.errors import Conflict, Unavailable
from recorder.errors.panics import LibraryPanic, convert_panics
from recorder.ids import new_id
from recorder.retries import retry
from recorder.storage.durable_files import make_durable_folder, sync_path_to_disk
from recorder.storage.lake_files import DataFile, LakeFile, write_lake_file
from recorder.storage.lake_log import ACTIONS_MEMBER, LocalLog
from recorder.storage.lake_schemas import PARTITIONS, LakePartition, TableLayout

log = logging.getLogger("recorder.lake")

_ATTEMPTS = 200
_NAME = re.compile(r"[A-Za-z0-9_\-.]+", re.ASCII)


class _LocalTable(DeltaTable):
    """Table in a folder, with file names as the file system has them.

    delta-rs returns names as parts of a URL, a space as `%20`, and polars opens them unchanged.
    """

    def file_uris(self, *args: Any, **options: Any) -> list[str]:
        return [unquote(uri) for uri in super().file_uris(*args, **options)]


class LakeTable:
    """Delta table in a folder or in an object store."""

    def __init__(
        self,
        root: str,
        path: str,
        layout: TableLayout,
        *,
        partitions: Sequence[str] = PARTITIONS,
        description: str | None = None,
        checkpoint_every: int = 100,
    ) -> None:
        self.layout = layout
        self.path = path
        self._partitions = list(partitions)
        self._description = description
        self._log = None if "://" in root else LocalLog(Path(path), checkpoint_every=checkpoint_every)

    def open(self, version: int | None = None) -> DeltaTable | None:
        """Open the newest version or a given one; return None before the table is created.

        Purges and maintenance delete the log of older versions. The newest one is opened then: sealed rows
        never change.
        """
        damaged = None if self._log is None else self._log.find_damage()
        if damaged == 0:
            return None
        if damaged is not None and version is None:
            version = damaged - 1
        opened = DeltaTable if self._log is None else _LocalTable
        try:
            return opened(self.path, version=version)
        except TableNotFoundError:
            return None if version is None else self.open()
        except DeltaError:
            # Of an older version whose log is incomplete.
            if version is None:
                raise
            return self.open()

    def open_for_writing(self) -> DeltaTable:
        """Open the newest version; repair or create the table and add missing columns before."""
        if self._log is not None:
            self._log.make_folder()
            self._log.repair()
        for attempt in retry_commit_conflicts():
            # Another writer that creates the table or adds the columns at the same time makes this fail.
            with attempt:
                table = self.open() or self._create_table()
                present = {field.name for field in table.schema().fields}
                missing = [field for field in self.layout.schema if field.name not in present]
                if missing:
                    columns = [Field.from_arrow(field.with_nullable(True)) for field in missing]
                    table.alter.add_columns(columns)
                    table.update_incremental()
                return table
        raise Unavailable("The lake")

    def _create_table(self) -> DeltaTable:
        return DeltaTable.create(
            self.path,
            schema=self.layout.schema,
            mode="ignore",
            partition_by=self._partitions,
            description=self._description,
            # Default statistics would copy the first and last payload into the log, where they outlive
            # the rows; see docs/decisions/0003-lake-layout.md.
            configuration={"delta.dataSkippingStatsColumns": self.layout.statistics},
        )

    def commit(
        self,
        table: DeltaTable,
        added: Sequence[LakeFile],
        removed: Sequence[DataFile] = (),
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Add and remove data files in one commit with this handle, durable when this returns.

        Raises:
            CommitFailedError: if another writer's commit since the handle was opened conflicts with this one.
        """
        now_ms = clock.now_ms()
        # Compaction declares a change of data too: delta-rs ignores commits without one when it checks for
        # commits that removed the same files, and deleted rows would reappear.
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, True, now_ms, file.size_bytes, dict(file.partition)) for file in removed
        ]
        actions += [
            AddAction(file.path, file.size_bytes, file.partition, file.modified_ms, True, file.statistics)
            for file in added
        ]
        count = len(actions) + (transaction is not None)
        # In a folder the library's own checkpoints are not synced.
        is_remote = self._log is None
        hooks = PostCommitHookProperties(is_remote, None if is_remote else False)
        table.create_write_transaction(
            actions,
            mode="append",
            schema=self.layout.schema,
            partition_by=self._partitions,
            commit_properties=CommitProperties(
                custom_metadata={ACTIONS_MEMBER: count},
                app_transactions=None if transaction is None else [transaction],
            ),
            post_commithook_properties=hooks,
        )
        if self._log is None:
            return
        version = self._log.sync()
        try:
            self._log.write_checkpoint(version)
        except (DeltaError, OSError):
            # The commit is durable without a checkpoint; a later commit writes one.
            log.warning("the lake table %s got no checkpoint", self.path, exc_info=True)

    def sync(self) -> None:
        """Make the newest version durable, also one of another process."""
        if self._log is not None:
            self._log.sync()

    def list_files(
        self, table: DeltaTable, *, partitions: Collection[LakePartition] | None = None
    ) -> list[DataFile]:
        """Return the data files of a version; those of some partitions if they are given."""
        # Not `pa.table`, nor Python objects of timestamps: both import pandas.
        actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
        actions = actions.select(
            [field.name for field in actions.schema if not pa.types.is_timestamp(field.type)]
        )
        if partitions is None:
            return [DataFile.from_action(action) for action in actions.to_pylist()]
        for column in PARTITIONS:
            values = pa.array({getattr(partition, column) for partition in partitions}, pa.string())
            actions = actions.filter(pc.is_in(actions[f"partition.{column}"].cast(pa.string()), values))
        files = [DataFile.from_action(action) for action in actions.to_pylist()]
        return [file for file in files if LakePartition(**file.partition) in partitions]

    def open_file_system(self, table: DeltaTable | None = None) -> pa_fs.FileSystem:
        """Return the file system whose root is the table's folder."""
        if self._log is None:
            opened = table or DeltaTable(self.path)
            return pa_fs.PyFileSystem(DeltaStorageHandler.from_table(opened._table))
        return pa_fs.SubTreeFileSystem(self.path, pa_fs.LocalFileSystem())

    def write_file(
        self, rows: pa.Table | Iterable[pa.RecordBatch], partition: dict[str, str], name: str
    ) -> LakeFile:
        """Write one data file into a partition, durable but not committed yet.

        Raises:
            ValueError: if batches are not in order, or a name has letters that a file name may not have.
        """
        if not all(_NAME.fullmatch(part) for part in (*partition.values(), name)):
            raise ValueError("Names of lake files and partitions hold letters, digits, _, - and . only.")
        if isinstance(rows, pa.Table):
            ordered = rows.select(self.layout.schema.names).cast(self.layout.schema)
            rows = ordered.sort_by([(column, "ascending") for column in self.layout.sort]).to_batches()
        folder = "/".join(f"{column}={partition[column]}" for column in self._partitions)
        path = f"{folder}/{name}-{new_id('req').partition('_')[2]}.parquet"
        if self._log is None:
            with self.open_file_system(self.open_for_writing()).open_output_stream(path) as sink:
                return write_lake_file(sink, rows, self.layout, partition, path)
        target = self._log.table / path
        make_durable_folder(target.parent)
        try:
            with pa.OSFile(str(target), "wb") as sink:
                written = write_lake_file(sink, rows, self.layout, partition, path)
            sync_path_to_disk(target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        sync_path_to_disk(target.parent)
        return written

    def checkpoint(self, table: DeltaTable) -> int:
        """Write a checkpoint of the newest version, durable when this returns; return the version."""
        if self._log is not None:
            version = self._log.sync()
            self._log.write_checkpoint(version, is_due=True)
            return version
        table.create_checkpoint()
        return table.version()

    def delete_unfinished_checkpoints(self) -> None:
        """Delete what killed processes left of checkpoints; object stores get each in one write.

        Raises:
            Unavailable: if other processes write checkpoints all the time.
        """
        if self._log is not None:
            self._log.delete_unfinished_checkpoints()


class LakeAhead(Conflict):
    """The lake holds later batches of this lane: another run committed, or the database is an older copy."""

    code = "lake_ahead"

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"The lake's {kind} hold later batches than the database knows of. If the database was restored, "
            "restore the lake of the same time."
        )


def holds_batch_number(table: DeltaTable, kind: str, lane: str, number: int) -> bool:
    """Return whether a table holds a batch.

    Raises:
        LakeAhead: if it holds a later one of the lane.
    """
    last = table.transaction_version(lane)
    if last is not None and last > number:
        raise LakeAhead(kind)
    return last == number


def retry_commit_conflicts() -> Iterator[stamina.Attempt]:
    """Yield attempts of a commit, with growing waits; end once other writers were faster in all of them."""
    with suppress(CommitFailedError):
        yield from retry(
            CommitFailedError, attempts=_ATTEMPTS, first_s=0.001, longest_s=0.1, jitter_s=0.01, growth=1.05
        )


@contextmanager
def convert_lake_table_errors() -> Iterator[None]:
    """Convert errors of a store that does not answer, or of a damaged table, to `Unavailable`."""
    try:
        with convert_panics():
            yield
    except (DeltaError, LibraryPanic, OSError, pa.ArrowException) as error:
        raise Unavailable("The lake") from error
