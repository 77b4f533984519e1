"""Restore: what it refuses, and the deletions and erasures after the backup that hold in the copy."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from sqlmodel import Session as DbSession
from sqlmodel import col, func, select, update

from recorder import clock
from recorder.access.keys import create_key
from recorder.audit.log import Origin, export_audit_entries
from recorder.audit.verify import verify_audit
from recorder.governance.backup.backup_store import BackupStore
from recorder.governance.backup.errors import (
    AuditDoesNotFit,
    DamagedBackup,
    NoBackup,
    NotEmpty,
    OtherDeployment,
    WrongSecret,
)
from recorder.governance.holds import add_hold, remove_hold
from recorder.models.event import EventBatchRow
from recorder.models.operations import SealPortionRow, SweepRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing import Sealer
from recorder.sealing.sweep import sweep_hot_rows
from recorder.storage.blobs import Blobs
from recorder.storage.deployment import WrongRegion
from recorder.storage.leases import hold_lease
from tests.governance.test_erasure import STAFF, erase
from tests.support.backups import Deployments, answers, problems, serving, with_service
from tests.support.completed_work import patch, sealed_session, stopped_session
from tests.support.factories import Caller
from tests.support.masking import set_masking
from tests.support.purges import count_hits, new_word, recorded_canary
from tests.support.recorded_sessions import copy_session
from tests.support.sealing import seal_all


def export_audit(deployments: Deployments, *callers: Caller) -> Path:
    """Export the audit logs of workspaces, as `recorder audit export` does."""
    path = deployments.folder / "audit.ndjson"
    database = deployments.service.runtime.database
    path.write_bytes(
        b"".join(b"".join(export_audit_entries(database, caller.key.workspace_id)) for caller in callers)
    )
    return path


def test_an_erasure_after_the_backup_holds_in_the_copy(deployments: Deployments, caller: Caller) -> None:
    canary, other = recorded_canary(caller), recorded_canary(caller)
    unsealed = caller.make_session(metadata={"deep": [{"customer": canary.word}]})
    deployments.back_up()
    erasure = erase(caller, canary.word)
    assert erasure["counts"]["sessions"] == 2
    audit = export_audit(deployments, caller)
    assert canary.word.encode() not in audit.read_bytes()
    with deployments.restored(audit=audit) as service:
        copy = with_service(caller, service)
        for session_id in (canary.session_id, unsealed):
            assert copy.get(f"/v1/sessions/{session_id}").status_code == 404
        assert copy.get(f"/v1/sessions/{other.session_id}").status_code == 200
        assert count_hits(service.runtime, canary.word) == 0
        assert count_hits(service.runtime, other.word) > 5
        assert copy.get(f"/v1/privacy/erasure/{erasure['id']}").json()["status"] == "completed"
        assert verify_audit(service.runtime.database).is_valid
        actions = [entry["action"] for entry in copy.get("/v1/audit").json()["data"]]
        assert actions[-1] != "privacy.request" and "workspace.restore" in actions
        settings = service.runtime.settings
    assert problems(settings) == []


def test_no_log_of_the_copys_lake_names_an_erased_session(deployments: Deployments, caller: Caller) -> None:
    canary, other = recorded_canary(caller), recorded_canary(caller)
    deployments.back_up()
    erase(caller, canary.word)
    with deployments.restored(audit=export_audit(deployments, caller)) as service:
        folder = Path(service.runtime.lake.url)
        logs = [path for path in folder.rglob("_delta_log/*") if path.is_file()]
        content = {path: b" ".join(read_log_texts(path)) for path in logs}
    assert any(other.session_id.encode() in text for text in content.values())
    assert [path for path, text in content.items() if canary.session_id.encode() in text] == []


def read_log_texts(path: Path) -> list[bytes]:
    """Return the bytes of a file of a log, and its rows where they are packed."""
    rows = pl.read_parquet(path).rows() if path.suffix == ".parquet" else []
    return [path.read_bytes(), repr(rows).encode()]


def test_a_session_of_a_host_whose_clock_was_ahead_is_erased_in_the_copy(
    deployments: Deployments, caller: Caller
) -> None:
    word = new_word()
    ahead = caller.make_session(actor={"id": word, "kind": "human"})
    with deployments.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(SessionRow, ahead)
        row.created_at += timedelta(minutes=10)
        db.add(row)
    deployments.back_up()
    assert erase(caller, word)["counts"]["sessions"] == 1
    with deployments.restored(audit=export_audit(deployments, caller)) as service:
        assert with_service(caller, service).get(f"/v1/sessions/{ahead}").status_code == 404
        assert count_hits(service.runtime, word) == 0


def test_a_masked_subject_is_erased_in_the_copy(deployments: Deployments, caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"masking": {"builtins": ["email"]}})
    masked = caller.make_session(metadata={"mail": "Ada@Example.com"})
    kept = caller.make_session(metadata={"mail": "eve@example.com"})
    deployments.back_up()
    erase(caller, "ada@example.com")
    with deployments.restored(audit=export_audit(deployments, caller)) as service:
        copy = with_service(caller, service)
        assert copy.get(f"/v1/sessions/{masked}").status_code == 404
        assert copy.get(f"/v1/sessions/{kept}").status_code == 200


def test_a_subject_masked_with_a_replacement_is_erased_in_the_copy(
    deployments: Deployments, caller: Caller
) -> None:
    number = {"name": "number", "pattern": "^[0-9]+$"}
    set_masking(caller, {"builtins": ["email"], "patterns": [STAFF, number]})
    masked, kept = (caller.make_session(metadata={"who": text}) for text in ("emp-1", "emp-2"))
    mailed, numbered = (caller.make_session(metadata={"who": text}) for text in ("ada1@example.com", "1"))
    partly = caller.make_session(metadata={"who": "by emp-1"})
    set_masking(caller, {})
    deployments.back_up()
    erase(caller, "emp-1")
    erase(caller, "ada1@example.com")
    with deployments.restored(audit=export_audit(deployments, caller)) as service:
        copy = with_service(caller, service)
        for session_id, status in ((masked, 404), (mailed, 404), (kept, 200), (numbered, 200), (partly, 200)):
            assert copy.get(f"/v1/sessions/{session_id}").status_code == status


def test_two_erasures_of_one_subject_are_repeated_in_the_copy(
    deployments: Deployments, caller: Caller
) -> None:
    actor = {"id": new_word(), "kind": "human"}
    session_id = caller.make_session(actor=actor)
    open_one = caller.post("/v1/privacy/erasure", {"subject": actor["id"], "scope": "all"}).json()
    deployments.back_up()
    first, second = (erase(caller, actor["id"]) for _ in range(2))
    assert first["id"] == open_one["id"] != second["id"]
    with deployments.restored(audit=export_audit(deployments, caller)) as service:
        copy = with_service(caller, service)
        assert copy.get(f"/v1/sessions/{session_id}").status_code == 404
        for erasure in (first, second):
            assert copy.get(f"/v1/privacy/erasure/{erasure['id']}").json()["status"] == "completed"


def test_a_person_is_found_among_many_sessions_of_the_copy(deployments: Deployments, caller: Caller) -> None:
    actor = {"id": new_word(), "kind": "human"}
    copy_session(caller.service.runtime, caller.make_session(), 1_000)
    session_id = caller.make_session(actor=actor)
    other = caller.service.make_caller()
    kept_id = other.make_session(actor=actor)
    deployments.back_up()
    caller.post("/v1/privacy/erasure", {"subject": actor["id"], "scope": "all"})
    with deployments.restored(audit=export_audit(deployments, caller)) as service:
        assert with_service(caller, service).get(f"/v1/sessions/{session_id}").status_code == 404
        assert with_service(other, service).get(f"/v1/sessions/{kept_id}").status_code == 200


def test_a_test_key_erases_test_data_alone_in_the_copy(deployments: Deployments, caller: Caller) -> None:
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    actor = {"id": new_word(), "kind": "human"}
    live, tested = caller.make_session(actor=actor), tester.make_session(actor=actor)
    deployments.back_up()
    tester.post("/v1/privacy/erasure", {"subject": actor["id"], "scope": "all"})
    with deployments.restored(audit=export_audit(deployments, caller)) as service:
        assert with_service(caller, service).get(f"/v1/sessions/{live}").status_code == 200
        assert with_service(tester, service).get(f"/v1/sessions/{tested}").status_code == 404


def test_deletes_holds_and_revoked_keys_after_the_backup_hold(
    deployments: Deployments, caller: Caller
) -> None:
    soft, hard, held, kept, freed = (stopped_session(caller) for _ in range(5))
    seal_all(caller.service.runtime)
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    with runtime.database.transaction(write=True) as db:
        key = create_key(
            db, workspace_id, label="old", scope="read", mode="live", secret=runtime.settings.secret
        )
        add_hold(db, Origin.operator(workspace_id), kind="session", value=freed)
    deployments.back_up()
    assert caller.delete(f"/v1/sessions/{soft}").status_code == 204
    assert caller.delete(f"/v1/sessions/{hard}?hard=true").status_code == 204
    assert caller.delete(f"/v1/keys/{key.key_id}").status_code == 204
    with runtime.database.transaction(write=True) as db:
        add_hold(db, Origin.operator(workspace_id), kind="session", value=held)
        remove_hold(db, Origin.operator(workspace_id), kind="session", value=freed)
    wanted, report = deployments.restore(audit=export_audit(deployments, caller))
    assert (report.changes.deleted_sessions, report.changes.revoked_keys) == (2, 1)
    assert report.changes.open_purges == 0

    with serving(wanted) as service:
        copy = with_service(caller, service)
        for session_id, status in ((soft, 404), (hard, 404), (held, 200), (kept, 200)):
            assert copy.get(f"/v1/sessions/{session_id}").status_code == status
        assert copy.delete(f"/v1/sessions/{held}?hard=true").status_code == 409
        assert copy.delete(f"/v1/sessions/{freed}?hard=true").status_code == 204
        assert Caller(service, key).get("/v1/sessions").status_code == 401
        assert not list(service.runtime.blobs.keys(f"frames/{workspace_id}/{hard}"))


def test_sessions_that_are_purged_during_a_backup_are_not_restored(
    deployments: Deployments, caller: Caller
) -> None:
    gone, kept = sealed_session(caller), sealed_session(caller)

    def delete_one(step: str) -> None:
        if step == "objects":
            assert caller.delete(f"/v1/sessions/{gone}?hard=true").status_code == 204

    deployments.back_up(on_step=delete_one)
    with deployments.restored() as service:
        copy = with_service(caller, service)
        assert copy.get(f"/v1/sessions/{gone}").status_code == 404
        assert copy.get(f"/v1/sessions/{kept}").status_code == 200
        settings = service.runtime.settings
    assert problems(settings) == []


def test_a_person_who_is_erased_during_a_backup_is_not_restored(
    deployments: Deployments, caller: Caller
) -> None:
    canary = recorded_canary(caller)

    def erase_person(step: str) -> None:
        if step == "objects":
            assert erase(caller, canary.word)["counts"]["sessions"] == 1

    deployments.back_up(on_step=erase_person)
    with deployments.restored() as service:
        assert with_service(caller, service).get(f"/v1/sessions/{canary.session_id}").status_code == 404
        assert count_hits(service.runtime, canary.word) == 0


def refused(deployments: Deployments, error: type[Exception], **options: Any) -> None:
    """Check that a restore is refused, with nothing written."""
    before = {path.name for path in deployments.folder.iterdir()}
    with pytest.raises(error):
        deployments.restore("refused", **options)
    assert {path.name for path in deployments.folder.iterdir()} == before


def test_work_under_way_at_the_backup_is_free_in_the_copy(deployments: Deployments, caller: Caller) -> None:
    session_id = caller.make_session()
    with deployments.service.runtime.database.transaction(write=True) as db:
        assert hold_lease(db, "tests", "a run of the deployment", ttl_ms=300_000) is not None
        db.add(SealPortionRow(session_id=session_id, n=0, date="2026-01-01", state=b""))
    deployments.back_up()
    with deployments.restored() as service, service.runtime.database.transaction(write=True) as db:
        assert hold_lease(db, "tests", "a run of the copy", ttl_ms=1_000) is not None
        assert db.exec(select(SealPortionRow)).all() == []


class Kill(BaseException):
    """The end of a process."""


def test_a_sweep_that_was_killed_before_the_backup_is_ended_in_the_copy(
    deployments: Deployments, caller: Caller
) -> None:
    session_id = sealed_session(caller)
    before = answers(caller, session_id)[f"/v1/sessions/{session_id}/events?limit=500"]
    runtime, writes = deployments.service.runtime, []

    def require_lease(db: DbSession) -> None:
        writes.append(db)
        if len(writes) == 2:
            raise Kill

    with runtime.database.transaction(write=True) as db:
        long_ago = clock.now() - timedelta(days=1)
        db.exec(update(SessionRow).where(col(SessionRow.id) == session_id).values(sealed_at=long_ago))
    with pytest.raises(Kill):
        sweep_hot_rows(runtime, require_lease)
    assert count_hot_batches(runtime) == 1
    deployments.back_up()
    with deployments.restored() as service:
        assert count_hot_batches(service.runtime) == 1
        with_sealer = Sealer(service.runtime, owner="copy")
        assert with_sealer.take()
        with_sealer.maintain()
        with_sealer.release()
        assert count_hot_batches(service.runtime) == 0
        with service.runtime.database.transaction(write=False) as db:
            assert db.exec(select(SweepRow)).all() == []
        copy = with_service(caller, service)
        assert answers(copy, session_id)[f"/v1/sessions/{session_id}/events?limit=500"] == before


def count_hot_batches(runtime: Runtime) -> int:
    """Return the number of batches of events in SQL."""
    with runtime.database.transaction(write=False) as db:
        return db.exec(select(func.count()).select_from(EventBatchRow)).one()


def test_what_does_not_belong_together_is_refused(deployments: Deployments, caller: Caller) -> None:
    refused(deployments, NoBackup)
    sealed_session(caller)
    deployments.back_up()
    wanted = deployments.settings("refused")
    refused(deployments, WrongSecret, settings=replace(wanted, secret=b"another"))
    refused(deployments, WrongRegion, settings=replace(wanted, region="eu"))
    refused(deployments, NoBackup, backup_id="bak_00000000000000000000000000")
    folder = deployments.folder / "taken"
    folder.mkdir()
    (folder / "file").write_text("mine")
    refused(deployments, NotEmpty, settings=replace(wanted, data_dir=folder))
    taken = deployments.service.runtime.settings
    refused(deployments, NotEmpty, settings=replace(wanted, database_url=taken.database_url))
    refused(deployments, NotEmpty, settings=replace(wanted, blob_url=taken.blob_url))
    Blobs(taken.cold_url).put("frames/wsp_1/ses_1/frm_1.pack", b"archived")
    refused(deployments, NotEmpty, settings=replace(wanted, cold_url=taken.cold_url))
    deployments.restore("refused", settings=wanted)


def test_a_changed_manifest_is_refused(deployments: Deployments, caller: Caller) -> None:
    sealed_session(caller)
    report = deployments.back_up()
    path = Path(deployments.to, "backups", f"{report.id}.json")
    original = orjson.loads(path.read_bytes())
    for changed in ({"region": "eu"}, {"files": 1}, {"listing": []}, {"seal": ""}, {"more": 1}):
        path.write_bytes(orjson.dumps(original | changed))
        refused(deployments, DamagedBackup)
    path.write_bytes(b"{}")
    refused(deployments, DamagedBackup)


def test_backups_of_two_deployments_do_not_mix(deployments: Deployments, caller: Caller) -> None:
    deployments.back_up()
    archive, secret = BackupStore(deployments.to), caller.service.runtime.settings.secret
    archive.require_owner(secret)
    with pytest.raises(OtherDeployment):
        archive.require_owner(b"another")


def test_an_audit_file_that_does_not_continue_the_backup_is_refused(
    deployments: Deployments, caller: Caller
) -> None:
    other = deployments.service.make_caller()
    for number in range(3):
        patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": 10 + number}})
    patch(other, "/v1/workspaces/current", {"retention": {"frames_days": 10}})
    deployments.back_up()
    for number in range(3):
        patch(caller, "/v1/workspaces/current", {"retention": {"frames_days": 20 + number}})
    audit = export_audit(deployments, caller, other)
    lines = audit.read_bytes().splitlines(keepends=True)
    mine = [line for line in lines if caller.key.workspace_id.encode() in line]
    for wrong in (
        [*lines[:1], b"no json\n"],
        mine,  # another workspace's log is missing
        [line for line in lines if line is not mine[-2]],
        [line.replace(b'"to":22', b'"to":23') for line in lines],
        [orjson.dumps(orjson.loads(line) | {"number": 99}) + b"\n" for line in lines],
    ):
        audit.write_bytes(b"".join(wrong))
        refused(deployments, AuditDoesNotFit, audit=audit)
    audit.write_bytes(b"".join(lines))
    _, report = deployments.restore(audit=audit)
    assert report.changes.entries == 3
