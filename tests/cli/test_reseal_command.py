"""`recorder sessions reseal` and `recorder db reslot`: what sealing leaves to the operator. Contract §9."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recorder.access.workspaces import create_workspace
from recorder.cli import app as command_line
from recorder.sealing.failures import set_aside
from recorder.supervisor.run_records import SERVICE, AlreadyRunning, RunRecord
from tests.support.recorded_sessions import open_desk, session_row
from tests.support.sealed_sessions import make_runtime


def test_all_sessions_that_were_set_aside_wait_again(database_url: str, tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path, database_url=database_url)
    with open_desk(runtime) as desk:
        ids = [desk.record() for _ in range(3)]
    with runtime.database.transaction(write=True) as db:
        for session_id in ids[:2]:
            set_aside(db, session_id, "content_unreadable", "A defect.")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECORDER_DATABASE_URL", database_url)
        patch.setenv("RECORDER_SECRET", runtime.settings.secret.decode())
        done = CliRunner().invoke(
            command_line, ["sessions", "reseal", "--all", "--data", str(tmp_path), "--json"]
        )
    assert done.exit_code == 0, done.output
    assert sorted(json.loads(done.stdout)["resealed"]) == sorted(ids[:2])
    assert all(session_row(runtime, session_id).waiting_since for session_id in ids)
    runtime.close()


def test_sessions_that_were_set_aside_are_listed_with_code_and_reason(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    with open_desk(runtime) as desk:
        ids = [desk.record() for _ in range(3)]
    with runtime.database.transaction(write=True) as db:
        set_aside(db, ids[0], "content_unreadable", "A picture cannot be read.")
        set_aside(db, ids[1], "over_budget", "A snapshot is too large.")
        create_workspace(db, "other", region="us", secret=runtime.settings.secret)
    runtime.close()
    words = ["sessions", "quarantined", "--data", str(tmp_path)]
    listed = json.loads(CliRunner().invoke(command_line, [*words, "--json"]).stdout)
    assert {row["session_id"]: (row["code"], row["message"]) for row in listed} == {
        ids[0]: ("content_unreadable", "A picture cannot be read."),
        ids[1]: ("over_budget", "A snapshot is too large."),
    }
    of_another = CliRunner().invoke(command_line, [*words, "--workspace", "other", "--json"])
    assert json.loads(of_another.stdout) == []
    shown = CliRunner().invoke(command_line, words)
    assert shown.exit_code == 0 and ids[0] in shown.stdout and ids[2] not in shown.stdout


def test_an_unknown_session_leads_to_the_list_of_those_that_were_set_aside(tmp_path: Path) -> None:
    make_runtime(tmp_path).close()
    done = CliRunner().invoke(command_line, ["sessions", "reseal", "ses_x", "--data", str(tmp_path)])
    assert done.exit_code == 1 and "`recorder sessions quarantined`" in str(done.exception)


@pytest.mark.parametrize("words", [[], ["ses_a", "--all"]])
def test_ids_or_all_must_be_given(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(command_line, ["sessions", "reseal", *words, "--data", str(tmp_path)])
    assert done.exit_code == 2 and "--all" in done.output


def test_the_slots_are_not_changed_under_a_running_service(tmp_path: Path) -> None:
    make_runtime(tmp_path).close()
    words = ["db", "reslot", "16", "--data", str(tmp_path)]
    with RunRecord.hold(tmp_path, SERVICE, api="http://127.0.0.1:8700"):
        refused = CliRunner().invoke(command_line, words)
    assert isinstance(refused.exception, AlreadyRunning) and "Stop it first" in str(refused.exception)
    done = CliRunner().invoke(command_line, words)
    assert (done.exit_code, done.stderr.split(".")[0]) == (0, "16 slots instead of 8")
