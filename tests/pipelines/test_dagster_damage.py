"""Removal of Dagster's records where files of some runs are damaged: all other texts go. Contract §7."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy
from dagster._core.storage.event_log.schema import AssetKeyTable
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage

from pipelines.dagster_record_removal import STRIPPED_TAG, RecordRemovalReport, remove_records
from pipelines.dagster_table_rewrites import rewrite_dagster_databases, rewrite_dagster_sqlite_file
from tests.pipelines.test_dagster_records import (
    FOREVER_AGO,
    erase,
    find_word,
    later,
    purge,
    run,
    shown,
    talkative,
)
from tests.support.dagster_deployment import Deployment


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Yield an instance with a file of events for each run."""
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        yield instance


def find_event_file(instance: dg.DagsterInstance, run_id: str) -> Path:
    """Return the file with the events of a run."""
    storage = instance.event_log_storage
    assert isinstance(storage, SqliteEventLogStorage)
    return Path(storage.path_for_shard(run_id))


def damage_header(path: Path) -> None:
    path.write_bytes(b"x" * 100 + path.read_bytes()[100:])


def damage_pages(path: Path) -> None:
    """Write zeros over all pages but the first, where tables keep their rows."""
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))


def keep_log(path: Path) -> None:
    """Leave the log of a database without the database."""
    path.with_name(f"{path.name}-wal").write_bytes(path.read_bytes())
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def strip(instance: dg.DagsterInstance) -> RecordRemovalReport:
    return remove_records(instance, remove_before=FOREVER_AGO, strip_before=later(), longest_s=60.0)


def list_stripped(instance: dg.DagsterInstance) -> set[str]:
    return {each.run_id for each in instance.get_runs() if STRIPPED_TAG in each.tags}


@pytest.mark.parametrize("damage", [damage_header, damage_pages])
def test_damaged_events_of_a_finished_run_are_deleted_and_all_other_texts_go(
    instance: dg.DagsterInstance, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    runs = [run(instance, talkative), run(instance, shown), run(instance, talkative)]
    path = find_event_file(instance, runs[0])
    rewrite_dagster_sqlite_file(path)
    damage(path)
    report = strip(instance)
    assert report.failures == [f"The events of run {runs[0]} were damaged and have been deleted."]
    assert (report.stripped_runs, report.left_texts) == (3, 0)
    assert list_stripped(instance) == set(runs)
    assert rewrite_dagster_databases(instance)[1] == []
    assert find_word(instance, tmp_path) == []
    # The page of the run shows it without events.
    assert list(instance.all_logs(runs[0])) == [] and list(instance.all_logs(runs[1])) != []
    assert strip(instance).failures == []


@pytest.mark.parametrize("damage", [keep_log, empty])
def test_lost_events_of_a_finished_run_stop_no_removal(
    instance: dg.DagsterInstance, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    runs = [run(instance, talkative), run(instance, shown)]
    damage(find_event_file(instance, runs[0]))
    report = strip(instance)
    assert (report.failures, report.left_texts) == ([], 0)
    assert rewrite_dagster_databases(instance)[1] == []
    assert list_stripped(instance) == set(runs) and find_word(instance, tmp_path) == []


def test_events_that_cannot_be_opened_keep_an_erasure_open_and_stop_no_other_removal(
    deployment: Deployment, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    deployment = replace(deployment, instance=instance)
    runs = [run(instance, talkative), run(instance, shown), run(instance, talkative)]
    path = find_event_file(instance, runs[0])
    aside = path.rename(path.with_name("aside"))
    path.mkdir()
    erase(deployment)
    # The run fails, so that the pauses before the next ones grow.
    assert purge(deployment) is None
    assert {*runs[1:]} <= list_stripped(instance) and runs[0] not in list_stripped(instance)
    path.rmdir()
    aside.rename(path)
    assert purge(deployment) == 1
    assert {*runs} <= list_stripped(instance)
    assert find_word(instance, tmp_path / "dagster") == []


def test_texts_in_a_database_that_is_read_are_left_to_the_next_removal(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    run_id = run(instance, talkative)
    with closing(sqlite3.connect(find_event_file(instance, run_id), isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM event_logs").fetchone()
        report = strip(instance)
    assert (report.stripped_runs, report.left_texts) == (0, 1) and list_stripped(instance) == set()
    assert "EventFileInUse" in report.failures[0]
    assert strip(instance).failures == [] and list_stripped(instance) == {run_id}
    assert rewrite_dagster_databases(instance)[1] == []
    assert find_word(instance, tmp_path) == []


def test_events_that_cannot_be_read_hold_up_no_removal(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run_id = run(instance, talkative)
    with closing(sqlite3.connect(find_event_file(instance, run_id), isolation_level=None)) as events:
        (first,) = events.execute("SELECT min(id) FROM event_logs").fetchone()
        events.execute(
            "UPDATE event_logs SET event = ? WHERE id = ?", ('{"__class__": "EventLogEntry"}', first)
        )
    assert strip(instance).failures == [] and list_stripped(instance) == {run_id}
    assert rewrite_dagster_databases(instance)[1] == []
    assert find_word(instance, tmp_path) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{" + text,
        lambda text: '{"__class__": "EventLogRecord", "storage_id": 5}',
        lambda text: '{"__class__": "EventLogRecord", "storage_id": 5, "event_log_entry": 1}',
        lambda text: text.replace('"event_type_value"', '"event_type"'),
        lambda text: "[" * 5000,
    ],
    ids=["no-json", "no-entry", "other-entry", "no-type", "nested"],
)
def test_a_latest_materialization_that_cannot_be_read_is_removed(
    instance: dg.DagsterInstance, tmp_path: Path, damage: Callable[[str], str]
) -> None:
    run(instance, shown)
    storage = instance.event_log_storage
    assert isinstance(storage, SqliteEventLogStorage)
    with storage.index_connection() as connection:
        table = AssetKeyTable
        damaged = damage(str(connection.scalar(sqlalchemy.select(table.c.last_materialization))))
        connection.execute(table.update().values(last_materialization=damaged))
    assert strip(instance).failures == []
    with storage.index_connection() as connection:
        assert connection.scalar(sqlalchemy.select(table.c.last_materialization)) is None
    assert rewrite_dagster_databases(instance)[1] == []
    assert find_word(instance, tmp_path) == []


def test_a_damaged_database_is_left_by_the_rewrite(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(b"x" * 8192)
    freed_bytes, why = rewrite_dagster_sqlite_file(path)
    assert freed_bytes == 0 and why is not None and "runs.db is left to the next run" in why
