"""`recorder replay` and `recorder recover` against the real service, with a run at work. Contract §9."""

import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from recorder.cli import main
from recorder.live.claimed_replay import claim_live_replay, list_next_live_replays
from recorder.live.replay_journal import LiveResult, ReplayJournal
from recorder.replays.replay_results import Decision, ReplaySummary
from tests.support.factories import Caller
from tests.support.failing_runs import PAGES, make_run, page
from tests.support.http_service import serving
from tests.support.replay_requests import allow_hosts
from tests.support.two_click_sessions import make_drain_run
from tests.support.waiting import wait_for

USUAL = ("Open", "Review", "Approve")


class Ended(NamedTuple):
    """The exit code and the output of a command."""

    code: int | str
    out: str
    err: str


@pytest.fixture
def url(caller: Caller) -> Iterator[str]:
    """Yield the service on a port, and a run that replays what waits."""
    is_over = threading.Event()

    def work() -> None:
        run = make_drain_run(caller.service.runtime, "commands")
        while not run.take():
            is_over.wait(0.1)
        while not is_over.wait(0.05):
            run.work_on_due_replays()
        run.release()

    worker = threading.Thread(target=work)
    worker.start()
    with serving(caller.service.app, lifespan="off") as port:
        yield f"http://127.0.0.1:{port}"
    is_over.set()
    worker.join()


@pytest.fixture
def run(
    caller: Caller, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Return a command, as the shell sees it."""

    key = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write replay:live").key.key

    def called(*words: str) -> Ended:
        options = ["--url", url, "--key", key]
        monkeypatch.setattr(sys, "argv", ["recorder", *words, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code or 0, *capsys.readouterr())

    return called


def test_steps_and_divergences_are_printed_in_80_columns(
    caller: Caller, run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = make_run(caller, *USUAL, pages={"Review": page("Archive of all invoices of this year", "Back")})
    session_id = make_run(caller, *USUAL, tags=[("ready", 1_900)], seal=True)
    whole = run("replay", session_id)
    assert whole.code == 0, whole.err
    lines = whole.out.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "1", "2", "3", "completed:"]
    assert "button Open" in lines[1] and lines[1].split()[-2:] == ["matched", "1.00"]
    diverged = run("replay", session_id, "--against", other, "--from", "tag:ready", "--until", "tag:ready")
    assert diverged.code == 1  # the tag is before the first event of the range
    diverged = run("replay", session_id, "--against", other)
    assert diverged.code == 3 and "diverged: 1 step," in diverged.out, diverged.out
    assert "state_mismatch" in diverged.out and max(map(len, diverged.out.splitlines())) <= 80
    monkeypatch.setenv("ERP_PASSWORD", "hush")
    options = ("--against", "graph", "--input", "password=ERP_PASSWORD", "--json")
    shown = json.loads(run("replay", session_id, *options).out)
    assert (shown["against"], shown["inputs"], len(shown["data"])) == ({"graph": True}, ["password"], 3)
    stored = tmp_path / "login.json"
    stored.write_text('{"cookies": []}')
    dry = run("replay", session_id, "--storage-state", str(stored))
    assert dry.code == 2 and "only with --live" in dry.err
    stored.write_text("no JSON")
    assert (
        "context.storage_state()" in run("replay", session_id, "--live", "--storage-state", str(stored)).err
    )
    shown = json.loads(run("replay", session_id, "--policy", '{"heal": "off"}', "--json").out)
    assert shown["policy"]["heal"] == "off"
    for wrong in (["--policy", "heal=off"], ["--policy", "{}"]):
        assert run("replay", session_id, *wrong).code == 2
    for wrong in (["--from", "ready"], ["--until", "auto"], ["--against", "rpl_1"], ["--input", "a=NOWHERE"]):
        assert run("replay", session_id, *wrong).code == 2


def test_recoveries_are_printed_with_their_candidates(caller: Caller, run: Callable[..., Ended]) -> None:
    for _ in range(2):
        make_run(caller, *USUAL)
    failed = make_run(caller, *USUAL, error_at=3_200, seal=True)
    printed = run("recover", failed)
    assert printed.code == 0, printed.err
    lines = printed.out.splitlines()
    assert lines[-1] == "succeeded" and lines[2].split()[0] == "2000" and "2/3" in lines[2]
    assert lines[1].split() == ["step"] and lines[3].split()[:2] == ["click", "button"]
    assert max(map(len, lines)) <= 80
    shown = json.loads(run("recover", failed, "--failure-tag", "error", "--json").out)
    assert (shown["status"], shown["failure_tag"]) == ("succeeded", "error")
    replayed = run("replay", failed, "--from", "auto", "--json")
    assert json.loads(replayed.out)["anchor_event"]["t_ms"] == 2_000
    lost = make_run(caller, "Retry", error_at=1_100, seal=True)
    assert run("recover", lost).code == 1
    unfailed = run("recover", make_run(caller, *USUAL, seal=True))
    assert unfailed.code == 1 and "name the tag of its failure with --failure-tag," in unfailed.err
    assert " failure_tag" not in unfailed.err


def test_a_guided_replay_names_the_step_that_it_asks_about(
    caller: Caller, run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = make_run(caller, *USUAL, seal=True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("perhaps\nact\n"))
    guided = run("replay", session_id, "--guided")
    assert guided.code == 0, guided.err
    assert "Step 3: click button Approve\n" in guided.err
    assert guided.err.count("act, skip, retarget, abort: ") == 2
    assert [line.split()[0] for line in guided.out.splitlines()] == ["step", "1", "2", "3", "completed:"]


@pytest.mark.parametrize("typed", ["", "retarget\n"])
def test_the_end_of_the_input_aborts_a_guided_replay(
    caller: Caller, run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    session_id = make_run(caller, *USUAL, seal=True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    guided = run("replay", session_id, "--guided")
    assert guided.code == 1 and "The input has ended: the replay is aborted.\n" in guided.err
    wait_for(lambda: caller.get("/v1/replays").json()["data"][0]["finished_at"], seconds=60)
    row = caller.get("/v1/replays").json()["data"][0]
    assert (row["session_id"], row["status"], row["error"]["type"]) == (session_id, "failed", "cancelled")


@pytest.mark.parametrize("decision", ["skip", "abort"])
def test_a_live_recovery_asks_for_the_decisions_of_its_attempt(
    caller: Caller, run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, decision: str
) -> None:
    for _ in range(2):
        make_run(caller, *USUAL)
    failed = make_run(caller, *USUAL, error_at=3_200, seal=True)
    allow_hosts(caller, "erp.example")
    monkeypatch.setattr(sys, "stdin", io.StringIO("" if decision == "abort" else f"{decision}\n"))
    decisions = []

    def work() -> None:
        """Do the live attempt as a worker does, without a browser."""
        runtime = caller.service.runtime
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with runtime.database.transaction(write=True) as db:
                claimed = claim_live_replay(db, "tests", list_next_live_replays(db))
            if claimed is not None:
                journal = ReplayJournal(runtime, claimed[0].id, claimed[1], lambda: False)
                journal.begin(3)
                decisions.append(journal.wait_for_decision(3, None))
                journal.finish(LiveResult("completed", None, ReplaySummary()))
                return
            time.sleep(0.1)

    worker = threading.Thread(target=work)
    worker.start()
    ended = run("recover", failed, "--live")
    worker.join()
    assert decisions == [Decision(decision)]  # type: ignore[arg-type]
    if decision == "abort":
        assert ended.code == 1 and "The input has ended" in ended.err
        return
    assert ended.code == 0 and ended.out.splitlines()[-1] == "succeeded", ended.err
    assert "Step 3: click button Approve\n" in ended.err


def test_the_last_attempt_of_a_failed_recovery_shows_its_divergence(
    caller: Caller, run: Callable[..., Ended]
) -> None:
    for _ in range(2):
        make_run(caller, *USUAL)
    error = page("Something went wrong, call support", "Home")
    failed = make_run(caller, *USUAL, error_at=3_200, pages=dict.fromkeys(PAGES, error), seal=True)
    printed = run("recover", failed)
    assert printed.code == 1, printed.out
    lines = printed.out.splitlines()
    ending = lines.index("failed: candidates_exhausted")
    assert lines[ending + 1].startswith("last attempt rpl_") and lines[ending + 1].endswith(": diverged")
    assert lines[ending + 2].startswith("step ") and "anchor_unreachable" in lines[ending + 2]
