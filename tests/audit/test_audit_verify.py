"""Tampering with the audit log shows: what was changed, is missing, or was moved. Contract §7 (audit)."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlmodel import select
from typer.testing import CliRunner

from recorder import clock
from recorder.audit.log import Origin, audit_entry_of, hash_audit_entry, record_audit_entry
from recorder.audit.verify import ChainReport, read_chain_heads, verify_audit
from recorder.cli import app as command_line
from recorder.ids import new_id
from recorder.models.operations import AuditRow
from recorder.models.workspace import WorkspaceRow
from recorder.storage.database import Database
from tests.support.sealed_sessions import make_runtime

Tamper = Callable[[Connection, str], None]


def make_chain(database: Database, count: int = 6) -> str:
    """Create a workspace with so many entries; return its id."""
    origin = Origin.operator(new_id("wsp"))
    with database.transaction(write=True) as db:
        db.add(WorkspaceRow(id=origin.workspace_id, name=new_id("wsp"), region="us", created_at=clock.now()))
    for number in range(count):
        with database.transaction(write=True) as db:
            details = {"number": number, "label": "Größe"}
            record_audit_entry(
                db, origin, "key.create", resource_type="key", resource_id=new_id("key"), details=details
            )
    return origin.workspace_id


def verify(database: Database, workspace_id: str) -> ChainReport:
    """Return the report on one workspace."""
    [chain] = verify_audit(database, workspace_id=workspace_id).chains
    return chain


def run(statement: str) -> Tamper:
    """Return a function that changes one entry by one statement; `number` is bounded to the workspace."""

    def tamper(connection: Connection, workspace_id: str) -> None:
        connection.execute(text(f"{statement} AND workspace_id = :w"), {"w": workspace_id})

    return tamper


def cut_and_close_up(connection: Connection, workspace_id: str) -> None:
    """Remove entry 3 and renumber the others."""
    run("DELETE FROM audit_entries WHERE number = 3")(connection, workspace_id)
    for number in (4, 5, 6):
        run(f"UPDATE audit_entries SET number = {number - 1} WHERE number = {number}")(
            connection, workspace_id
        )
    run("UPDATE audit_heads SET number = 5 WHERE number = 6")(connection, workspace_id)


def swap(connection: Connection, workspace_id: str) -> None:
    """Let entries 3 and 4 change places."""
    for old, new in ((3, 99), (4, 3), (99, 4)):
        run(f"UPDATE audit_entries SET number = {new} WHERE number = {old}")(connection, workspace_id)


def damage_json(connection: Connection, workspace_id: str) -> None:
    """Make details that no parser reads (PostgreSQL refuses them)."""
    value = "'{'" if connection.dialect.name == "sqlite" else "'[{}]'"
    run(f"UPDATE audit_entries SET details = {value} WHERE number = 3")(connection, workspace_id)


CASES: dict[str, tuple[Tamper, list[tuple[int, str]]]] = {
    "content": (run("UPDATE audit_entries SET actor_id = 'me' WHERE number = 3"), [(3, "changed")]),
    "details": (run("UPDATE audit_entries SET details = '{}' WHERE number = 1"), [(1, "changed")]),
    "time": (run("UPDATE audit_entries SET at = '2020-01-01 00:00:00' WHERE number = 6"), [(6, "changed")]),
    "unreadable": (damage_json, [(3, "changed")]),
    "its hash": (
        run("UPDATE audit_entries SET hash = 'f00' WHERE number = 3"),
        [(3, "changed"), (4, "missing")],
    ),
    "first gone": (run("DELETE FROM audit_entries WHERE number = 1"), [(1, "missing")]),
    "middle gone": (run("DELETE FROM audit_entries WHERE number IN (3, 4)"), [(3, "missing")]),
    "last gone": (run("DELETE FROM audit_entries WHERE number = 6"), [(6, "missing")]),
    "all gone": (run("DELETE FROM audit_entries WHERE number > 0"), [(1, "missing")]),
    "gone and closed up": (cut_and_close_up, [(3, "missing")]),
    "moved": (swap, [(3, "reordered"), (4, "reordered"), (5, "reordered")]),
    "head gone": (run("DELETE FROM audit_heads WHERE number = 6"), [(6, "missing")]),
    "head changed": (run("UPDATE audit_heads SET hash = 'f00' WHERE number = 6"), [(6, "changed")]),
    "head moved back": (run("UPDATE audit_heads SET number = 5 WHERE number = 6"), [(6, "changed")]),
}


@pytest.mark.parametrize("case", CASES)
def test_tampering_shows(database: Database, case: str) -> None:
    tamper, expected = CASES[case]
    workspace_id, other = make_chain(database), make_chain(database)
    assert verify(database, workspace_id).is_valid
    with database.transaction(write=True) as db:
        tamper(db.connection(), workspace_id)
    report = verify(database, workspace_id)
    assert [(broken.number, broken.kind) for broken in report.breaks] == expected
    assert verify(database, other).is_valid


def test_an_entry_written_anew_breaks_the_one_that_follows(database: Database) -> None:
    workspace_id = make_chain(database)
    with database.transaction(write=True) as db:
        rows = select(AuditRow).where(AuditRow.workspace_id == workspace_id, AuditRow.number == 3)
        row = db.exec(rows).one()
        row.actor_id = "somebody"
        row.hash = hash_audit_entry(audit_entry_of(row))
        db.add(row)
    assert [(broken.number, broken.kind) for broken in verify(database, workspace_id).breaks] == [
        (4, "missing")
    ]


def test_a_long_chain_is_walked_to_its_end(database: Database) -> None:
    origin = Origin.operator(new_id("wsp"))
    with database.transaction(write=True) as db:
        for _ in range(1_203):
            record_audit_entry(db, origin, "key.create", resource_type="key", resource_id="key_1")
    report = verify(database, origin.workspace_id)
    assert (report.entries, report.is_valid) == (1_203, True)
    with database.transaction(write=True) as db:
        run("UPDATE audit_entries SET action = 'key.revoke' WHERE number > 900")(
            db.connection(), origin.workspace_id
        )
    report = verify(database, origin.workspace_id)
    assert (report.breaks[0].number, len(report.breaks)) == (901, 100)


def test_a_chain_that_was_cut_off_shows_by_a_head_kept_outside(database: Database) -> None:
    workspace_id = make_chain(database, count=4)
    [head] = read_chain_heads(database, workspace_id)
    assert head.number == 4
    with database.transaction(write=True) as db:  # whoever can write here can also move the head
        run("DELETE FROM audit_entries WHERE number = 4")(db.connection(), workspace_id)
        last = select(AuditRow.hash).where(AuditRow.workspace_id == workspace_id, AuditRow.number == 3)
        run(f"UPDATE audit_heads SET number = 3, hash = '{db.exec(last).one()}' WHERE number = 4")(
            db.connection(), workspace_id
        )
    assert verify_audit(database, workspace_id=workspace_id).is_valid
    report = verify_audit(database, workspace_id=workspace_id, heads=[head.hash])
    assert (report.is_valid, report.lost_heads) == (False, [head.hash])


def test_an_older_head_still_stands_in_the_chain(database: Database) -> None:
    workspace_id = make_chain(database, count=2)
    [head] = read_chain_heads(database, workspace_id)
    with database.transaction(write=True) as db:
        record_audit_entry(
            db, Origin.operator(workspace_id), "key.revoke", resource_type="key", resource_id="key_1"
        )
    assert verify_audit(database, workspace_id=workspace_id, heads=[head.hash]).is_valid
    other = make_chain(database, count=1)
    assert not verify_audit(database, workspace_id=other, heads=[head.hash]).is_valid


def test_the_command_walks_every_chain_and_fails_at_a_break(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("deployment")
    runtime = make_runtime(folder)
    whole, broken = make_chain(runtime.database, count=2), make_chain(runtime.database, count=3)
    data = ["--data", str(folder)]
    heads = CliRunner().invoke(command_line, ["audit", "head", *data, "--json"])
    assert {(head["workspace_id"], head["number"]) for head in json.loads(heads.stdout)} == {
        (whole, 2),
        (broken, 3),
    }
    kept = [part for head in json.loads(heads.stdout) for part in ("--head", head["hash"])]
    assert CliRunner().invoke(command_line, ["audit", "verify", *data, *kept]).exit_code == 0
    with runtime.database.transaction(write=True) as db:
        run("UPDATE audit_entries SET ip = '127.0.0.9' WHERE number = 2")(db.connection(), broken)
    runtime.close()
    output = CliRunner().invoke(command_line, ["audit", "verify", *data, *kept, "--json"])
    report = json.loads(output.stdout)
    assert (output.exit_code, report["is_valid"], report["lost_heads"]) == (1, False, [])
    breaks = {chain["workspace_id"]: chain["breaks"] for chain in report["chains"]}
    assert breaks[whole] == []
    assert [(broken["number"], broken["kind"]) for broken in breaks[broken]] == [(2, "changed")]
    text_form = CliRunner().invoke(command_line, ["audit", "verify", *data, "--workspace", whole])
    assert (text_form.exit_code, text_form.stdout) == (0, f"{whole}: 2 entries, unbroken.\n")


def test_a_workspace_whose_whole_chain_is_gone_is_reported(tmp_path: Path) -> None:
    data = ["--data", str(tmp_path)]
    for words in (["one", "--init"], ["two"]):
        assert CliRunner().invoke(command_line, ["workspaces", "create", *words, *data]).exit_code == 0
    listed = json.loads(CliRunner().invoke(command_line, ["workspaces", "list", *data, "--json"]).stdout)
    ids = {workspace["name"]: workspace["id"] for workspace in listed}
    assert CliRunner().invoke(command_line, ["audit", "verify", *data]).exit_code == 0
    with sqlite3.connect(tmp_path / "recorder.db") as connection:
        for table in ("audit_entries", "audit_hashes", "audit_heads"):
            connection.execute(f"DELETE FROM {table} WHERE workspace_id = ?", [ids["one"]])
    connection.close()
    output = CliRunner().invoke(command_line, ["audit", "verify", *data, "--json"])
    chains = {chain["workspace_id"]: chain for chain in json.loads(output.stdout)["chains"]}
    assert output.exit_code == 1 and chains[ids["two"]]["is_valid"]
    assert chains[ids["one"]]["breaks"] == [
        {"number": 1, "kind": "missing", "detail": "all entries and the head of the chain are gone"}
    ]
