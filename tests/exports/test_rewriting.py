"""Rewriting of exports whose sessions are purged: kills, readers, folders that are not ours. Contract §7."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from sqlmodel import select

from recorder.exports.destinations.local import LocalFolderDestination
from recorder.exports.executor import InProcess
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.exports.verify.lake_check import compare_export_with_lake
from recorder.governance.purging.purge_runs import run_purges
from recorder.loading import open_export
from recorder.models.export import ExportRow, ExportSessionRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from tests.support.export_runs import ask, export, folder_of, hashes_of, manifest_of, rows_of
from tests.support.purges import finish_purges, make_due, open_purges
from tests.support.recorded_sessions import execute, let_lease_run_out
from tests.support.rewritten_exports import hide_for_purge, row_now
from tests.support.sealed_sessions import WORKSPACE, Recording, delete, seal
from tests.support.statements import before_each_statement

pytestmark = pytest.mark.usefixtures("many_buckets")


ENGINES = ["sqlite", "postgresql"]


class Killed(BaseException):
    """The end of a run's process."""


def files_of(folder: Path) -> set[str]:
    """Return the paths of all files of a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def sessions_of(file: Path) -> list[str]:
    """Return the sessions of a file of events."""
    return sorted(set(pl.read_parquet(file)["session_id"]))


def indexed(runtime: Runtime, export_id: str) -> set[str]:
    """Return the sessions that the index has of an export."""
    with runtime.database.transaction(write=False) as db:
        rows = select(ExportSessionRow.session_id).where(ExportSessionRow.export_id == export_id)
        return set(db.exec(rows))


def require_rewritten(runtime: Runtime, folder: Path, gone: list[str], *, revision: int = 2) -> None:
    """Require a valid dataset without some sessions, and nothing that names them."""
    row = row_now(runtime, folder.name)
    manifest = manifest_of(folder)
    assert verify_manifest(folder).is_valid, verify_manifest(folder).problems
    assert not compare_export_with_lake(runtime, row, seed=1).problems
    assert not set(gone) & set(rows_of(folder)["session_id"])
    assert manifest["revision"] == row.revision == revision
    assert manifest["totals"]["rows"] == row.rows == rows_of(folder).height
    assert sum(manifest["tombstones"].values()) == len(gone)
    assert files_of(folder) == {"manifest.json", "README.md", *hashes_of(folder)}
    assert list(runtime.blobs.keys(f"exports/{WORKSPACE}/{row.id}/")) == [row.plan_key]
    assert not set(gone) & indexed(runtime, row.id)
    assert open_export(str(folder)).manifest["revision"] == revision


def test_the_index_has_the_sessions_of_each_export(on_either_engine: Runtime) -> None:
    ids = seal(on_either_engine, [Recording(frames=[0]) for _ in range(3)])
    folder = export(on_either_engine)
    assert indexed(on_either_engine, folder.name) == set(ids)


def test_causes_are_told_apart_and_a_second_purge_makes_a_third_revision(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(12)])
    folder = export(runtime)
    hide_for_purge(runtime, ids[0], cause="retention")
    hide_for_purge(runtime, ids[1], cause="erasure")
    hide_for_purge(runtime, ids[2])
    finish_purges(runtime)
    require_rewritten(runtime, folder, ids[:3])
    assert manifest_of(folder)["tombstones"] == {"erased": 1, "deleted": 1, "expired": 1}
    hide_for_purge(runtime, ids[3], cause="test_expiry")
    finish_purges(runtime)
    require_rewritten(runtime, folder, ids[:4], revision=3)


def test_a_soft_deleted_session_stays_until_it_is_purged(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(8)])
    folder = export(runtime)
    delete(runtime, ids[0])
    hide_for_purge(runtime, ids[1])
    finish_purges(runtime)
    assert ids[0] in set(rows_of(folder)["session_id"])
    hide_for_purge(runtime, ids[0], cause="deletion")
    finish_purges(runtime)
    require_rewritten(runtime, folder, ids[:2], revision=3)


#: Statements before which a rewriting is killed, with the number of the occurrence.
STATEMENTS = [
    ("next_manifest_sha256=", 1),
    ("UPDATE export_shards", 1),
    ("DELETE FROM export_sessions", 1),
    ("DELETE FROM export_sessions", 2),
]
#: Files before whose replacement it is killed, and functions at whose call.
FILES = ["events-", "README.md", "manifest.json"]
CALLS: list[tuple[type, str]] = [
    (InProcess, "run"),
    (LocalFolderDestination, "remove_unfinished_files"),
    (Blobs, "keys"),
    (Blobs, "delete"),
]


@contextmanager
def killed_at_statement(fragment: str, occurrence: int) -> Iterator[None]:
    """Kill the run before it executes a statement."""
    left = count(occurrence, -1)

    def kill(statement: str) -> None:
        if fragment in statement and next(left) <= 1:
            raise Killed

    with before_each_statement(kill):
        yield


@contextmanager
def killed_at_file(name: str) -> Iterator[None]:
    """Kill the run before it replaces a file."""
    rename = os.rename

    def kill(source: Path, target: Path) -> None:
        if name in str(target):
            raise Killed
        rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", kill)
        yield


@contextmanager
def killed_at_call(owner: type, name: str) -> Iterator[None]:
    """Kill the run at the call of a function."""

    def kill(*_: Any, **__: Any) -> Any:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, kill)
        yield


@pytest.mark.parametrize(
    ("on_either_engine", "killed"),
    [
        *(
            pytest.param(engine, (killed_at_statement, *point), id=f"{engine}-statement{number}")
            for engine in ENGINES
            for number, point in enumerate(STATEMENTS)
        ),
        *(pytest.param("sqlite", (killed_at_file, name), id=f"sqlite-{name}") for name in FILES),
        *(pytest.param("sqlite", (killed_at_call, *point), id=f"sqlite-{point[1]}") for point in CALLS),
    ],
    indirect=["on_either_engine"],
)
def test_a_killed_rewriting_is_continued_with_what_was_purged_since(
    on_either_engine: Runtime, killed: tuple[Callable[..., AbstractContextManager[None]], Any]
) -> None:
    runtime = on_either_engine
    seal(runtime, [Recording(frames=[0]) for _ in range(40)])
    folder = export(runtime)
    # Of one file, which is written again, and not removed.
    ids = max((sessions_of(file) for file in folder.rglob("events-*")), key=len)
    assert len(ids) > 2
    hide_for_purge(runtime, ids[0])
    kill, *point = killed
    with kill(*point), pytest.raises(Killed):
        for _ in range(6):
            make_due(runtime)
            run_purges(runtime, "killed")
    assert open_purges(runtime)
    is_stored = row_now(runtime, folder.name).revision == 2
    hide_for_purge(runtime, ids[1])
    let_lease_run_out(runtime)
    finish_purges(runtime)
    require_rewritten(runtime, folder, ids[:2], revision=3 if is_stored else 2)


def test_a_purge_stays_open_while_an_export_with_its_session_cannot_be_read(
    on_either_engine: Runtime,
) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(8)])
    folder = export(runtime)
    plan_key = str(row_now(runtime, folder.name).plan_key)
    plan = runtime.blobs.get(plan_key)
    runtime.blobs.put(plan_key, b"damaged")
    hide_for_purge(runtime, ids[0])
    for _ in range(5):
        make_due(runtime)
        run_purges(runtime, "tests")
    assert open_purges(runtime) == [(ids[0], "exports")]
    runtime.blobs.put(plan_key, plan)
    finish_purges(runtime)
    require_rewritten(runtime, folder, ids[:1])


def test_a_folder_that_is_not_ours_any_more_stays_as_it_is(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording() for _ in range(4)])
    folder = export(runtime)
    (folder / "manifest.json").write_text("{}")
    before = {path: (folder / path).read_bytes() for path in files_of(folder)}
    hide_for_purge(runtime, ids[0])
    finish_purges(runtime)
    assert {path: (folder / path).read_bytes() for path in files_of(folder)} == before
    assert ids[0] not in indexed(runtime, folder.name)


def test_a_hosted_dataset_without_its_manifest_is_deleted(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording() for _ in range(4)])
    folder = export(runtime, destination={"kind": "signed_url"})
    (folder / "manifest.json").unlink()
    hide_for_purge(runtime, ids[0])
    finish_purges(runtime)
    assert not files_of(folder) and row_now(runtime, folder.name).expired_at is not None


def test_a_running_export_leaves_a_purged_session_out(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(12)])
    row = ask(runtime)
    steps = []

    class Purging:
        def run(self, tasks: Any) -> Any:
            if not steps:
                hide_for_purge(runtime, ids[0])
                for _ in range(3):
                    make_due(runtime)
                    run_purges(runtime, "tests")
                steps.extend(open_purges(runtime))
            yield from InProcess().run(tasks)

    ended = run_export(runtime, row.id, owner="test", executor=Purging())
    assert (ended.status, steps) == ("completed", [(ids[0], "exports")])
    finish_purges(runtime)
    require_rewritten(runtime, folder_of(runtime, row), ids[:1], revision=1)


def test_exports_of_an_earlier_release_are_found(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(6)])
    folder = export(runtime)
    execute(runtime, "DELETE FROM export_sessions")
    execute(runtime, "UPDATE exports SET is_indexed = false")
    hide_for_purge(runtime, ids[0])
    finish_purges(runtime)
    require_rewritten(runtime, folder, ids[:1])


def test_a_damaged_plan_of_an_earlier_release_holds_up_no_other_export(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(6)])
    damaged, other = export(runtime), export(runtime)
    execute(runtime, "DELETE FROM export_sessions")
    execute(runtime, "UPDATE exports SET is_indexed = false")
    plan_key = str(row_now(runtime, damaged.name).plan_key)
    plan = runtime.blobs.get(plan_key)
    runtime.blobs.put(plan_key, b"damaged")
    hide_for_purge(runtime, ids[0])
    for _ in range(5):
        make_due(runtime)
        run_purges(runtime, "tests")
    require_rewritten(runtime, other, ids[:1])
    # The session may be in the damaged one.
    assert open_purges(runtime) == [(ids[0], "exports")]
    runtime.blobs.put(plan_key, plan)
    finish_purges(runtime)
    require_rewritten(runtime, damaged, ids[:1])


def test_two_sessions_that_are_purged_one_after_the_other_leave_together(on_either_engine: Runtime) -> None:
    # The rows of the second session leave the lake before the first one is removed from the files.
    runtime = on_either_engine
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(6)])
    folder = export(runtime)
    hide_for_purge(runtime, *ids[:2])
    execute(runtime, f"UPDATE purges SET due_at = '2999-01-01' WHERE session_id = '{ids[1]}'")
    with runtime.database.transaction(write=True) as db:
        db.delete(db.get_one(SessionRow, ids[1]))
    for _ in range(4):
        execute(runtime, f"UPDATE purges SET due_at = requested_at WHERE session_id = '{ids[0]}'")
        run_purges(runtime, "tests")
    require_rewritten(runtime, folder, ids[:2])
    finish_purges(runtime)
    require_rewritten(runtime, folder, ids[:2])


def test_readers_get_whole_files_while_they_are_replaced(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(12)])
    folder = export(runtime)
    before, paths = hashes_of(folder), sorted(hashes_of(folder))
    source, seen, is_over = LocalFolderDestination(folder), set(), threading.Event()

    def read() -> None:
        while not is_over.is_set():
            for path in paths:
                try:
                    pinned = source.pin(path)
                except KeyError:
                    continue  # its last session was purged
                data = b"".join(pinned.read(0, pinned.size_bytes))
                assert len(data) == pinned.size_bytes
                seen.add((path, hashlib.sha256(data).hexdigest()))

    thread = threading.Thread(target=read)
    thread.start()
    hide_for_purge(runtime, ids[0])
    finish_purges(runtime)
    is_over.set()
    thread.join()
    assert seen <= {*before.items(), *hashes_of(folder).items()}


def test_expired_files_leave_no_rows_of_the_index(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording() for _ in range(3)])
    folder = export(runtime, destination={"kind": "signed_url"})
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(ExportRow, folder.name)
        row.expired_at = row.completed_at
        db.add(row)
    hide_for_purge(runtime, ids[0])
    finish_purges(runtime)
    assert not indexed(runtime, folder.name) and not files_of(folder)


def test_a_purge_waits_for_the_files_of_a_failed_export(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording() for _ in range(3)])
    folder = export(runtime)
    execute(runtime, "UPDATE exports SET status = 'failed', files_left = true")
    hide_for_purge(runtime, ids[0])
    for _ in range(5):
        make_due(runtime)
        run_purges(runtime, "tests")
    assert open_purges(runtime) == [(ids[0], "exports")] and files_of(folder)
    execute(runtime, "UPDATE exports SET files_left = false")
    finish_purges(runtime)
    assert open_purges(runtime) == [] and not indexed(runtime, folder.name)


def test_the_sessions_added_stay_counted_after_the_parent_has_expired(on_either_engine: Runtime) -> None:
    runtime = on_either_engine
    ids = seal(runtime, [Recording() for _ in range(3)])
    parent = export(runtime, destination={"kind": "signed_url"})
    seal(runtime, [Recording()])
    child = export(runtime, destination={"kind": "signed_url"})
    assert manifest_of(child)["parent"]["sessions_added"] == 1
    execute(runtime, f"UPDATE exports SET plan_key = NULL WHERE id = '{parent.name}'")
    execute(runtime, f"DELETE FROM export_sessions WHERE export_id = '{parent.name}'")
    hide_for_purge(runtime, ids[0])
    finish_purges(runtime)
    assert manifest_of(child)["revision"] == 2
    assert manifest_of(child)["parent"]["sessions_added"] == 1
