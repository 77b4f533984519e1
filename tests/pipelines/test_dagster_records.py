"""Removal of Dagster's records: real instances on SQLite and PostgreSQL, read byte by byte. Contract §7."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
import yaml
from dagster._core.storage.runs.schema import RunsTable
from dagster._core.storage.runs.sql_run_storage import SqlRunStorage
from dagster_postgres import PostgresEventLogStorage

from pipelines import dagster_record_job, retention
from pipelines.dagster_record_removal import STRIPPED_TAG, RecordRemovalReport, remove_records
from pipelines.dagster_table_rewrites import rewrite_dagster_databases
from recorder import clock
from recorder.access.keys import Caller
from recorder.audit.log import Origin
from recorder.governance.erasure_runs import run_erasures
from recorder.governance.erasures import request_erasure
from recorder.models.governance import ErasureCreate
from recorder.storage.leases import hold_lease
from recorder.tenant import Tenant
from tests.support.dagster_deployment import Deployment
from tests.support.databases import create_empty_database
from tests.support.purges import finish_purges, open_purges, purge_row
from tests.support.recorded_sessions import execute
from tests.support.rewritten_exports import hide_for_purge
from tests.support.sealed_sessions import Recording, seal
from tests.support.stored_content import read_stored_file

HOME = Path(__file__).parents[2] / "dagster_home"
WORD = "canary-7f3a"
FOREVER_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PARTITIONS = dg.DynamicPartitionsDefinition(name="names")
DATASETS = dg.DynamicPartitionsDefinition(name="datasets")


@dg.asset(check_specs=[dg.AssetCheckSpec("counts", asset="shown")])
def shown(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
    """Yield the fixture that puts a quotation mark into every record of a run."""
    context.log.warning(f"a warning with {WORD}")
    print(f"printed {WORD}")
    context.log_event(dg.AssetObservation("shown", metadata={"seen": dg.MetadataValue.md(WORD)}))
    yield dg.MaterializeResult(
        metadata={"rows": 3, "preview": dg.MetadataValue.md(f"{WORD} " * 3000), "workflows": "pay"},
        check_results=[dg.AssetCheckResult(passed=True, metadata={"problems": WORD}, description=WORD)],
    )


@dg.asset(partitions_def=PARTITIONS)
def parted(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    return dg.MaterializeResult(metadata={"rows": 1, "preview": WORD})


@dg.asset
def talkative(context: dg.AssetExecutionContext) -> None:
    for number in range(120):
        context.log.warning(f"line {number} with {WORD}")


@dg.asset
def broken(context: dg.AssetExecutionContext) -> None:
    raise ValueError(f"an error with {WORD}")


@pytest.fixture(params=["sqlite", "postgresql"])
def instance(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dg.DagsterInstance]:
    """Yield an instance of `dagster_home` with its folder in a temporary place."""
    settings = yaml.safe_load((HOME / "dagster.yaml").read_text())
    if request.param == "postgresql":
        url = create_empty_database(request.getfixturevalue("postgres"))
        monkeypatch.setenv("RECORDER_DAGSTER_POSTGRES_URL", url.replace("://", "+psycopg2://"))
        settings["storage"] = {"postgres": {"postgres_url": {"env": "RECORDER_DAGSTER_POSTGRES_URL"}}}
    monkeypatch.setenv("RECORDER_DAGSTER_DIR", str(tmp_path / "dagster"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text(yaml.safe_dump(settings))
    with dg.DagsterInstance.from_config(str(tmp_path / "home")) as instance:
        yield instance


def run(instance: dg.DagsterInstance, asset: dg.AssetsDefinition, partition: str | None = None) -> str:
    """Materialize an asset; return the run's id."""
    done = dg.materialize([asset], instance=instance, partition_key=partition, raise_on_error=False)
    return done.run_id


def remove(
    instance: dg.DagsterInstance, *, remove_before: datetime, strip_before: datetime
) -> RecordRemovalReport:
    report = remove_records(instance, remove_before=remove_before, strip_before=strip_before, longest_s=60.0)
    freed_bytes, failures = rewrite_dagster_databases(instance)
    report.freed_bytes += freed_bytes
    assert report.failures + failures == []
    return report


def find_word(instance: dg.DagsterInstance, folder: Path) -> list[str]:
    """Return the files and tables of Dagster that hold the word, as it is or in their pages."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    holders = [path.name for path in files if WORD.encode() in read_stored_file(path)]
    if not is_postgresql(instance):
        return holders
    with closing(connect(instance)) as connection:
        data = str(connection.execute("SHOW data_directory").fetchall()[0][0])
        connection.execute("CHECKPOINT")
        names = connection.execute(
            "SELECT c.relname, pg_relation_filepath(c.oid), pg_relation_filepath(nullif(c.reltoastrelid, 0))"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'public' AND c.relkind = 'r'"
        ).fetchall()
    for name, *paths in names:
        files = [Path(data) / path for path in paths if path is not None]
        holders += [name for path in files if path.exists() and WORD.encode() in path.read_bytes()]
    return holders


def is_postgresql(instance: dg.DagsterInstance) -> bool:
    return isinstance(instance.event_log_storage, PostgresEventLogStorage)


def connect(instance: dg.DagsterInstance) -> psycopg.Connection[Any]:
    """Open a connection to the instance's database."""
    storage = instance.event_log_storage
    assert isinstance(storage, PostgresEventLogStorage)
    return psycopg.connect(storage.postgres_url.replace("+psycopg2", ""), autocommit=True)


def later(seconds: float = 5.0) -> datetime:
    return clock.now() + timedelta(seconds=seconds)


def test_old_runs_go_and_the_newest_materialization_stays_with_its_numbers(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    old = run(instance, shown)
    instance.add_dynamic_partitions("names", ["a", "b"])
    part_b, part_a = run(instance, parted, "b"), run(instance, parted, "a")
    newest = run(instance, shown)
    assert find_word(instance, tmp_path) != []
    report = remove(instance, remove_before=later(), strip_before=FOREVER_AGO)
    assert (report.runs, report.stripped_runs, report.left_runs) == (1, 3, 0)
    assert report.freed_bytes > 0
    assert set(instance.get_run_ids()) == {newest, part_a, part_b} and not instance.has_run(old)
    assert find_word(instance, tmp_path) == []
    # What the asset's page shows: the last materialization, its events, partitions and checks.
    event = instance.get_latest_materialization_event(dg.AssetKey("shown"))
    assert event is not None and event.run_id == newest and event.asset_materialization is not None
    metadata = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert metadata == {"rows": 3, "workflows": "pay", "removed": metadata["removed"]}
    (record,) = instance.fetch_materializations(dg.AssetKey("shown"), limit=9).records
    assert record.run_id == newest and record.asset_materialization == event.asset_materialization
    assert instance.get_materialized_partitions(dg.AssetKey("parted")) == {"a", "b"}
    (check,) = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(dg.AssetKey("shown"), "counts"), limit=9
    )
    assert check.run_id == newest and check.event is not None
    kinds = [log.dagster_event.event_type for log in instance.all_logs(newest) if log.dagster_event]
    assert dg.DagsterEventType.RUN_SUCCESS in kinds
    # Nothing is left to do, and the next materialization is shown as usual.
    again = remove(instance, remove_before=later(), strip_before=FOREVER_AGO)
    assert (again.runs, again.stripped_runs) == (0, 0)


@dg.asset(name="datasets", partitions_def=DATASETS)
def dataset(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    return dg.MaterializeResult(metadata={"rows": 1})


def test_runs_of_removed_partitions_and_of_replaced_versions_go(instance: dg.DagsterInstance) -> None:
    instance.add_dynamic_partitions("datasets", ["a", "b"])
    instance.add_dynamic_partitions("names", ["a", "b"])
    of_a, of_b = run(instance, dataset, "a"), run(instance, dataset, "b")
    old_of_a, new_of_a = of_a, run(instance, dataset, "a")
    # Materializations of other assets stay without their partition, and the newest one of each asset.
    named = run(instance, parted, "a")
    newest = [run(instance, asset, "b") for asset in (dataset, parted)]
    instance.delete_dynamic_partition("names", "a")
    assert instance.has_run(old_of_a)
    assert remove(instance, remove_before=later(), strip_before=FOREVER_AGO).runs == 2
    assert set(instance.get_run_ids()) == {new_of_a, named, *newest} and not instance.has_run(of_b)
    instance.delete_dynamic_partition("datasets", "a")
    assert remove(instance, remove_before=later(), strip_before=FOREVER_AGO).runs == 1
    assert set(instance.get_run_ids()) == {named, *newest}


def test_after_an_erasure_recent_runs_stay_without_texts(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    runs = {run(instance, shown), run(instance, broken)}
    erased_at = later(0)
    time.sleep(1.1)  # Creation times of runs have whole seconds on some back ends.
    younger = run(instance, shown)
    report = remove(instance, remove_before=FOREVER_AGO, strip_before=erased_at)
    assert (report.runs, report.stripped_runs) == (0, 2)
    assert set(instance.get_run_ids()) == {*runs, younger}
    tagged = {run.run_id for run in instance.get_runs() if STRIPPED_TAG in run.tags}
    assert tagged == runs
    statuses = {run.run_id: run.status for run in instance.get_runs()}
    assert sorted(status.value for run_id, status in statuses.items() if run_id in runs) == [
        "FAILURE",
        "SUCCESS",
    ]
    last = instance.get_latest_materialization_event(dg.AssetKey("shown"))
    assert last is not None and last.asset_materialization is not None
    assert WORD in str(last.asset_materialization.metadata["preview"].value)
    remove(instance, remove_before=FOREVER_AGO, strip_before=later())
    assert find_word(instance, tmp_path) == []


def test_runs_at_work_stay(instance: dg.DagsterInstance) -> None:
    job = dg.Definitions([shown]).resolve_implicit_global_asset_job_def()
    kept = {
        instance.create_run_for_job(job, status=status).run_id
        for status in (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED)
    }
    gone = instance.create_run_for_job(job, status=dg.DagsterRunStatus.CANCELED).run_id
    report = remove(instance, remove_before=later(), strip_before=later())
    assert report.runs == 1 and set(instance.get_run_ids()) == kept and gone not in kept


def test_a_run_at_work_loses_the_texts_that_it_has_stored_and_goes_on(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    holders: list[str] = []

    @dg.asset
    def staying(context: dg.AssetExecutionContext) -> None:
        preview = {"rows": 3, "preview": WORD}
        context.log.warning(f"a warning with {WORD}")
        print(f"printed {WORD}", flush=True)
        context.log_event(dg.AssetMaterialization("staying", metadata=preview))
        assert find_word(instance, tmp_path) != []
        remove(instance, remove_before=FOREVER_AGO, strip_before=later())
        holders.extend(find_word(instance, tmp_path))
        context.log_event(dg.AssetObservation("staying", metadata={"seen": "what came after the erasure"}))

    done = dg.materialize([staying], instance=instance)
    assert done.success and holders == []
    stored = instance.get_run_by_id(done.run_id)
    assert stored is not None and STRIPPED_TAG not in stored.tags
    assert "what came after the erasure" in str(instance.all_logs(done.run_id))


def test_the_run_that_removes_keeps_its_texts(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def removing(context: dg.AssetExecutionContext) -> None:
        context.log.warning("why this run fails")
        remove_records(
            instance,
            remove_before=FOREVER_AGO,
            strip_before=later(),
            longest_s=60.0,
            own_run=context.run.run_id,
        )

    done = dg.materialize([removing], instance=instance)
    assert "why this run fails" in str(instance.all_logs(done.run_id))


def test_a_removal_that_is_killed_or_out_of_time_is_continued(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(instance, broken)
    run(instance, broken)
    kept = run(instance, shown)
    early = remove_records(instance, remove_before=later(), strip_before=FOREVER_AGO, longest_s=-1.0)
    assert (early.runs, early.left_runs, instance.get_runs_count()) == (0, 3, 3)
    deleted: list[str] = []

    def delete_first(run_id: str) -> None:
        if deleted:
            raise KeyboardInterrupt
        deleted.append(run_id)
        delete_run(run_id)

    delete_run = instance.run_storage.delete_run
    with monkeypatch.context() as patch:
        patch.setattr(instance.run_storage, "delete_run", delete_first)
        with pytest.raises(KeyboardInterrupt):
            remove(instance, remove_before=later(), strip_before=FOREVER_AGO)
    assert instance.get_runs_count() == 2
    report = remove(instance, remove_before=later(), strip_before=FOREVER_AGO)
    assert (report.runs, report.stripped_runs, instance.get_run_ids()) == (1, 1, [kept])
    assert find_word(instance, tmp_path) == []


def test_all_of_many_texts_of_a_run_are_removed(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    said = run(instance, talkative)
    report = remove(instance, remove_before=FOREVER_AGO, strip_before=later())
    assert (report.runs, report.stripped_runs, instance.get_run_ids()) == (0, 1, [said])
    assert find_word(instance, tmp_path) == []


def test_files_of_runs_that_dagsters_pages_deleted_go(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    first = run(instance, broken)
    instance.delete_run(first)
    folder = tmp_path / "dagster"
    tick = folder / "__repository__" / "scheduled_recipes" / "1.err"
    tick.parent.mkdir(parents=True)
    tick.write_text("a tick")
    os.utime(tick, (0, 0))
    remove(instance, remove_before=later(), strip_before=FOREVER_AGO)
    assert [path for path in folder.rglob("*") if first in str(path)] == []
    assert not tick.exists()


@pytest.mark.parametrize("instance", ["sqlite"], indirect=True)
def test_a_database_in_use_is_left_to_the_next_run(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    path = tmp_path / "dagster" / "history" / "runs.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        _, failures = rewrite_dagster_databases(instance, lock_s=0.05)
    assert len(failures) == 1 and "runs.db is left to the next run" in failures[0]
    assert rewrite_dagster_databases(instance)[1] == []


@pytest.mark.parametrize("instance", ["postgresql"], indirect=True)
def test_a_table_in_use_is_left_to_the_next_run(instance: dg.DagsterInstance) -> None:
    with closing(connect(instance)) as connection, connection.transaction():
        connection.execute("LOCK TABLE event_logs IN ACCESS SHARE MODE")
        _, failures = rewrite_dagster_databases(instance, lock_s=0.05)
    assert len(failures) == 1 and "event_logs is left to the next run" in failures[0]
    assert rewrite_dagster_databases(instance)[1] == []


def materialize(deployment: Deployment) -> dict[str, Any]:
    done = dg.materialize(
        [dagster_record_job.dagster_records],
        instance=deployment.instance,
        resources={"recorder": deployment.recorder},
    )
    (event,) = done.asset_materializations_for_node("dagster_records")
    return {name: value.value for name, value in event.metadata.items()}


def test_the_asset_shows_what_it_removed_after_a_hard_delete(deployment: Deployment) -> None:
    first = run(deployment.instance, shown)
    assert materialize(deployment)["stripped_runs"] == 0
    session_id = seal(deployment.runtime, [Recording()], workspace_id=deployment.workspace_id)[0]
    hide_for_purge(deployment.runtime, session_id)
    finish_purges(deployment.runtime)
    assert purge_row(deployment.runtime, session_id).step == "done"
    metadata = materialize(deployment)
    assert metadata["stripped_runs"] >= 1 and metadata["failures"] == 0 and metadata["failed"] == ""
    stripped = deployment.instance.get_run_by_id(first)
    assert stripped is not None and STRIPPED_TAG in stripped.tags


def test_the_asset_deletes_runs_that_ended_30_days_ago(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run(deployment.instance, broken)
    for days, is_there in ((29, True), (31, False)):
        at = later() + timedelta(days=days)
        with monkeypatch.context() as patch:
            patch.setattr(clock, "now", lambda at=at: at)
            materialize(deployment)
        assert deployment.instance.has_run(ended) == is_there


def erase(deployment: Deployment) -> None:
    """Ask for the erasure of a subject with one session, and end its purge."""
    runtime, tenant = deployment.runtime, Tenant(deployment.workspace_id, "live")
    (session_id,) = seal(runtime, [Recording()], workspace_id=tenant.workspace_id)
    execute(runtime, f"UPDATE sessions SET actor_id = 'ada' WHERE id = '{session_id}'")
    with runtime.database.transaction(write=True) as db:
        request_erasure(
            db,
            runtime.settings.secret,
            Caller(tenant, "key_x"),
            Origin.operator(tenant.workspace_id),
            ErasureCreate(subject="ada", scope="all"),
        )
    run_erasures(runtime, "tests")
    assert [each for each, _ in open_purges(runtime)] == [session_id]
    finish_purges(runtime)


def purge(deployment: Deployment) -> int | None:
    """Run purges once; return the number of erasures that ended, None if the run failed."""
    done = dg.materialize(
        [retention.purged_sessions],
        instance=deployment.instance,
        resources={"recorder": deployment.recorder},
        raise_on_error=False,
    )
    materialized = done.asset_materializations_for_node("purged_sessions")
    ended = sum(int(str(event.metadata["erasures"].value)) for event in materialized)
    return ended if done.success else None


def test_an_erasure_ends_once_dagsters_texts_are_gone(deployment: Deployment) -> None:
    runtime, quoting = deployment.runtime, run(deployment.instance, shown)
    erase(deployment)
    with runtime.database.transaction(write=True) as db:
        held = hold_lease(db, dagster_record_job.LEASE, "other", ttl_ms=60_000)
        assert held is not None
    # Another removal is at work: the erasure waits for its end.
    assert purge(deployment) == 0
    stored = deployment.instance.get_run_by_id(quoting)
    assert stored is not None and STRIPPED_TAG not in stored.tags
    with runtime.database.transaction(write=True) as db:
        held.release(db)
    assert purge(deployment) == 1
    stored = deployment.instance.get_run_by_id(quoting)
    assert stored is not None and STRIPPED_TAG in stored.tags
    assert not [log for log in deployment.instance.all_logs(quoting) if WORD in str(log)]


def test_an_erasure_removes_texts_of_runs_from_before_the_clock_was_set_back(deployment: Deployment) -> None:
    quoting, storage = run(deployment.instance, shown), deployment.instance.run_storage
    assert isinstance(storage, SqlRunStorage)
    with storage.connect() as connection:
        ahead = later(5 * 3_600).replace(tzinfo=None)
        connection.execute(RunsTable.update().values(create_timestamp=ahead, update_timestamp=ahead))
    erase(deployment)
    assert purge(deployment) == 1
    stored = deployment.instance.get_run_by_id(quoting)
    assert stored is not None and STRIPPED_TAG in stored.tags
    assert not [log for log in deployment.instance.all_logs(quoting) if WORD in str(log)]


def test_two_removals_do_not_run_at_once(deployment: Deployment) -> None:
    with deployment.runtime.database.transaction(write=True) as db:
        assert hold_lease(db, dagster_record_job.LEASE, "other", ttl_ms=60_000) is not None
    run(deployment.instance, shown)
    assert materialize(deployment)["runs"] == 0
