"""The audit log's chain: unbroken under parallel writers, in the transaction of the change. Contract §7."""

import threading

import pytest
from sqlmodel import col, select

from recorder import clock
from recorder.audit.log import Origin, audit_entry_of, first_audit_hash, hash_audit_entry, record_audit_entry
from recorder.ids import new_id
from recorder.models.operations import AuditHeadRow, AuditRow
from recorder.models.workspace import WorkspaceRow
from recorder.storage.database import Database

_NOW = clock.now()


def chain(database: Database, workspace_id: str) -> list[AuditRow]:
    with database.transaction(write=False) as db:
        rows = select(AuditRow).where(AuditRow.workspace_id == workspace_id)
        return list(db.exec(rows.order_by(col(AuditRow.number))))


def add(database: Database, origin: Origin, count: int = 1, **details: object) -> None:
    with database.transaction(write=True) as db:
        for _ in range(count):
            record_audit_entry(
                db, origin, "key.create", resource_type="key", resource_id="key_1", details=details
            )


def assert_unbroken(database: Database, workspace_id: str, count: int) -> None:
    rows = chain(database, workspace_id)
    assert [row.number for row in rows] == list(range(1, count + 1))
    assert [row.prev_hash for row in rows] == [
        first_audit_hash(workspace_id),
        *(row.hash for row in rows[:-1]),
    ]
    assert [row.hash for row in rows] == [hash_audit_entry(audit_entry_of(row)) for row in rows]
    with database.transaction(write=False) as db:
        head = db.get_one(AuditHeadRow, workspace_id)
    assert (head.number, head.hash) == (count, rows[-1].hash)


def test_each_entry_covers_the_one_before(database: Database) -> None:
    origin = Origin(new_id("wsp"), "key", "key_2", "req_1", "127.0.0.1", "live")
    add(database, origin, count=2, label="first")
    add(database, origin, label="Größe ‹x›", ratio=0.1, nested={"b": [1, None], "a": True})
    assert_unbroken(database, origin.workspace_id, 3)


def test_what_is_rolled_back_leaves_no_entry(database: Database) -> None:
    origin = Origin.operator(new_id("wsp"))
    with pytest.raises(RuntimeError), database.transaction(write=True) as db:
        record_audit_entry(db, origin, "key.create", resource_type="key", resource_id="key_1")
        raise RuntimeError
    assert chain(database, origin.workspace_id) == []
    add(database, origin)
    assert_unbroken(database, origin.workspace_id, 1)


def test_fifty_writers_at_once_build_one_chain(database: Database) -> None:
    origin = Origin.system(new_id("wsp"), "tests")
    barrier = threading.Barrier(50)
    failures: list[BaseException] = []

    def write(count: int) -> None:
        barrier.wait()
        try:
            add(database, origin, count=count)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(1 + index % 3,)) for index in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert_unbroken(database, origin.workspace_id, sum(1 + index % 3 for index in range(50)))


def test_a_writer_that_waits_for_a_row_does_not_hold_the_head(database: Database) -> None:
    # One transaction records an entry and then needs a row that another recording transaction holds.
    origin = Origin.operator(new_id("wsp"))
    with database.transaction(write=True) as db:
        db.add(WorkspaceRow(id=origin.workspace_id, name=new_id("wsp"), region="us", created_at=_NOW))
    holds = threading.Event()
    recorded = threading.Event()

    def take_row_then_record() -> None:
        with database.transaction(write=True) as db:
            db.get_one(WorkspaceRow, origin.workspace_id, with_for_update=True)
            holds.set()
            # On SQLite the other cannot even begin meanwhile.
            recorded.wait(timeout=0 if database.is_sqlite else 10)
            record_audit_entry(db, origin, "workspace.update", resource_type="workspace", resource_id="a")

    thread = threading.Thread(target=take_row_then_record)
    thread.start()
    assert holds.wait(timeout=10)
    with database.transaction(write=True) as db:
        record_audit_entry(db, origin, "workspace.update", resource_type="workspace", resource_id="b")
        recorded.set()
        db.get_one(WorkspaceRow, origin.workspace_id, with_for_update=True)
    thread.join()
    assert_unbroken(database, origin.workspace_id, 2)


def test_chains_of_two_workspaces_do_not_mix(database: Database) -> None:
    first, other = Origin.operator(new_id("wsp")), Origin.operator(new_id("wsp"))
    with database.transaction(write=True) as db:
        for origin in (first, other, first):
            record_audit_entry(db, origin, "workspace.update", resource_type="workspace", resource_id="a")
    assert_unbroken(database, first.workspace_id, 2)
    assert_unbroken(database, other.workspace_id, 1)


def test_an_account_without_a_name_is_still_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2_000_000_001)
    assert Origin.operator("wsp_1").actor_id == "unnamed"
