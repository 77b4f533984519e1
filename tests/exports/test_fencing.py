"""Fencing: a paused run changes nothing of the next one's; late deletions count. Spec §3.2"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recorder.exports.destinations import Destination, open_destination
from recorder.exports.executor import InProcess
from recorder.exports.runner import finalize, run
from recorder.exports.runner.export_lease import ExportClaim, claim_export, list_due_exports
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.governance.purging.purge_runs import purge_session_at_once
from recorder.models.export import ExportRow
from recorder.models.governance import PurgeRow
from recorder.models.operations import LeaseRow
from recorder.runtime import Runtime
from recorder.storage.leases import LeaseLost
from tests.support.export_runs import ask, folder_of, manifest_of
from tests.support.rewritten_exports import hide_for_purge
from tests.support.sealed_sessions import Recording, delete, make_runtime, seal
from tests.support.waiting import wait_for


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return make_runtime(tmp_path)


class Stopped(BaseException):
    """Error that ends a run at once."""


class Stopping:
    """An executor that stops the run after its first shard."""

    def run(self, tasks: Any) -> Iterator[Any]:
        yield next(iter(InProcess().run(tasks)))
        raise Stopped


def let_lease_run_out(runtime: Runtime, row: ExportRow) -> None:
    with runtime.database.transaction(write=True) as db:
        lease = db.get_one(LeaseRow, f"export:{row.id}")
        lease.expires_ms = 0
        db.add(lease)


def claim(runtime: Runtime, row: ExportRow, **chosen: Any) -> ExportClaim:
    with runtime.database.transaction(write=True) as db:
        return claim_export(runtime.database, db, row.id, owner="test", **chosen)


def test_a_run_that_stood_still_removes_nothing_of_the_export_that_was_completed_meanwhile(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(runtime, [Recording(frames=[0])])
    row = ask(runtime)
    with pytest.raises(Stopped):
        run_export(runtime, row.id, owner="first", executor=Stopping())

    def _stand_still(*arguments: Any) -> Destination:
        """Pause between the claim and the first removal."""
        monkeypatch.undo()
        let_lease_run_out(runtime, row)
        assert run_export(runtime, row.id, owner="third").status == "completed"
        return open_destination(*arguments)

    monkeypatch.setattr(run, "open_destination", _stand_still)
    with pytest.raises(LeaseLost):
        run_export(runtime, row.id, owner="second")
    assert verify_manifest(folder_of(runtime, row)).is_valid


def test_a_run_that_stood_still_writes_no_manifest_over_that_of_another(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(runtime, [Recording(frames=[0])])
    row = ask(runtime)
    read = finalize.read_statistics
    inodes: list[int] = []

    def _stand_still(*arguments: Any) -> Any:
        """Pause between the last shard and the manifest."""
        monkeypatch.undo()
        let_lease_run_out(runtime, row)
        assert run_export(runtime, row.id, owner="second").status == "completed"
        inodes.append(manifest_inode(runtime, row))
        return read(*arguments)

    monkeypatch.setattr(finalize, "read_statistics", _stand_still)
    with pytest.raises(LeaseLost):
        run_export(runtime, row.id, owner="first")
    assert manifest_inode(runtime, row) == inodes[0]
    assert verify_manifest(folder_of(runtime, row)).is_valid


def manifest_inode(runtime: Runtime, row: ExportRow) -> int:
    return (folder_of(runtime, row) / "manifest.json").stat().st_ino


def test_a_completed_export_holds_no_lease(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    row = run_export(runtime, ask(runtime).id, owner="test")
    with runtime.database.transaction(write=False) as db:
        lease = db.get(LeaseRow, f"export:{row.id}")
    assert lease is None or lease.expires_ms == 0


def test_a_run_that_took_longer_than_its_lease_takes_it_for_lost_by_its_own_clock(runtime: Runtime) -> None:
    held = claim(runtime, ask_for_one(runtime), lease_ms=1)
    time.sleep(0.01)
    with pytest.raises(LeaseLost), held.transaction_in_any_status():
        pass


def test_the_beat_outlives_an_error_of_any_kind(runtime: Runtime) -> None:
    class Stumbling:
        """A database that fails once, as no store would."""

        failures = 0

        @contextmanager
        def transaction(self, *, write: bool) -> Iterator[Any]:
            if not self.failures:
                self.failures += 1
                raise ValueError("something else")
            with runtime.database.transaction(write=write) as db:
                yield db

    held = claim(runtime, ask_for_one(runtime), lease_ms=2_000)
    before, held.database, held.lease.ttl_ms = held.lease.renewed_s, Stumbling(), 80  # type: ignore[assignment]
    with held.kept_alive():
        wait_for(lambda: held.lease.renewed_s > before, seconds=5)


def delete_for_good(runtime: Runtime, session_id: str) -> None:
    """Delete a session as `hard=true` does: its row is gone on return."""
    hide_for_purge(runtime, session_id)
    with runtime.database.transaction(write=False) as db:
        purge = db.get_one(PurgeRow, session_id)
    purge_session_at_once(runtime, purge)


@pytest.mark.parametrize("moment", ["read_statistics", "find_deleted_sessions"])
@pytest.mark.parametrize("delete_session", [delete, delete_for_good])
def test_a_session_deleted_while_the_export_is_published_is_in_no_completed_export(
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    delete_session: Callable[[Runtime, str], None],
) -> None:
    ids = seal(runtime, [Recording(frames=[0]) for _ in range(3)])
    row = ask(runtime)
    read = getattr(finalize, moment)

    def _read_before_deletion(*arguments: Any) -> Any:
        monkeypatch.undo()
        result = read(*arguments)
        delete_session(runtime, ids[1])
        return result

    folder = folder_of(runtime, row)
    has_manifest: list[bool] = []
    build = finalize.build_manifest

    def _build_manifest(*arguments: Any) -> Any:
        has_manifest.append((folder / "manifest.json").exists())
        return build(*arguments)

    monkeypatch.setattr(finalize, moment, _read_before_deletion)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finalize, "build_manifest", _build_manifest)
        done = run_export(runtime, row.id, owner="test")
    # The manifest with the deleted session is removed before the files are written again.
    assert has_manifest == [False, False]
    assert (done.status, done.rows) == ("completed", 6)
    assert manifest_of(folder)["tombstones"]["deleted"] == 1
    assert verify_manifest(folder).is_valid


def test_exports_that_run_in_vain_or_come_in_masses_keep_nobody_out(runtime: Runtime) -> None:
    seal(runtime, [Recording()])
    tired, *many = [ask(runtime) for _ in range(5)]
    with runtime.database.transaction(write=True) as db:
        db.get_one(ExportRow, tired.id).attempt = 3
        db.get_one(ExportRow, many[-1].id).workspace_id = "wsp_another"
    with runtime.database.transaction(write=False) as db:
        results = [row.id for row in list_due_exports(db, limit=9, per_workspace=2)]
        everyone = [row.id for row in list_due_exports(db, limit=9)]
    *ours, theirs = many
    assert results == [ours[0].id, theirs.id, ours[1].id]
    assert everyone == [ours[0].id, theirs.id, *(row.id for row in ours[1:]), tired.id]


def ask_for_one(runtime: Runtime) -> ExportRow:
    """Create an export of one session."""
    seal(runtime, [Recording()])
    return ask(runtime)
