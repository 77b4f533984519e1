"""Deletion of old Dagster runs, and of texts in runs from before an erasure. Contract §7.

A run's events quote recorded content: previews of datasets, pictures and tables of graphs, texts of errors.
The newest materialization of an asset or partition and the newest result of a check stay, with numbers alone,
since their pages show them; that of a dataset without a partition goes. A killed removal is continued by the
next: the row of a run goes last. A run whose records cannot be removed stops no other one. Runs at work stay,
as the one that writes small exports for hours; they lose the texts that they have stored so far.
"""

import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path

import dagster as dg
import sqlalchemy
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetKeyTable,
    DynamicPartitionsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
from dagster._serdes import deserialize_value, serialize_value

from pipelines.dagster_event_texts import strip_check_texts, strip_dagster_event, strip_event_texts
from pipelines.dagster_table_rewrites import is_dagster_sqlite_file_damaged, rewrite_dagster_sqlite_file
from pipelines.dataset_partitions import PARTITIONS

#: Tag of runs whose texts were removed.
STRIPPED_TAG = "recorder/texts_removed"
_FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_AT_WORK = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_CHUNK = 50
_DATASETS = dg.AssetKey("datasets").to_string()
#: Ids of runs become names of files; Dagster's own are UUIDs.
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass
class RecordRemovalReport:
    """Counts of a removal."""

    #: Runs that were deleted, with their events and logs.
    runs: int = 0
    #: Runs that stay and lost their texts.
    stripped_runs: int = 0
    #: Runs that were not reached in time; the next removal goes on.
    left_runs: int = 0
    #: Runs and assets whose texts, or all records, could not be removed; the next removal tries them again.
    left_texts: int = 0
    #: Bytes of files that were deleted, and by which databases shrank.
    freed_bytes: int = 0
    #: Sentences about what was not removed, about databases that were not rewritten, and damaged ones.
    failures: list[str] = field(default_factory=list)


def remove_records(
    instance: dg.DagsterInstance,
    *,
    remove_before: datetime,
    strip_before: datetime,
    longest_s: float,
    own_run: str | None = None,
) -> RecordRemovalReport:
    """Delete the records of finished runs that ended long ago, and texts of those that stay.

    Args:
        instance: Dagster instance of the deployment.
        remove_before: runs that ended before are deleted, unless a page needs them.
        strip_before: runs that were created before lose their texts.
        longest_s: no further run is worked on after these seconds.
        own_run: the run that removes; it keeps its texts, such as those of its errors, until it has ended.
    """
    report = RecordRemovalReport()
    deadline = time.monotonic() + longest_s
    storage = _dagster_event_storage(instance)
    _delete_unreadable_latest_materializations(storage)
    shown = _find_runs_with_latest_records(storage)
    filters = dg.RunsFilter(statuses=_FINISHED, created_before=max(remove_before, strip_before))
    run_ids = iter(list(reversed(instance.get_run_ids(filters))))
    while chunk := list(islice(run_ids, _CHUNK)):
        if time.monotonic() > deadline:
            report.left_runs = len(chunk) + sum(1 for _ in run_ids)
            break
        records = instance.get_run_records(dg.RunsFilter(run_ids=chunk))
        old = [record.dagster_run.run_id for record in records if _read_run_end(record) < remove_before]
        needed = shown | _find_runs_with_latest_partitions(storage, old)
        expired = [run_id for run_id in old if run_id not in needed]
        _delete_dagster_runs(instance, expired, report)
        for record in records:
            run = record.dagster_run
            if run.run_id not in expired and STRIPPED_TAG not in run.tags:
                with _note_left_texts(report, f"run {run.run_id}"):
                    report.freed_bytes += _strip_run_texts(instance, run.run_id, report)
                    report.stripped_runs += 1
    filters = dg.RunsFilter(statuses=_AT_WORK, created_before=strip_before)
    at_work = {*instance.get_run_ids(filters)} - {own_run}
    for run_id in at_work:
        with _note_left_texts(report, f"run {run_id}"):
            _strip_stored_run_texts(instance, run_id, report)
            _empty_run_logs(instance, run_id)
    _strip_latest_materializations(instance, report, at_work)
    _delete_orphaned_run_files(instance, max(remove_before, strip_before), report)
    report.freed_bytes += _delete_tick_logs(instance, remove_before)
    return report


class EventFileInUse(Exception):
    """Database of a run whose free pages keep deleted texts, as it could not be rewritten now."""


@contextmanager
def _note_left_texts(report: RecordRemovalReport, name: str) -> Iterator[None]:
    """Note that the block could not remove texts, whatever its error, instead of raising it."""
    try:
        yield
    except Exception as error:
        # The messages of most errors quote statements and rows.
        cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
        why = getattr(cause, "sqlite_errorname", type(cause).__name__)
        report.failures.append(f"The texts of {name} are left to the next run: {why}.")
        report.left_texts += 1


def _dagster_event_storage(instance: dg.DagsterInstance) -> SqlEventLogStorage:
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise dg.DagsterInvariantViolationError(
            f"Records of {type(storage).__name__} cannot be removed. Use SQLite or PostgreSQL."
        )
    return storage


def _read_run_end(record: dg.RunRecord) -> datetime:
    """Return when a run ended; for one without a note of it, when it was created."""
    created_at = record.create_timestamp
    return (
        created_at if record.end_time is None else datetime.fromtimestamp(record.end_time, created_at.tzinfo)
    )


def _find_runs_with_latest_records(storage: SqlEventLogStorage) -> set[str]:
    """Return the runs with the newest materialization of an asset, or the newest result of a check."""
    newest = storage.get_latest_materialization_events(list(storage.get_asset_keys()))
    shown = {event.run_id for event in newest.values() if event is not None}
    checks = AssetCheckExecutionsTable.c
    last_checks = sqlalchemy.select(sqlalchemy.func.max(checks.id)).where(
        checks.execution_status != "PLANNED"
    )
    last_checks = last_checks.group_by(checks.asset_key, checks.check_name)
    with storage.index_connection() as connection:
        return shown | set(
            connection.scalars(sqlalchemy.select(checks.run_id).where(checks.id.in_(last_checks)))
        )


def _find_runs_with_latest_partitions(storage: SqlEventLogStorage, run_ids: Sequence[str]) -> set[str]:
    """Return the runs among these with the newest materialization of a partition that is not removed.

    Only the partitions of these runs are looked up: there may be hundreds of thousands.
    """
    event, newer = SqlEventLogStorageTable.alias("event"), SqlEventLogStorageTable.alias("newer")
    registered, kind = DynamicPartitionsTable.c, dg.DagsterEventType.ASSET_MATERIALIZATION.value
    is_replaced = sqlalchemy.exists().where(
        newer.c.asset_key == event.c.asset_key,
        newer.c.dagster_event_type == kind,
        newer.c.partition == event.c.partition,
        newer.c.id > event.c.id,
    )
    is_registered = sqlalchemy.exists().where(
        registered.partitions_def_name == str(PARTITIONS.name), registered.partition == event.c.partition
    )
    statement = sqlalchemy.select(event.c.run_id).where(
        event.c.run_id.in_(run_ids),
        event.c.dagster_event_type == kind,
        event.c.asset_key.is_not(None),
        event.c.partition.is_not(None),
        ~is_replaced,
        sqlalchemy.or_(event.c.asset_key != _DATASETS, is_registered),
    )
    with storage.index_connection() as connection:
        return set(connection.scalars(statement.distinct()))


def _delete_dagster_runs(
    instance: dg.DagsterInstance, run_ids: Sequence[str], report: RecordRemovalReport
) -> None:
    """Delete runs with their events, results of checks and logs."""
    if not run_ids:
        return
    storage = _dagster_event_storage(instance)
    with storage.index_connection() as connection:
        checks = AssetCheckExecutionsTable
        connection.execute(checks.delete().where(checks.c.run_id.in_(run_ids)))
        for run_id in run_ids:
            storage.delete_events_for_run(connection, run_id)
    for run_id in run_ids:
        with _note_left_texts(report, f"run {run_id}"):
            report.freed_bytes += _delete_run_logs(instance, run_id) + _delete_event_files(storage, run_id)
            instance.run_storage.delete_run(run_id)
            report.runs += 1


def _delete_event_files(storage: SqlEventLogStorage, run_id: str) -> int:
    freed = 0
    for path in _list_event_files(storage, run_id):
        freed += path.stat().st_size
        path.unlink(missing_ok=True)
    return freed


def _list_event_files(storage: SqlEventLogStorage, run_id: str) -> list[Path]:
    """Return the files of a run's events: with SQLite each run has a database of its own."""
    path_for_shard = getattr(storage, "path_for_shard", None)
    if path_for_shard is None or not _UUID.fullmatch(run_id):
        return []
    paths = [Path(path_for_shard(run_id) + suffix) for suffix in ("", "-wal", "-shm")]
    return [path for path in paths if path.exists()]


def _delete_run_logs(instance: dg.DagsterInstance, run_id: str) -> int:
    """Delete what the run's process printed; return its bytes."""
    if not _UUID.fullmatch(run_id):
        return 0
    folder, freed = _find_run_log_folder(instance), 0
    if folder is not None:
        freed = sum(path.stat().st_size for path in (folder / run_id).rglob("*") if path.is_file())
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    return freed


def _empty_run_logs(instance: dg.DagsterInstance, run_id: str) -> None:
    """Empty what the process of a run at work has printed; it appends to the same files."""
    folder = _find_run_log_folder(instance)
    if folder is not None and _UUID.fullmatch(run_id):
        for path in (folder / run_id).rglob("*"):
            if path.is_file():
                with suppress(FileNotFoundError):
                    os.truncate(path, 0)


def _find_run_log_folder(instance: dg.DagsterInstance) -> Path | None:
    """Return the folder of what processes of runs print; None if it is no local one."""
    manager = instance.compute_log_manager
    if not isinstance(manager, LocalComputeLogManager):
        return None
    return Path(manager.get_captured_local_path(["log"], "out")).parent


def _delete_orphaned_run_files(
    instance: dg.DagsterInstance, before: datetime, report: RecordRemovalReport
) -> None:
    """Delete old files of runs that Dagster's pages deleted, which leave them."""
    storage, logs = _dagster_event_storage(instance), _find_run_log_folder(instance)
    path_for_shard = getattr(storage, "path_for_shard", None)
    folders = [logs, None if path_for_shard is None else Path(path_for_shard("index")).parent]
    names = {path.stem: path for folder in folders if folder is not None for path in folder.glob("*-*-*-*-*")}
    for run_id, path in names.items():
        with _note_left_texts(report, f"run {run_id}"):
            is_old = _UUID.fullmatch(run_id) and path.stat().st_mtime < before.timestamp()
            if is_old and not instance.has_run(run_id):
                report.freed_bytes += _delete_run_logs(instance, run_id)
                report.freed_bytes += _delete_event_files(storage, run_id)


def _delete_tick_logs(instance: dg.DagsterInstance, before: datetime) -> int:
    """Delete old logs of ticks of sensors and schedules; return their bytes."""
    logs, freed = _find_run_log_folder(instance), 0
    for path in [] if logs is None else logs.glob("__repository__/*/*"):
        status = path.stat()
        if path.is_file() and status.st_mtime < before.timestamp():
            freed += status.st_size
            path.unlink(missing_ok=True)
    return freed


def _strip_run_texts(instance: dg.DagsterInstance, run_id: str, report: RecordRemovalReport) -> int:
    """Remove the texts of a finished run's records, and its logs; return the bytes that were freed."""
    freed = _delete_run_logs(instance, run_id) + _strip_stored_run_texts(instance, run_id, report)
    instance.add_run_tags(run_id, {STRIPPED_TAG: "true"})
    return freed


def _strip_stored_run_texts(instance: dg.DagsterInstance, run_id: str, report: RecordRemovalReport) -> int:
    """Remove the texts of a run's events and results of checks; return the bytes that were freed."""
    storage, freed = _dagster_event_storage(instance), 0
    if _list_event_files(storage, run_id):
        freed = _strip_event_file(storage, run_id, report)
    with storage.index_connection() as connection:
        strip_event_texts(connection, run_id)
        strip_check_texts(connection, run_id)
    return freed


def _strip_event_file(storage: SqlEventLogStorage, run_id: str, report: RecordRemovalReport) -> int:
    """Remove the texts of a run's database, or a damaged one; return the bytes by which it shrank.

    A damaged file may hold texts, and Dagster cannot read it either.

    Raises:
        EventFileInUse: the deleted texts are still in the file, for the next removal.
    """
    # A storage of its own looks whether the file has its tables: a power cut may have emptied it.
    folder = str(_list_event_files(storage, run_id)[0].parent)
    try:
        with SqliteEventLogStorage(folder).run_connection(run_id) as connection:
            strip_event_texts(connection, run_id)
    except sqlalchemy.exc.DatabaseError:
        path = _list_event_files(storage, run_id)[0]
        if not is_dagster_sqlite_file_damaged(path):
            raise
    else:
        path = _list_event_files(storage, run_id)[0]
        shrunk, why = rewrite_dagster_sqlite_file(path)
        if why is None:
            return shrunk
        if not is_dagster_sqlite_file_damaged(path):
            raise EventFileInUse(why)
    freed = _delete_event_files(storage, run_id)
    # Pages that show the run find a database without events.
    with SqliteEventLogStorage(folder).run_connection(run_id):
        pass
    report.failures.append(f"The events of run {run_id} were damaged and have been deleted.")
    return freed


def _delete_unreadable_latest_materializations(storage: SqlEventLogStorage) -> None:
    """Delete copies of the newest materialization that neither Dagster nor a removal can read."""
    table = AssetKeyTable
    with storage.index_connection() as connection:
        statement = sqlalchemy.select(table.c.id, table.c.last_materialization)
        for row_id, text in connection.execute(
            statement.where(table.c.last_materialization.is_not(None))
        ).all():
            try:
                _ = deserialize_value(text, dg.EventLogRecord).event_log_entry.run_id
            except Exception:  # damaged records raise errors of many kinds, such as TypeError and KeyError
                connection.execute(
                    table.update().where(table.c.id == row_id).values(last_materialization=None)
                )


def _strip_latest_materializations(
    instance: dg.DagsterInstance, report: RecordRemovalReport, at_work: Collection[str]
) -> None:
    """Remove texts from the copy of the newest materialization that Dagster keeps with each asset.

    Args:
        instance: Dagster instance of the deployment.
        report: gets what could not be removed.
        at_work: runs at work whose texts were removed.
    """
    table = AssetKeyTable
    with _dagster_event_storage(instance).index_connection() as connection:
        statement = sqlalchemy.select(table.c.id, table.c.last_materialization)
        rows = connection.execute(statement.where(table.c.last_materialization.is_not(None))).all()
    for row_id, text in rows:
        with _note_left_texts(report, f"asset {row_id}"):
            stripped = _strip_latest_materialization(instance, text, at_work)
            if stripped == text:
                continue
            # A newer materialization that came in between stays.
            is_same = (table.c.id == row_id, table.c.last_materialization == text)
            with _dagster_event_storage(instance).index_connection() as connection:
                connection.execute(table.update().where(*is_same).values(last_materialization=stripped))


def _strip_latest_materialization(
    instance: dg.DagsterInstance, text: str, at_work: Collection[str]
) -> str | None:
    """Return a stored materialization without texts, unless its run keeps its own; None if nothing stays."""
    record = deserialize_value(text, dg.EventLogRecord)
    run = instance.get_run_by_id(record.event_log_entry.run_id)
    if run is not None and STRIPPED_TAG not in run.tags and run.run_id not in at_work:
        return text
    entry = strip_dagster_event(record.event_log_entry)
    return None if entry is None else serialize_value(record._replace(event_log_entry=entry))
