"""A run of an export: figures, resuming, deletion meanwhile, failure. Spec §3.2, contract §5."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlmodel import select

from recorder.errors import RecorderError, Unavailable
from recorder.exports.asking.wire import to_wire
from recorder.exports.executor import InProcess
from recorder.exports.manifest import WrittenShard
from recorder.exports.planning.plan import SHARD_BYTES, bucket_bits
from recorder.exports.running.claims import ExportBusy, LeaseLost, claim_export, due_exports
from recorder.exports.running.giving_up import MAX_ATTEMPTS
from recorder.exports.running.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.exports.writers.tasks import ShardTask
from recorder.ids import new_id
from recorder.models.export_rows import ExportRow, ExportShardRow
from recorder.models.outbox import LeaseRow, OutboxRow
from recorder.models.session import SessionRow
from recorder.models.tag import TagRow
from recorder.runtime import Runtime
from tests.exporting import ask, export, folder_of, hashes_of, manifest_of, rows_of
from tests.sealed import START, WORKSPACE, Recording, delete, make_runtime, seal


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return make_runtime(tmp_path)


@pytest.fixture
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 4_000)


class Stopped(BaseException):
    """What Dagster raises in a run that is cancelled."""


@dataclass
class Failing:
    """An executor that raises after so many shards."""

    error: BaseException
    after: int = 0

    def run(self, tasks: Sequence[ShardTask]) -> Iterator[WrittenShard]:
        for count, written in enumerate(InProcess().run(tasks)):
            if count == self.after:
                raise self.error
            yield written


@dataclass
class Interrupted:
    """An executor that does something when the first shard is written."""

    act: Callable[[], None]

    def run(self, tasks: Sequence[ShardTask]) -> Iterator[WrittenShard]:
        for count, written in enumerate(InProcess().run(tasks)):
            if count == 0:
                self.act()
            yield written


def test_a_completed_export_shows_its_figures(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0, 600]), Recording(events=[(5, "scroll")])])
    row = run_export(runtime, ask(runtime).id, owner="test")
    shown = to_wire(row, runtime.settings)
    assert (shown.status, shown.rows, shown.frames, shown.actions, shown.shards) == ("completed", 4, 2, 2, 2)
    largest = max(shard["size_bytes"] for shard in manifest_of(folder_of(runtime, row))["shards"])
    assert shown.shard_size_bytes == largest


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl", "webdataset"])
def test_every_figure_is_that_of_the_manifest(runtime: Runtime, format: str) -> None:
    seal(runtime, [Recording(frames=[0, 600]), Recording(frames=[700]), Recording()])
    row = run_export(runtime, ask(runtime, format=format).id, owner="test")
    shown = to_wire(row, runtime.settings).model_dump()
    totals = manifest_of(folder_of(runtime, row))["totals"]
    names = ("rows", "frames", "actions", "shards")
    assert {name: shown[name] for name in names} == {name: totals[name] for name in names}
    assert shown["progress"] == {"shards_done": totals["shards"], "shards_total": totals["shards"]}
    assert shown["rows"] == (3 if format == "webdataset" else 9)


def test_completion_is_told_once_with_the_whole_object(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = run_export(runtime, ask(runtime).id, owner="test")
    run_export(runtime, row.id, owner="again")
    with runtime.database.transaction(write=False) as db:
        events = db.exec(select(OutboxRow).where(OutboxRow.subject_id == row.id).order_by(OutboxRow.id)).all()
    assert [event.type for event in events] == ["export.queued", "export.completed"]
    assert events[1].data == {"export": to_wire(row, runtime.settings).model_dump(mode="json")}


def test_rows_come_whole_and_in_order(runtime: Runtime) -> None:
    seal(runtime, [Recording(outcome=None), Recording(frames=[100])])
    rows = rows_of(export(runtime))
    assert rows.equals(rows.sort("session_id", "t_ms", "event_id"))
    assert rows["outcome"].to_list().count(None) == 3
    assert rows["payload"][0] == '{"url":"https://shop.example/0"}'


def test_pictures_lie_in_the_frames_files(runtime: Runtime) -> None:
    (session_id,) = seal(runtime, [Recording(frames=[0, 600])])
    image = rows_of(export(runtime), "frames")["image"][1]
    assert image["path"] == f"{session_id}-000001.png"
    assert image["bytes"].startswith(b"\x89PNG")


def test_a_picture_whose_bytes_are_gone_is_null(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0])])
    for key in list(runtime.blobs.keys("frames")):
        runtime.blobs.delete(key)
    folder = export(runtime)
    assert rows_of(folder, "frames")["image"].to_list() == [None]
    assert verify_manifest(folder).is_valid


def test_buckets_are_as_few_as_the_shard_size_allows() -> None:
    assert [bucket_bits(size) for size in (0, SHARD_BYTES, SHARD_BYTES + 1, 3 * SHARD_BYTES)] == [0, 0, 1, 2]


@pytest.mark.usefixtures("many_buckets")
def test_large_payloads_are_spread_over_more_buckets_and_read_in_smaller_tasks(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.exports.planning.sharding.BYTES_AT_ONCE", 20_000)
    tasks: list[ShardTask] = []

    class Noting:
        def run(self, asked: Sequence[ShardTask]) -> Iterator[WrittenShard]:
            tasks.extend(asked)
            return InProcess().run(asked)

    seal(runtime, [Recording(padding=4_000) for _ in range(8)])
    folder = export(runtime, executor=Noting())
    # About 12 kB each: by rows alone they would be four buckets and one task.
    assert manifest_of(folder)["layout"]["checkout"]["bucket_bits"] == 5
    assert {len(task.shards) for task in tasks} == {1}


@pytest.mark.usefixtures("many_buckets")
def test_sessions_are_spread_over_buckets_without_loss(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(40)])
    folder = export(runtime)
    assert manifest_of(folder)["layout"]["checkout"]["bucket_bits"] >= 4
    assert sorted(rows_of(folder, "frames")["session_id"]) == sorted(ids)


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


@pytest.mark.usefixtures("many_buckets")
def test_a_session_deleted_meanwhile_is_dropped_and_its_shard_rebuilt(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(20)])
    row = ask(runtime)
    run_export(runtime, row.id, owner="test", executor=Interrupted(lambda: delete(runtime, ids[7])))
    folder = folder_of(runtime, row)
    manifest = manifest_of(folder)
    assert set(rows_of(folder)["session_id"]) == set(ids) - {ids[7]}
    assert (manifest["totals"]["sessions"], manifest["tombstones"]["deleted"]) == (19, 1)
    assert verify_manifest(folder).is_valid


def test_a_shard_that_loses_its_last_session_is_taken_away(runtime: Runtime) -> None:
    (only,) = seal(runtime, [Recording()])
    row = ask(runtime)
    run_export(runtime, row.id, owner="test", executor=Interrupted(lambda: delete(runtime, only)))
    folder = folder_of(runtime, row)
    assert manifest_of(folder)["shards"] == []
    assert list(folder.rglob("*.parquet")) == []


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
        run_export(runtime, row.id, owner="first", executor=Interrupted(_take_over))
    assert _done(runtime, row.id) == []


def test_exports_without_a_run_are_due(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    queued, held, finished = ask(runtime), ask(runtime), ask(runtime)
    run_export(runtime, finished.id, owner="test")
    with runtime.database.transaction(write=True) as db:
        claim_export(runtime.database, db, held.id, owner="somebody")
    with runtime.database.transaction(write=False) as db:
        assert [row.id for row in due_exports(db, limit=9)] == [queued.id]


def test_rows_that_the_lake_lost_fail_the_export(runtime: Runtime) -> None:
    (session_id,) = seal(runtime, [Recording()])
    with runtime.database.transaction(write=True) as db:
        sealed = db.get_one(SessionRow, session_id)
        db.add(SessionRow(**sealed.model_dump() | {"id": new_id("ses")}))
    row = run_export(runtime, ask(runtime).id, owner="test")
    assert row.status == "failed"
    assert row.error == {"code": "rows_missing", "message": "1 sealed session(s) have no row in the lake."}


def test_a_failure_is_told_with_its_code(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    with pytest.raises(ZeroDivisionError):
        run_export(runtime, row.id, owner="test", executor=Failing(ZeroDivisionError()))
    with runtime.database.transaction(write=False) as db:
        event = db.exec(select(OutboxRow).where(OutboxRow.type == "export.failed")).one()
    assert event.data["export"]["status"] == "failed"
    assert event.data["export"]["error"]["code"] == "internal_error"


def test_a_store_that_is_away_leaves_the_export_to_the_next_run(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = ask(runtime)
    with pytest.raises(Unavailable):
        run_export(runtime, row.id, owner="test", executor=Failing(Unavailable("The lake")))
    with runtime.database.transaction(write=False) as db:
        assert db.get_one(ExportRow, row.id).status == "running"
        assert due_exports(db, limit=9) == []  # until the lease has run out


_KILLED = """
import os, signal, sys
from pathlib import Path
import recorder.exports.planning.plan as plan
from recorder.exports.executor import InProcess
from recorder.exports.running.run import run_export
from tests.sealed import make_runtime
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
    seal(runtime, [Recording() for _ in range(40)])
    row = ask(runtime)
    for _ in range(MAX_ATTEMPTS + 2):
        with pytest.raises(Stopped):
            run_export(runtime, row.id, owner="test", executor=Failing(Stopped(), after=1))
    assert run_export(runtime, row.id, owner="test").status == "completed"


def test_a_failed_export_leaves_no_files(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0])])
    row = ask(runtime)
    run_export(runtime, row.id, owner="test", executor=Failing(RecorderError("no"), after=1))
    assert [path for path in folder_of(runtime, row).rglob("*") if path.is_file()] == []


def test_a_manifest_of_a_run_that_was_cut_off_is_gone_before_anything_changes(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(), Recording()])
    row = ask(runtime)
    with pytest.raises(Stopped):
        run_export(runtime, row.id, owner="first", executor=Failing(Stopped()))
    folder = folder_of(runtime, row)
    (folder / "manifest.json").write_bytes(b"of the run before")
    delete(runtime, ids[0])
    seen: list[bool] = []
    look = Interrupted(lambda: seen.append((folder / "manifest.json").exists()))
    run_export(runtime, row.id, owner="second", executor=look)
    assert set(seen) == {False}
    assert verify_manifest(folder).is_valid


@pytest.mark.usefixtures("many_buckets")
def test_a_late_tag_does_not_change_a_plan(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(tags=["gold"]), Recording(), Recording(tags=["gold"])])
    row = ask(runtime, filter={"tag": "gold"})
    run_export(runtime, row.id, owner="test", executor=Interrupted(lambda: tag(runtime, ids[1], "gold")))
    assert set(rows_of(folder_of(runtime, row))["session_id"]) == {ids[0], ids[2]}


def tag(runtime: Runtime, session_id: str, name: str) -> None:
    """Tag a sealed session."""
    with runtime.database.transaction(write=True) as db:
        place = {"workspace_id": WORKSPACE, "mode": "live", "session_id": session_id}
        db.add(TagRow(id=new_id("tag"), name=name, t_ms=0, position=9, created_at=START, **place))


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
        run_export(runtime, row.id, owner="first", executor=Interrupted(_be_overtaken))
    folder = folder_of(runtime, row)
    assert verify_manifest(folder).is_valid
    assert manifest_of(folder)["totals"]["sessions"] == 3


def test_nothing_but_the_dataset_is_left_in_its_folder(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0])])
    folder = export(runtime)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {"manifest.json", "README.md", *hashes_of(folder)}
    assert not (folder / ".staging").exists()


def _done(runtime: Runtime, export_id: str) -> list[str]:
    with runtime.database.transaction(write=False) as db:
        statement = select(ExportShardRow).where(ExportShardRow.export_id == export_id)
        return [shard.path for shard in db.exec(statement) if shard.is_done]
