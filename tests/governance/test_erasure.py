"""Erasure of a person's data: what it finds, what it leaves, what it says. Spec §4.5; contract §7."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from recorder import clock
from recorder.audit.log import Origin
from recorder.exports.runner.run import run_export
from recorder.governance.erasure_runs import has_unfinished_erasures, open_erasure_run, run_erasures
from recorder.governance.erasure_subjects import SubjectMatcher
from recorder.governance.holds import add_hold, remove_hold
from recorder.governance.requested_removals import read_last_removal
from recorder.governance.table_rewrites import rewrite_tables
from recorder.models.export import ExportRow
from recorder.models.governance import ErasureRow
from recorder.models.session import SessionRow
from recorder.storage.leases import HeldLease
from tests.support.completed_work import patch
from tests.support.export_runs import folder_of
from tests.support.factories import Caller, assert_problem, event
from tests.support.masking import set_masking
from tests.support.purges import (
    count_hits,
    finish_purges,
    make_due,
    new_word,
    purge_row,
    record_live_replay,
    recorded_canary,
)
from tests.support.recorded_sessions import copy_session, execute
from tests.support.sealing import seal_all

ADDRESS = "/v1/privacy/erasure"


def erase(caller: Caller, subject: str) -> dict[str, Any]:
    """Erase a subject to the end; return the erasure as it is read then."""
    answer = caller.post(ADDRESS, {"subject": subject, "scope": "all"})
    assert answer.status_code == 202, answer.text
    finish_erasures(caller)
    output: dict[str, Any] = caller.get(f"{ADDRESS}/{answer.json()['id']}").json()
    return output


def finish_erasures(caller: Caller, *, remove_texts: Callable[[], bool] = lambda: True) -> None:
    """Run until no erasure is open; see `open_erasure_run` for the function."""
    runtime = caller.service.runtime
    run_erasures(runtime, "tests")
    finish_purges(runtime)
    with open_erasure_run(runtime, "tests", remove_texts=remove_texts) as run:
        assert run is not None
        while run.search_next_range():
            pass
        run.end_erasures()
        for error in run.errors.values():
            raise error
    rewrites = rewrite_tables(runtime, "tests")
    assert rewrites is not None and rewrites.failures == {}
    with runtime.database.transaction(write=False) as db:
        assert not has_unfinished_erasures(db)


def test_an_erasure_leaves_no_byte_of_a_person(caller: Caller) -> None:
    runtime = caller.service.runtime
    canary, other = recorded_canary(caller), recorded_canary(caller)
    unsealed = caller.make_session(metadata={"customer": canary.word})
    assert count_hits(runtime, canary.word) > 5
    erasure = erase(caller, canary.word)
    assert (erasure["status"], erasure["error"]) == ("completed", None)
    assert (erasure["counts"]["sessions"], erasure["counts"]["events"]) == (2, 2)
    assert count_hits(runtime, canary.word) == 0
    assert count_hits(runtime, other.word) > 5
    for session_id in (canary.session_id, unsealed):
        assert caller.get(f"/v1/sessions/{session_id}").status_code == 404
        assert purge_row(runtime, session_id) is None


def test_sqlite_s_log_holds_no_request_that_ended(caller: Caller) -> None:
    runtime = caller.service.runtime
    if not runtime.database.is_sqlite:
        pytest.skip("PostgreSQL's log is the operator's")
    log = Path(f"{runtime.settings.database_url.removeprefix('sqlite:///')}-wal")
    caller.make_session()
    assert caller.post(ADDRESS, {"subject": "nowhere", "scope": "all"}).status_code == 202
    with runtime.database.transaction(write=False) as db:
        subject = db.exec(select(ErasureRow.subject)).one()
    assert subject in log.read_bytes()
    finish_erasures(caller)
    assert subject not in log.read_bytes()


def test_exports_in_buckets_of_clients_are_counted(caller: Caller) -> None:
    runtime = caller.service.runtime
    canary = recorded_canary(caller)
    body = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    rows = [
        run_export(runtime, caller.post("/v1/exports", body).json()["id"], owner="tests") for _ in range(2)
    ]
    with runtime.database.transaction(write=True) as db:
        elsewhere = db.get_one(ExportRow, rows[0].id)
        elsewhere.destination = {"kind": "s3", "bucket": "elsewhere"}
        db.add(elsewhere)
    erasure = erase(caller, canary.word)
    assert (erasure["status"], erasure["counts"]["exports"]) == ("completed", 1)
    manifest = caller.get(f"/v1/exports/{rows[1].id}/manifest").json()
    assert manifest["tombstones"] == {"erased": 1, "deleted": 0, "expired": 0}


def test_exports_out_of_reach_are_counted_once_though_runs_are_killed(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = caller.service.runtime
    canary = recorded_canary(caller)
    body = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    for _ in range(2):
        row = run_export(runtime, caller.post("/v1/exports", body).json()["id"], owner="tests")
        with runtime.database.transaction(write=True) as db:
            elsewhere = db.get_one(ExportRow, row.id)
            elsewhere.destination = {"kind": "s3", "bucket": "elsewhere"}
            db.add(elsewhere)
    answer = caller.post(ADDRESS, {"subject": canary.word, "scope": "all"}).json()
    run_erasures(runtime, "tests")
    require_time, is_killed = HeldLease.require_time, []

    def kill_after_the_first_export(held: HeldLease) -> None:
        with runtime.database.transaction(write=False) as db:
            erasure = db.get_one(ErasureRow, answer["id"])
        if erasure.exports and not is_killed:
            is_killed.append(erasure.exports)
            raise KeyboardInterrupt
        require_time(held)

    monkeypatch.setattr(HeldLease, "require_time", kill_after_the_first_export)
    with pytest.raises(KeyboardInterrupt):
        finish_purges(runtime)
    assert [len(counted) for counted in is_killed] == [1]
    finish_erasures(caller)
    erasure = caller.get(f"{ADDRESS}/{answer['id']}").json()
    assert (erasure["status"], erasure["counts"]["exports"]) == ("completed", 2)


def test_the_counts_name_rewritten_files_and_visited_nodes(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 2_000)
    caller.request("PATCH", "/v1/workflows/checkout", json={"memory_graph": True})
    runtime, session_ids, word = caller.service.runtime, [], new_word()
    for names in (["Pay", "Send"], ["Pay", "Back"], ["Pay", "Quit"]):
        actor = {"id": word if names[1] != "Quit" else new_word(), "kind": "human"}
        session_id = caller.make_session(actor=actor)
        events = [
            event(at, "click", target={"role": "button", "name": name}) for at, name in enumerate(names)
        ]
        caller.add_events(session_id, *events)
        caller.post(f"/v1/sessions/{session_id}/stop")
        session_ids.append(session_id)
    seal_all(caller.service.runtime)
    body = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    ended = [
        run_export(runtime, caller.post("/v1/exports", body).json()["id"], owner="tests") for _ in range(2)
    ]
    files = [_list_files(caller, row) for row in ended]
    erasure = erase(caller, word)
    changed = [
        path
        for row, before in zip(ended, files, strict=True)
        for path in before.keys() - {"manifest.json", "README.md"}
        if _list_files(caller, row).get(path) != before[path]
    ]
    assert erasure["counts"]["shards"] == len(changed) > 0
    assert (erasure["counts"]["sessions"], erasure["counts"]["nodes"]) == (2, 3)


def test_the_counts_are_sums_over_both_modes(caller: Caller) -> None:
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    word = new_word()
    for each in (caller, tester):
        assert each.request("PATCH", "/v1/workflows/checkout", json={"memory_graph": True}).status_code == 200
        session_id = each.make_session(actor={"id": word, "kind": "human"})
        each.add_events(session_id, event(0, "click", target={"role": "button", "name": "Pay"}))
        each.post(f"/v1/sessions/{session_id}/stop")
    seal_all(caller.service.runtime)
    counts = erase(caller, word)["counts"]
    assert (counts["sessions"], counts["events"], counts["nodes"]) == (2, 2, 2)


def _list_files(caller: Caller, row: ExportRow) -> dict[str, bytes]:
    """Return the files of a hosted export by path."""
    folder = folder_of(caller.service.runtime, row)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_audit_log_keeps_a_keyed_hash_alone(caller: Caller) -> None:
    subject = new_word()
    caller.make_session(actor={"id": subject, "kind": "human"})
    erasure = erase(caller, subject)
    entries = caller.get("/v1/audit").json()["data"]
    assert [entry["action"] for entry in entries] == ["privacy.request", "session.purge", "privacy.erase"]
    tokens = entries[0]["details"].pop("token_hashes")
    assert entries[0]["details"] == {"scope": "all", "subject_hash": erasure["subject_hash"]}
    assert tokens and all(len(token) == 64 for token in tokens)
    assert entries[2]["details"] == erasure
    assert subject not in caller.get("/v1/audit").text


def test_the_last_removal_is_that_of_an_erasure_or_of_a_hard_delete(caller: Caller) -> None:
    runtime, since = caller.service.runtime, clock.now()

    def purge() -> datetime:
        session_id = caller.make_session()
        caller.delete(f"/v1/sessions/{session_id}?hard=true")
        finish_purges(runtime)
        ended_at: datetime = purge_row(runtime, session_id).done_at
        return ended_at

    def read_last() -> datetime:
        with runtime.database.transaction(write=False) as db:
            last = read_last_removal(db, since=since)
        assert last is not None
        return last

    first = purge()
    assert read_last() == first
    erase(caller, "nobody")
    assert read_last() > first
    assert read_last() < purge() == read_last()


def test_an_unknown_subject_completes_with_zeros(caller: Caller) -> None:
    erasure = erase(caller, "nobody-of-this-name")
    assert erasure["status"] == "completed"
    assert set(erasure["counts"].values()) == {0}


@pytest.mark.parametrize(
    "subject",
    ["x' OR '1'='1", "50%", "a_b", "back\\slash", 'quo"te', "e\u0301clair", "ADA", "‹email:0›", "new\nline"],
)
def test_a_subject_is_plain_text(caller: Caller, subject: str) -> None:
    named = caller.make_session(metadata={"deep": [{"name": subject}]})
    acted = caller.make_session(actor={"id": subject, "kind": "human"})
    near = [
        caller.make_session(metadata={"name": text}) for text in (f"{subject}x", subject.swapcase() + ".")
    ]
    near.append(caller.make_session(metadata={subject: "as a key"}))
    assert erase(caller, subject)["counts"]["sessions"] == 2
    for session_id in (named, acted):
        assert caller.get(f"/v1/sessions/{session_id}").status_code == 404
    for session_id in near:
        assert caller.get(f"/v1/sessions/{session_id}").status_code == 200


def test_a_masked_subject_is_found_by_its_token(caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"masking": {"builtins": ["email"]}})
    session_id = caller.make_session(metadata={"mail": "Ada@Example.com"})
    assert "example.com" not in caller.get(f"/v1/sessions/{session_id}").text.lower()
    assert erase(caller, "ada@example.com")["counts"]["sessions"] == 1
    assert caller.get(f"/v1/sessions/{session_id}").status_code == 404


STAFF = {"name": "staff", "pattern": "emp-[0-9]+", "replacement": "[staff]"}


@pytest.mark.parametrize("workflow", [None, "checkout"])
def test_a_subject_masked_with_a_replacement_is_found(caller: Caller, workflow: str | None) -> None:
    set_masking(caller, {"patterns": [STAFF]}, workflow=workflow)
    acted = caller.make_session(actor={"id": "emp-1", "kind": "human"})
    named = caller.make_session(metadata={"deep": [{"who": "emp-1"}]})
    others = [
        caller.make_session(actor={"id": "emp-2", "kind": "human"}),
        caller.make_session(metadata={"who": "by emp-1"}),
        caller.make_session(metadata={"who": "emp-1 and emp-2"}),
    ]
    assert "[staff]‹staff:" in caller.get(f"/v1/sessions/{named}").text
    # A policy that ended masked what is stored: its replacement is still known.
    set_masking(caller, {"patterns": []}, workflow=workflow)
    assert erase(caller, "emp-1")["counts"]["sessions"] == 2
    for session_id in (acted, named):
        assert caller.get(f"/v1/sessions/{session_id}").status_code == 404
    for session_id in others:
        assert caller.get(f"/v1/sessions/{session_id}").status_code == 200


def test_a_text_that_only_resembles_a_masked_subject_stays(caller: Caller) -> None:
    set_masking(caller, {"patterns": [STAFF]})
    masked = caller.make_session(metadata={"who": "emp-1"})
    text = caller.get(f"/v1/sessions/{masked}").json()["metadata"]["who"]
    token = text.removeprefix("[staff]")
    near = [
        caller.make_session(metadata={"who": near})
        for near in (f"[other]{token}", f"{text}.", f"[staff] {token}", f"[staff]{text}", f"{token}{token}")
    ]
    assert erase(caller, "emp-1")["counts"]["sessions"] == 1
    for session_id in near:
        assert caller.get(f"/v1/sessions/{session_id}").status_code == 200


@pytest.mark.parametrize(
    ("subject", "masked"),
    [
        ("ada1@example.com", "1"),
        ("case 4111 1111 1111 1111", "4111111111111111"),
        ("4111 1111 1111 1112", "4111111111111112"),
        ("ADA", "ada"),
        ("by Ada@Example.com", "by ada@example.com"),
    ],
)
def test_the_digits_or_letters_of_a_subject_find_no_other_person(
    caller: Caller, subject: str, masked: str
) -> None:
    patterns = [{"name": "whole", "pattern": f"^(?:{masked}|{subject})$"}]
    set_masking(caller, {"builtins": ["email", "card"], "patterns": patterns})
    other, named = (caller.make_session(metadata={"id": text}) for text in (masked, subject))
    for session_id in (other, named):
        assert "‹" in caller.get(f"/v1/sessions/{session_id}").json()["metadata"]["id"]
    assert erase(caller, subject)["counts"]["sessions"] == 1
    assert caller.get(f"/v1/sessions/{other}").status_code == 200
    assert caller.get(f"/v1/sessions/{named}").status_code == 404


@pytest.mark.parametrize(
    ("subject", "spelling"),
    [("4111111111111111", "4111 1111 1111 1111"), ("4111-1111-1111-1111", "4111111111111111")],
)
def test_a_masked_card_is_found_in_every_spelling(caller: Caller, subject: str, spelling: str) -> None:
    set_masking(caller, {"builtins": ["card"]})
    session_id = caller.make_session(metadata={"card": spelling})
    assert erase(caller, subject)["counts"]["sessions"] == 1
    assert caller.get(f"/v1/sessions/{session_id}").status_code == 404


def test_requests_of_one_moment_open_one_erasure(caller: Caller) -> None:
    for number in range(5):
        answers = run_at_once(partial(caller.post, ADDRESS, {"subject": f"ada-{number}", "scope": "all"}), 8)
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
    actions = [entry["action"] for entry in caller.get("/v1/audit").json()["data"]]
    assert actions.count("privacy.request") == 5
    finish_erasures(caller)
    actions = [entry["action"] for entry in caller.get("/v1/audit").json()["data"]]
    assert actions.count("privacy.erase") == 5


def run_at_once(send: Callable[[], Any], count: int) -> list[Any]:
    """Return the answers of requests that threads send at the same moment."""
    barrier = threading.Barrier(count)

    def run(_: int) -> Any:
        barrier.wait()
        return send()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_a_second_request_while_one_is_open_answers_the_open_one(caller: Caller) -> None:
    body = {"subject": "ada", "scope": "all"}
    first, second = (caller.post(ADDRESS, body).json() for _ in range(2))
    assert first == second and first["status"] == "queued"
    other = caller.service.make_caller().post(ADDRESS, body).json()
    assert other["subject_hash"] != first["subject_hash"]
    finish_erasures(caller)


def test_an_erasure_is_due_30_days_after_its_request(caller: Caller) -> None:
    made = caller.post(ADDRESS, {"subject": "ada", "scope": "all"}).json()
    created_at, due_by = (datetime.fromisoformat(made[name]) for name in ("created_at", "due_by"))
    assert due_by - created_at == timedelta(days=30)
    finish_erasures(caller)
    ended = caller.get(f"{ADDRESS}/{made['id']}").json()
    assert ended["status"] == "completed" and ended["completed_at"] <= ended["due_by"] == made["due_by"]


def test_a_request_of_each_mode_opens_an_erasure_of_its_own(caller: Caller) -> None:
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    body = {"subject": "ada", "scope": "all"}
    tested, live = (each.post(ADDRESS, body).json()["id"] for each in (tester, caller))
    assert tested != live
    finish_erasures(caller)
    assert caller.get(f"{ADDRESS}/{live}").json()["status"] == "completed"


def test_an_erasure_waits_for_purges_that_had_begun_before_its_searches_ended(caller: Caller) -> None:
    runtime = caller.service.runtime
    earlier, later = recorded_canary(caller), recorded_canary(caller)
    # Its rows are gone, and its rows in the lake are not.
    assert caller.delete(f"/v1/sessions/{earlier.session_id}?hard=true").status_code == 204
    erasure_id = caller.post(ADDRESS, {"subject": earlier.word, "scope": "all"}).json()["id"]
    assert caller.delete(f"/v1/sessions/{later.session_id}?hard=true").status_code == 204
    assert run_erasures(runtime, "tests", longest_request=timedelta(0)) == 0
    with runtime.database.transaction(write=False) as db:
        assert not has_unfinished_erasures(db), "the sensor of purges would start runs for nothing"
    after = recorded_canary(caller)
    assert caller.delete(f"/v1/sessions/{after.session_id}?hard=true").status_code == 204
    step = "UPDATE purges SET step = :step WHERE session_id = :id"
    for purged, is_last in ((earlier, False), (later, True)):
        execute(runtime, step, step="done", id=purged.session_id)
        with runtime.database.transaction(write=False) as db:
            assert has_unfinished_erasures(db) is is_last
    for purged in (earlier, later):
        execute(runtime, step, step="lake", id=purged.session_id)
    finish_erasures(caller)
    assert caller.get(f"{ADDRESS}/{erasure_id}").json()["status"] == "completed"
    assert count_hits(runtime, earlier.word) == 0


def test_an_erasure_of_live_data_waits_for_earlier_purges_of_test_data(caller: Caller) -> None:
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    assert tester.delete(f"/v1/sessions/{tester.make_session()}?hard=true").status_code == 204
    erasure_id = caller.post(ADDRESS, {"subject": "ada", "scope": "all"}).json()["id"]
    run_erasures(caller.service.runtime, "tests", longest_request=timedelta(0))
    assert waits_for_purges(caller, erasure_id)
    finish_erasures(caller)


def test_an_erasure_waits_for_no_purge_of_another_workspace(caller: Caller) -> None:
    other = caller.service.make_caller()
    assert other.delete(f"/v1/sessions/{other.make_session()}?hard=true").status_code == 204
    erasure_id = caller.post(ADDRESS, {"subject": "ada", "scope": "all"}).json()["id"]
    run_erasures(caller.service.runtime, "tests", longest_request=timedelta(0))
    assert not waits_for_purges(caller, erasure_id)
    finish_erasures(caller)


def waits_for_purges(caller: Caller, erasure_id: str) -> bool:
    """Return whether an erasure neither ended nor asked for the rewrite of tables."""
    with caller.service.runtime.database.transaction(write=False) as db:
        row = db.get(ErasureRow, erasure_id)
        return row is not None and row.stale_tables is None


def test_each_of_many_sessions_of_a_person_is_found_among_many(caller: Caller) -> None:
    runtime = caller.service.runtime
    other, named = (caller.make_session(actor={"id": each, "kind": "human"}) for each in ("bob", "ada"))
    others = copy_session(runtime, other, 20_000)
    copies = copy_session(runtime, named, 150)
    request = caller.post(ADDRESS, {"subject": "ada", "scope": "all"}).json()
    run_erasures(runtime, "tests")
    assert caller.get(f"{ADDRESS}/{request['id']}").json()["counts"]["sessions"] == 151
    assert all(purge_row(runtime, each) for each in (named, *copies))
    assert not any(purge_row(runtime, each) for each in (other, others[0], others[-1]))
    finish_erasures(caller)


def test_a_search_that_failed_in_test_data_is_continued(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    session_ids = [each.make_session(actor={"id": "ada", "kind": "human"}) for each in (caller, tester)]
    caller.post(ADDRESS, {"subject": "ada", "scope": "all"})
    find = SubjectMatcher.find_sessions

    def fail_in_test_data(*values: Any) -> list[str]:
        sessions = find(*values)
        if session_ids[1] in sessions:
            raise OSError("the disk is away")
        return sessions

    with monkeypatch.context() as patched:
        patched.setattr(SubjectMatcher, "find_sessions", fail_in_test_data)
        with pytest.raises(OSError):
            run_erasures(caller.service.runtime, "tests")
    finish_erasures(caller)
    answers = [
        each.get(f"/v1/sessions/{session_id}")
        for each, session_id in zip((caller, tester), session_ids, strict=True)
    ]
    assert [answer.status_code for answer in answers] == [404, 404]


def test_a_live_key_reaches_both_modes_and_a_test_key_its_own(caller: Caller) -> None:
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    actor = {"id": "ada", "kind": "human"}
    live, tested = caller.make_session(actor=actor), tester.make_session(actor=actor)
    request = tester.post(ADDRESS, {"subject": "ada", "scope": "all"}).json()
    finish_erasures(caller)
    assert caller.get(f"/v1/sessions/{live}").status_code == 200
    assert tester.get(f"/v1/sessions/{tested}").status_code == 404
    assert tester.get(f"{ADDRESS}/{request['id']}").json()["status"] == "completed"
    assert_problem(caller.get(f"{ADDRESS}/{request['id']}"), 404, "not_found")
    again = tester.make_session(actor=actor)
    assert erase(caller, "ada")["counts"]["sessions"] == 2
    assert tester.get(f"/v1/sessions/{again}").status_code == 404


def test_an_erasure_leaves_other_workspaces_and_later_sessions_alone(caller: Caller) -> None:
    actor = {"id": "ada", "kind": "human"}
    other = caller.service.make_caller()
    named, foreign = caller.make_session(actor=actor), other.make_session(actor=actor)
    assert caller.post(ADDRESS, {"subject": "ada", "scope": "all"}).status_code == 202
    later = caller.make_session(actor=actor)
    finish_erasures(caller)
    assert caller.get(f"/v1/sessions/{named}").status_code == 404
    assert caller.get(f"/v1/sessions/{later}").status_code == 200
    assert other.get(f"/v1/sessions/{foreign}").status_code == 200


def test_a_held_session_makes_an_erasure_fail_and_the_rest_is_erased(caller: Caller) -> None:
    actor = {"id": "ada", "kind": "human"}
    held, free = caller.make_session(actor=actor), caller.make_session(actor=actor)
    # Test data, which is searched after live data, has no hold.
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    tested = tester.make_session(actor=actor)
    origin = Origin.operator(caller.key.workspace_id)
    with caller.service.runtime.database.transaction(write=True) as db:
        add_hold(db, origin, kind="session", value=held)
    erasure = erase(caller, "ada")
    assert (erasure["status"], erasure["error"]["code"]) == ("failed", "held")
    assert caller.get(f"/v1/sessions/{held}").status_code == 200
    assert caller.get(f"/v1/sessions/{free}").status_code == 404
    assert tester.get(f"/v1/sessions/{tested}").status_code == 404
    with caller.service.runtime.database.transaction(write=True) as db:
        remove_hold(db, origin, kind="session", value=held)
    assert erase(caller, "ada")["status"] == "completed"


def test_a_hold_that_ends_between_the_searches_makes_no_erasure_fail(caller: Caller) -> None:
    session_id = caller.make_session(actor={"id": "ada", "kind": "human"})
    runtime, origin = caller.service.runtime, Origin.operator(caller.key.workspace_id)
    with runtime.database.transaction(write=True) as db:
        add_hold(db, origin, kind="session", value=session_id)
    erasure_id = caller.post(ADDRESS, {"subject": "ada", "scope": "all"}).json()["id"]
    run_erasures(runtime, "tests")
    with runtime.database.transaction(write=True) as db:
        assert db.get_one(ErasureRow, erasure_id).second_search_at is not None
        remove_hold(db, origin, kind="session", value=session_id)
    make_due(runtime)
    finish_erasures(caller)
    erasure = caller.get(f"{ADDRESS}/{erasure_id}").json()
    assert (erasure["status"], erasure["counts"]["sessions"]) == ("completed", 1)


def test_a_held_recording_of_a_replay_is_found_by_the_names_of_its_purged_source(caller: Caller) -> None:
    canary = recorded_canary(caller)
    held, _ = record_live_replay(caller, canary.session_id)
    database = caller.service.runtime.database
    for origin_of_session in (None, "replay"):  # clients add nothing to a recording
        with database.transaction(write=True) as db:
            db.get_one(SessionRow, held).origin = origin_of_session
        if origin_of_session is None:
            assert caller.add_events(held, event(0, "click", title=canary.word)).status_code == 202
    origin = Origin.operator(caller.key.workspace_id)
    hold = {"kind": "session", "value": held}
    with caller.service.runtime.database.transaction(write=True) as db:
        add_hold(db, origin, **hold)
    for _ in range(2):  # The second one finds the recording alone.
        erasure = erase(caller, canary.word)
        assert (erasure["status"], erasure["error"]["code"]) == ("failed", "held")
        assert caller.get(f"/v1/sessions/{held}").status_code == 200
    assert erase(caller, new_word())["status"] == "completed"
    assert caller.get(f"/v1/sessions/{canary.session_id}").status_code == 404
    with caller.service.runtime.database.transaction(write=True) as db:
        remove_hold(db, origin, **hold)
    erasure = erase(caller, canary.word)
    assert (erasure["status"], erasure["counts"]["sessions"]) == ("completed", 1)
    assert count_hits(caller.service.runtime, canary.word) == 0


@pytest.mark.parametrize("kind", ["activity", "tool_call"])
def test_a_graph_loses_names_that_only_erased_sessions_gave_to_activities(caller: Caller, kind: str) -> None:
    word, workflow = new_word(), f"log_{kind}"

    def record(*names: str, **members: Any) -> None:
        session_id = caller.make_session(workflow=workflow, **members)
        events = [event(at, kind, data={"name": name}) for at, name in enumerate(names)]
        assert caller.add_events(session_id, *events).status_code == 202
        caller.post(f"/v1/sessions/{session_id}/stop")
        seal_all(caller.service.runtime)

    def read_labels() -> list[str]:
        graph = caller.get(f"/v1/memory/graph?workflow={workflow}").json()
        return sorted(node["label"] for node in graph["nodes"])

    record(f"Greet {word}", "Close case", actor={"id": word, "kind": "human"})
    record("Close case")
    named = read_labels()
    assert any(word in label for label in named)
    assert erase(caller, word)["status"] == "completed"
    bare = {"activity": "Activity", "tool_call": "Call"}[kind]
    assert read_labels() == sorted([bare, *(label for label in named if word not in label)])
    assert count_hits(caller.service.runtime, word) == 0
    record(f"Greet {word}")
    assert read_labels() == named


@pytest.mark.parametrize(
    "body",
    [
        {"subject": "", "scope": "all"},
        {"subject": "x" * 257, "scope": "all"},
        {"subject": "a\0b", "scope": "all"},
        {"subject": 5, "scope": "all"},
        {"subject": "ada", "scope": "events"},
        {"subject": "ada"},
        {"scope": "all"},
        {"subject": "ada", "scope": "all", "more": 1},
    ],
)
def test_a_body_of_another_form_is_refused(caller: Caller, body: dict[str, Any]) -> None:
    assert_problem(caller.post(ADDRESS, body), 422, "validation_failed")


def test_an_erasure_needs_admin_and_is_of_its_workspace(caller: Caller) -> None:
    writer = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write")
    assert_problem(writer.post(ADDRESS, {"subject": "ada", "scope": "all"}), 403, "insufficient_scope")
    erasure_id = caller.post(ADDRESS, {"subject": "ada", "scope": "all"}).json()["id"]
    assert_problem(caller.service.make_caller().get(f"{ADDRESS}/{erasure_id}"), 404, "not_found")
    finish_erasures(caller)
    assert_problem(caller.service.make_caller().get(f"{ADDRESS}/{erasure_id}"), 404, "not_found")
