"""A run that ends early: the next one carries on, and no two work at once. Spec §3.2, contract §5."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlmodel import select

from recorder.errors import Unavailable
from recorder.exports.executor import InProcess
from recorder.exports.runner.export_lease import ExportBusy, claim_export, list_due_exports
from recorder.exports.runner.run import MAX_ATTEMPTS, run_export
from recorder.exports.verify import verify_manifest
from recorder.models.export import ExportRow, ExportShardRow
from recorder.models.operations import LeaseRow
from recorder.runtime import Runtime
from recorder.storage.leases import LeaseLost
from tests.support.executors import Failing, Watched
from tests.support.export_runs import ask, export, folder_of, hashes_of, manifest_of
from tests.support.sealed_sessions import Recording, delete, make_runtime, seal


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return make_runtime(tmp_path)


class Stopped(BaseException):
    """Error that Dagster raises in a cancelled run."""


@pytest.mark.usefixtures("many_buckets")
def test_a_stopped_run_is_carried_on_by_the_next_at_once(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0]) for _ in range(30)])
    whole = export(runtime)
    row = ask(runtime, destination={"kind": "local", "path": "elsewhere"})
    with pytest.raises(Stopped):
        run_export(runtime, row.id, owner="first", executor=Failing(Stopped(), after=3))
    done_before = _done(runtime, row.id)
    resumed = run_export(runtime, row.id, owner="second")
    assert 0 < len(done_before) < len(_done(runtime, row.id))
    assert (resumed.status, resumed.attempt) == ("completed", 2)
    assert hashes_of(folder_of(runtime, row)) == hashes_of(whole)


@pytest.mark.usefixtures("many_buckets")
def test_the_second_run_keeps_to_the_stored_plan(runtime: Runtime) -> None:
    seal(runtime, [Recording() for _ in range(12)])
    row = ask(runtime)
    with pytest.raises(Stopped):
        run_export(runtime, row.id, owner="first", executor=Failing(Stopped(), after=1))
    seal(runtime, [Recording() for _ in range(12)])
    run_export(runtime, row.id, owner="second")
    assert manifest_of(folder_of(runtime, row))["totals"]["sessions"] == 12


def test_two_runs_do_not_work_on_one_export(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    with runtime.database.transaction(write=True) as db:
        claim_export(runtime.database, db, row.id, owner="first")
    with pytest.raises(ExportBusy):
        run_export(runtime, row.id, owner="second")


def test_a_run_that_lost_its_lease_writes_nothing_more(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)

    def _take_over() -> None:
        with runtime.database.transaction(write=True) as db:
            lease = db.get_one(LeaseRow, f"export:{row.id}")
            lease.owner, lease.fence = "second", lease.fence + 1
            db.add(lease)

    with pytest.raises(Exception, match="another run took it"):
        run_export(runtime, row.id, owner="first", executor=Watched(InProcess(), _take_over))
    assert _done(runtime, row.id) == []


def test_exports_without_a_run_are_due(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    queued, held, finished = ask(runtime), ask(runtime), ask(runtime)
    run_export(runtime, finished.id, owner="test")
    with runtime.database.transaction(write=True) as db:
        claim_export(runtime.database, db, held.id, owner="somebody")
    with runtime.database.transaction(write=False) as db:
        assert [row.id for row in list_due_exports(db, limit=9)] == [queued.id]


def test_a_store_that_is_away_leaves_the_export_to_the_next_run(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    with pytest.raises(Unavailable):
        run_export(runtime, row.id, owner="test", executor=Failing(Unavailable("The lake")))
    with runtime.database.transaction(write=False) as db:
        assert db.get_one(ExportRow, row.id).status == "running"
        assert list_due_exports(db, limit=9) == []  # until the lease has run out


_KILLED = """
import os, signal, sys
from pathlib import Path
import recorder.exports.planning.plan as plan
from recorder.exports.executor import InProcess
from recorder.exports.runner.run import run_export
from tests.support.sealed_sessions import make_runtime
plan.SHARD_BYTES = 4_000
class Killing:
    def run(self, tasks):
        for count, written in enumerate(InProcess().run(tasks)):
            if count == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield written
run_export(make_runtime(Path(sys.argv[1])), sys.argv[2], owner="killed", executor=Killing())
"""


@pytest.mark.usefixtures("many_buckets")
def test_a_killed_run_is_carried_on_once_its_lease_ran_out(runtime: Runtime, tmp_path: Path) -> None:
    seal(runtime, [Recording(frames=[0]) for _ in range(30)])
    row = ask(runtime)
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), row.id], cwd=Path(__file__).parents[2], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(ExportBusy):
        run_export(runtime, row.id, owner="too early")
    with runtime.database.transaction(write=True) as db:
        lease = db.get_one(LeaseRow, f"export:{row.id}")
        lease.expires_ms = 0
        db.add(lease)
    assert len(_done(runtime, row.id)) == 3
    run_export(runtime, row.id, owner="next")
    assert verify_manifest(folder_of(runtime, row)).is_valid


def test_an_export_that_run_after_run_does_not_bring_on_fails_in_the_end(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    for number in range(MAX_ATTEMPTS + 1):
        with pytest.raises(Unavailable):
            run_export(runtime, row.id, owner="test", executor=Failing(Unavailable(f"Bucket {number}")))
    failed = run_export(runtime, row.id, owner="test")
    assert failed.error and failed.error["code"] == "attempts_exhausted"
    assert f"Bucket {MAX_ATTEMPTS} does not answer" in failed.error["message"]


@pytest.mark.usefixtures("many_buckets")
def test_runs_that_bring_it_on_are_not_counted_against_an_export(runtime: Runtime) -> None:
    # So many that each of the export's files gets some, but for one case in thousands.
    seal(runtime, [Recording() for _ in range(100)])
    row = ask(runtime)
    for _ in range(MAX_ATTEMPTS + 2):
        with pytest.raises(Stopped):
            run_export(runtime, row.id, owner="test", executor=Failing(Stopped(), after=1))
    assert run_export(runtime, row.id, owner="test").status == "completed"


def test_a_manifest_of_a_run_that_was_cut_off_is_gone_before_anything_changes(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(), Recording()])
    row = ask(runtime)
    with pytest.raises(Stopped):
        run_export(runtime, row.id, owner="first", executor=Failing(Stopped()))
    folder = folder_of(runtime, row)
    (folder / "manifest.json").write_bytes(b"of the run before")
    delete(runtime, ids[0])
    seen: list[bool] = []
    look = Watched(InProcess(), lambda: seen.append((folder / "manifest.json").exists()))
    run_export(runtime, row.id, owner="second", executor=look)
    assert set(seen) == {False}
    assert verify_manifest(folder).is_valid


@pytest.mark.usefixtures("many_buckets")
def test_a_run_that_stood_still_does_not_replace_what_the_next_one_published(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording() for _ in range(4)])
    row = ask(runtime)

    def _be_overtaken() -> None:
        with runtime.database.transaction(write=True) as db:
            lease = db.get_one(LeaseRow, f"export:{row.id}")
            lease.expires_ms = 0
            db.add(lease)
        delete(runtime, ids[0])
        assert run_export(runtime, row.id, owner="second").status == "completed"

    with pytest.raises(LeaseLost):
        run_export(runtime, row.id, owner="first", executor=Watched(InProcess(), _be_overtaken))
    folder = folder_of(runtime, row)
    assert verify_manifest(folder).is_valid
    assert manifest_of(folder)["totals"]["sessions"] == 3


def _done(runtime: Runtime, export_id: str) -> list[str]:
    with runtime.database.transaction(write=False) as db:
        statement = select(ExportShardRow).where(ExportShardRow.export_id == export_id)
        return [shard.path for shard in db.exec(statement) if shard.is_done]
