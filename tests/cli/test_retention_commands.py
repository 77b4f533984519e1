"""`recorder retention` and `recorder hold`, as the shell calls them. Contract §7, §9."""

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select
from typer.testing import CliRunner

from recorder import clock
from recorder.access.workspaces import create_workspace
from recorder.cli import app as command_line
from recorder.governance import retention, table_rewrites
from recorder.ids import first_id_at
from recorder.models.operations import AuditRow
from recorder.runtime import Runtime
from recorder.storage.leases import hold_lease
from tests.support.purges import purge_row
from tests.support.sealed_sessions import Recording, make_runtime, seal


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A deployment with two workspaces."""
    for name in [name for name in os.environ if name.startswith("RECORDER_")]:  # noqa: TID251
        monkeypatch.delenv(name)
    opened = make_runtime(tmp_path / "data")
    with opened.database.transaction(write=True) as db:
        for name in ("acme", "globex"):
            create_workspace(db, name, region="us", secret=opened.settings.secret)
    yield opened
    opened.close()


def run(runtime: Runtime, *words: str) -> Any:
    """Call a command as the shell does."""
    return CliRunner().invoke(command_line, [*words, "--data", str(runtime.settings.data_dir)])


def print_json(runtime: Runtime, *words: str) -> Any:
    """Return the JSON that a command prints."""
    done = run(runtime, *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def add_sessions(
    runtime: Runtime, name: str, *, count: int, days: int, frames: int = 1
) -> tuple[str, list[str]]:
    """Add sessions that were sealed some days ago; return the workspace and the sessions."""
    workspaces = {each["name"]: each["id"] for each in print_json(runtime, "workspaces", "list")}
    recordings = []
    for number in range(count):
        at = clock.now() - timedelta(days=days, seconds=number)
        frame_times = list(range(0, 500 * frames, 500))
        recordings.append(
            Recording(started_at=at, sealed_at=at, frames=frame_times, session_id=first_id_at("ses", at))
        )
    return workspaces[name], seal(runtime, recordings, workspace_id=workspaces[name])


def test_a_preview_counts_and_changes_nothing_and_a_run_removes(runtime: Runtime) -> None:
    acme, (first, second) = add_sessions(runtime, "acme", count=2, days=0)
    globex, (other,) = add_sessions(runtime, "globex", count=1, days=0)
    at = clock.to_iso(clock.now() + timedelta(days=600))
    for _ in range(2):
        shown = print_json(runtime, "retention", "preview", "--at", at)
        assert shown.keys() == {"at", "data"} and shown["at"] == at
        counted = {(row["workspace_id"], row["kind"]): row["count"] for row in shown["data"]}
        assert (counted[acme, "expired_sessions"], counted[globex, "expired_sessions"]) == (2, 1)
    done = print_json(runtime, "retention", "run", "--workspace", "acme", "--at", at)
    assert {row["workspace_id"] for row in done["data"]} == {acme}
    assert {row["kind"]: row["count"] for row in done["data"]}["expired_sessions"] == 2
    assert (done["purged_sessions"], done["failures"]) == (0, [])
    # The first two steps are done; the files of the lake go later.
    assert [purge_row(runtime, session_id).step for session_id in (first, second)] == ["files", "files"]
    assert purge_row(runtime, other) is None


def test_lines_for_people_name_workspace_kind_number_and_bytes(runtime: Runtime) -> None:
    at = clock.to_iso(clock.now() + timedelta(days=600))
    empty = run(runtime, "retention", "preview")
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "Nothing is due.\n")
    acme, _ = add_sessions(runtime, "acme", count=1, days=0)
    line, *_ = [
        line
        for line in run(runtime, "retention", "preview", "--at", at).stdout.splitlines()
        if "expired" in line
    ]
    assert line.split()[:3] == [acme, "expired_sessions", "1"] and line.endswith((" bytes", " kB"))


def test_a_name_or_an_instant_that_is_none_is_refused(runtime: Runtime) -> None:
    for command in ("preview", "run"):
        unknown = run(runtime, "retention", command, "--workspace", "nobody")
        assert unknown.exit_code != 0
        for at in ("yesterday", "90d"):
            refused = run(runtime, "retention", command, "--at", at)
            assert refused.exit_code == 2 and "--at" in refused.output
            assert "takes a time with a zone, such as" in " ".join(refused.output.replace("│", " ").split())


def test_a_hold_of_nothing_names_the_two_options(runtime: Runtime) -> None:
    for words in ([], ["--session", "ses_1", "--tag", "x"]):
        refused = run(runtime, "hold", "add", *words)
        assert refused.exit_code == 2 and "Name --session or --tag" in refused.output
        assert "Invalid value" not in refused.output


def test_a_run_beside_another_one_ends_with_1(runtime: Runtime) -> None:
    with runtime.database.transaction(write=True) as db:
        assert hold_lease(db, retention.LEASE, "other", ttl_ms=60_000) is not None
    done = run(runtime, "retention", "run")
    assert done.exit_code == 1 and "Another run of retention is at work" in done.stderr


def test_a_run_with_rewrite_rewrites_nothing_while_no_erasure_waits(runtime: Runtime) -> None:
    done = run(runtime, "retention", "run", "--rewrite")
    assert done.exit_code == 0 and "rewritten" not in done.stderr
    with runtime.database.transaction(write=True) as db:
        assert hold_lease(db, table_rewrites.LEASE, "other", ttl_ms=60_000) is not None
    done = run(runtime, "retention", "run", "--rewrite")
    assert "Another run rewrites the tables." in done.stderr


def test_a_run_that_cannot_archive_says_so_and_ends_with_1(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, _ = add_sessions(runtime, "acme", count=1, days=100)
    _, (expired,) = add_sessions(runtime, "globex", count=1, days=600)
    (tmp_path / "blocked").write_text("a file, where a folder should be")
    with monkeypatch.context() as patched:
        patched.setenv("RECORDER_COLD_URL", str(tmp_path / "blocked"))
        done = run(runtime, "retention", "run", "--json")
    assert done.exit_code == 1
    assert f"The frames to archive of workspace {acme} are left to the next run: " in done.stderr
    assert "The purges are left to the next run: The store that RECORDER_COLD_URL names " in done.stderr
    failures = json.loads(done.stdout)["failures"]
    assert [each["workspace_id"] for each in failures if each["subject"] == "frames to archive"] == [acme]
    assert purge_row(runtime, expired).cause == "retention"
    done = print_json(runtime, "retention", "run")
    assert {row["kind"]: row["count"] for row in done["data"]}["archived_sessions"] == 1


def test_a_hold_is_added_listed_and_removed(runtime: Runtime) -> None:
    acme, (held,) = add_sessions(runtime, "acme", count=1, days=600)
    target = ("--session", held, "--workspace", "acme")
    assert run(runtime, "hold", "add", "--session", held, "--workspace", "globex").exit_code == 1
    for is_new in (True, False):
        added = print_json(runtime, "hold", "add", *target)
        assert added == {"workspace_id": acme, "kind": "session", "value": held, "is_new": is_new}
    print_json(runtime, "hold", "add", "--tag", "legal", "--workspace", "globex")
    (listed,) = print_json(runtime, "hold", "list", "--workspace", "acme")
    assert (listed["workspace_id"], listed["kind"], listed["value"]) == (acme, "session", held)
    assert [row["value"] for row in print_json(runtime, "hold", "list")] == [held, "legal"]
    shown = run(runtime, "hold", "list")
    (of_session, of_tag), (heads,) = shown.stdout.splitlines(), shown.stderr.splitlines()
    assert of_session.split()[:2] == [acme, "session"] and of_session.endswith(f" s  {held}")
    column = heads.index("session or tag")
    assert (of_session[column:], of_tag[column:]) == (held, "legal") and len(of_session) <= 80
    kinds = {row["kind"]: row["count"] for row in print_json(runtime, "retention", "run")["data"]}
    assert kinds["held_sessions"] == 1 and "expired_sessions" not in kinds
    print_json(runtime, "hold", "remove", *target)
    kinds = {row["kind"]: row["count"] for row in print_json(runtime, "retention", "run")["data"]}
    assert kinds["expired_sessions"] == 1 and "held_sessions" not in kinds
    with runtime.database.transaction(write=False) as db:
        of_holds = select(AuditRow.action).where(
            AuditRow.workspace_id == acme, col(AuditRow.action).startswith("hold.")
        )
        assert list(db.exec(of_holds.order_by(col(AuditRow.number)))) == ["hold.add", "hold.remove"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("add", "--workspace", "acme"), 2),
        (("add", "--session", "ses_x", "--tag", "legal", "--workspace", "acme"), 2),
        (("add", "--tag", "legal"), 2),
        (("add", "--session", "ses_missing", "--workspace", "acme"), 1),
        (("add", "--tag", "", "--workspace", "acme"), 1),
        (("remove", "--tag", "never-held", "--workspace", "acme"), 1),
    ],
)
def test_a_hold_that_names_nothing_is_refused(runtime: Runtime, words: tuple[str, ...], code: int) -> None:
    done = run(runtime, "hold", *words)
    assert done.exit_code == code, done.output
    assert "mode of the key" not in str(done.exception)
    assert print_json(runtime, "hold", "list") == []
