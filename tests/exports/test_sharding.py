"""The shards of a plan: how many, and what is deleted or tagged after it was made. Spec §3.2, contract §5."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from recorder.exports.executor import InProcess
from recorder.exports.planning.plan import SHARD_BYTES, bucket_bits
from recorder.exports.planning.selection import plan_selected_sessions
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.hashing import compute_hash_bucket
from recorder.ids import new_id
from recorder.models.session import TagRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.executors import Watched
from tests.support.export_runs import ask, export, folder_of, hashes_of, manifest_of, rows_of
from tests.support.sealed_sessions import START, WORKSPACE, Recording, delete, make_runtime, seal


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return make_runtime(tmp_path)


def test_buckets_are_as_few_as_the_shard_size_allows() -> None:
    assert [bucket_bits(size) for size in (0, SHARD_BYTES, SHARD_BYTES + 1, 3 * SHARD_BYTES)] == [0, 0, 1, 2]


@pytest.mark.usefixtures("many_buckets")
def test_large_payloads_are_spread_over_more_buckets_and_read_in_smaller_tasks(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.exports.planning.sharding.BYTES_AT_ONCE", 20_000)
    tasks: list[ShardTask] = []

    class Noting:
        def run(self, request: Sequence[ShardTask]) -> Iterator[WrittenShard]:
            tasks.extend(request)
            return InProcess().run(request)

    seal(runtime, [Recording(padding=4_000) for _ in range(8)])
    folder = export(runtime, executor=Noting())
    # About 12 kB each: by rows alone they would be four buckets and one task.
    assert manifest_of(folder)["layout"]["checkout"]["bucket_bits"] == 5
    assert {len(task.shards) for task in tasks} == {1}


def test_payloads_that_sealing_did_not_note_are_counted(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(padding=number) for number in (0, 10, 2_000)])
    noted = (
        plan_selected_sessions(runtime.database, runtime.lake, ask(runtime))
        .sessions["payload_bytes"]
        .to_list()
    )
    sessions = DeltaTable(f"{runtime.lake.url}/{WORKSPACE}/live/sessions")
    sessions.update(updates={"payload_bytes": "null"}, predicate=f"session_id IN ('{ids[0]}', '{ids[2]}')")
    unknown = runtime.lake.scan("sessions", Tenant(WORKSPACE, "live")).select("payload_bytes").collect()
    assert unknown.null_count().item() == 2
    plan = plan_selected_sessions(runtime.database, runtime.lake, ask(runtime))
    assert plan.sessions["payload_bytes"].to_list() == noted and all(noted)


@pytest.mark.usefixtures("many_buckets")
def test_sessions_are_spread_over_buckets_without_loss(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(40)])
    folder = export(runtime)
    assert manifest_of(folder)["layout"]["checkout"]["bucket_bits"] >= 4
    assert sorted(rows_of(folder, "frames")["session_id"]) == sorted(ids)


def test_there_are_65536_buckets_at_most_and_a_dataset_of_them_is_valid(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By this size the sessions would need one more bit than their hash has.
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 1)
    first = Recording()
    bucket = compute_hash_bucket(first.session_id)
    same, next_to_it = (find_session_of_bucket(each) for each in (bucket, bucket ^ 1))
    recordings = [first, Recording(session_id=same), Recording(session_id=next_to_it)]
    recordings += [Recording() for _ in range(45)] + [Recording(frames=[0, 500]) for _ in range(5)]
    ids = seal(runtime, recordings)
    folder = export(runtime)
    manifest = manifest_of(folder)
    assert manifest["layout"]["checkout"]["bucket_bits"] == 16
    assert verify_manifest(folder).is_valid, verify_manifest(folder).problems
    assert sorted(set(rows_of(folder)["session_id"])) == sorted(ids)
    sessions = {
        path.name: set(pl.read_parquet(path)["session_id"]) for path in folder.glob("data/*/events-*")
    }
    for session_id in ids:
        of_bucket = {each for each in ids if compute_hash_bucket(each) == compute_hash_bucket(session_id)}
        name = f"events-{compute_hash_bucket(session_id):05d}-of-65536.parquet"
        assert sessions[name] == of_bucket
    assert sessions[f"events-{bucket:05d}-of-65536.parquet"] == {first.session_id, same}
    # Another export takes all files over, and one that lost a session all but its own.
    delete(runtime, next_to_it)
    later = export(runtime, destination={"kind": "local", "path": "later"})
    gone = f"data/workflow=checkout/events-{bucket ^ 1:05d}-of-65536.parquet"
    assert hashes_of(later) == {path: digest for path, digest in hashes_of(folder).items() if path != gone}


def find_session_of_bucket(bucket: int) -> str:
    """Return a new session id with a hash bucket."""
    return next(each for each in iter(lambda: new_id("ses"), "") if compute_hash_bucket(each) == bucket)


@pytest.mark.usefixtures("many_buckets")
def test_a_session_deleted_meanwhile_is_dropped_and_its_shard_rebuilt(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(20)])
    row = ask(runtime)
    run_export(runtime, row.id, owner="test", executor=Watched(InProcess(), lambda: delete(runtime, ids[7])))
    folder = folder_of(runtime, row)
    manifest = manifest_of(folder)
    assert set(rows_of(folder)["session_id"]) == set(ids) - {ids[7]}
    assert (manifest["totals"]["sessions"], manifest["tombstones"]["deleted"]) == (19, 1)
    assert verify_manifest(folder).is_valid


def test_a_shard_that_loses_its_last_session_is_taken_away(runtime: Runtime) -> None:
    (only,) = seal(runtime, [Recording()])
    row = ask(runtime)
    run_export(runtime, row.id, owner="test", executor=Watched(InProcess(), lambda: delete(runtime, only)))
    folder = folder_of(runtime, row)
    assert manifest_of(folder)["shards"] == []
    assert list(folder.rglob("*.parquet")) == []


@pytest.mark.usefixtures("many_buckets")
def test_a_late_tag_does_not_change_a_plan(runtime: Runtime) -> None:
    ids = seal(runtime, [Recording(tags=["gold"]), Recording(), Recording(tags=["gold"])])
    row = ask(runtime, filter={"tag": "gold"})
    run_export(
        runtime, row.id, owner="test", executor=Watched(InProcess(), lambda: tag(runtime, ids[1], "gold"))
    )
    assert set(rows_of(folder_of(runtime, row))["session_id"]) == {ids[0], ids[2]}


def tag(runtime: Runtime, session_id: str, name: str) -> None:
    """Tag a sealed session."""
    with runtime.database.transaction(write=True) as db:
        columns = {"workspace_id": WORKSPACE, "mode": "live", "session_id": session_id}
        db.add(TagRow(id=new_id("tag"), name=name, t_ms=0, position=9, created_at=START, **columns))
