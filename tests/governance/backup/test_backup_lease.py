"""Backups that lost their lease: they change nothing of the one that took over."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recorder.governance.backup.backup_store import BackupStore
from recorder.governance.backup.create import LEASE, BackupReport
from recorder.governance.backup.errors import PartsRemoved
from recorder.storage.leases import LeaseLost, hold_lease
from tests.support.backups import Deployments
from tests.support.completed_work import sealed_session
from tests.support.factories import Caller
from tests.support.recorded_sessions import let_lease_run_out

_WAIT_S = 120


def take_over(deployments: Deployments) -> None:
    """Take the lease of backups, as another run does after the one at work was suspended."""
    runtime = deployments.service.runtime
    let_lease_run_out(runtime)
    with runtime.database.transaction(write=True) as db:
        assert hold_lease(db, LEASE, "successor", ttl_ms=60_000)


def test_a_backup_that_lost_its_lease_deletes_no_part_of_its_successor(
    deployments: Deployments, caller: Caller
) -> None:
    sealed_session(caller)
    has_stored, may_go_on = threading.Event(), threading.Event()
    successors: list[BackupReport] = []

    def wait_before_manifest(step: str) -> None:
        if step == "objects":
            has_stored.set()
            assert may_go_on.wait(_WAIT_S)

    with ThreadPoolExecutor(1) as pool:

        def stand_still(step: str) -> None:
            if step == "old parts":
                let_lease_run_out(deployments.service.runtime)
                sealed_session(caller)
                work = pool.submit(deployments.back_up, on_step=wait_before_manifest)
                work.add_done_callback(lambda done: successors.append(done.result()))
                assert has_stored.wait(_WAIT_S)

        try:
            with pytest.raises(LeaseLost):
                deployments.back_up(on_step=stand_still)
        finally:
            may_go_on.set()
    _, report = deployments.restore()
    assert [successor.id for successor in successors] == [report.id]


@pytest.mark.parametrize("moment", ["lake", "database", "snapshot", "objects"])
def test_a_backup_that_stood_still_while_another_was_made_is_none(
    deployments: Deployments, caller: Caller, moment: str
) -> None:
    sealed_session(caller)
    successors: list[BackupReport] = []
    seen: list[str] = []

    def stand_still_at(step: str) -> None:
        seen.append(step)
        if step == moment:
            let_lease_run_out(deployments.service.runtime)
            successors.append(deployments.back_up())

    def stand_still_in_snapshot(handled: int, copied: int) -> None:
        if seen[-1] == "database":
            stand_still_at("snapshot")

    with pytest.raises(LeaseLost):
        deployments.back_up(on_step=stand_still_at, on_progress=stand_still_in_snapshot)
    archive = BackupStore(deployments.to)
    assert archive.list_ids() == [successor.id for successor in successors]
    _, report = deployments.restore()
    assert report.id == successors[0].id


def test_a_backup_that_lost_its_lease_removes_no_folder_of_its_successor(
    deployments: Deployments, caller: Caller
) -> None:
    sealed_session(caller)
    copied = Path(deployments.service.runtime.settings.data_dir, "tmp", "backup-successor", "recorder.db")

    def stand_still(step: str) -> None:
        if step == "database":
            take_over(deployments)
            copied.parent.mkdir(parents=True)
            copied.write_bytes(b"of the successor")

    with pytest.raises(LeaseLost):
        deployments.back_up(on_step=stand_still)
    assert copied.exists()


def test_a_backup_that_lost_its_lease_deletes_no_old_backup(deployments: Deployments, caller: Caller) -> None:
    sealed_session(caller)
    old = deployments.back_up()

    def stand_still(step: str) -> None:
        if step == "old parts":
            take_over(deployments)

    with pytest.raises(LeaseLost):
        deployments.back_up(keep_days=0, on_step=stand_still)
    assert old.id in BackupStore(deployments.to).list_ids()


def test_a_backup_whose_parts_were_removed_is_none(deployments: Deployments, caller: Caller) -> None:
    sealed_session(caller)

    def remove_a_part(step: str) -> None:
        if step == "objects":
            next(path for path in Path(deployments.to, "parts").rglob("*") if path.is_file()).unlink()

    with pytest.raises(PartsRemoved):
        deployments.back_up(on_step=remove_a_part)
    assert BackupStore(deployments.to).list_ids() == []
    deployments.back_up()
    deployments.restore()
