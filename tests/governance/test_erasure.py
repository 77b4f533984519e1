"""Erasure of a person's data: what it finds, what it leaves, what it says. Spec §4.5; contract §7."""

from typing import Any

import pytest

from recorder.audit.log import Origin
from recorder.exports.runner.run import run_export
from recorder.governance.erasures import has_open_erasures, run_erasures
from recorder.governance.holds import add_hold, remove_hold
from recorder.models.export import ExportRow
from tests.support.completed_work import patch
from tests.support.factories import Caller, assert_problem
from tests.support.purges import count_hits, finish_purges, new_word, purge_row, recorded_canary

ADDRESS = "/v1/privacy/erasure"


def erase(caller: Caller, subject: str) -> dict[str, Any]:
    """Erase a subject to the end; return the erasure as it is read then."""
    answer = caller.post(ADDRESS, {"subject": subject, "scope": "all"})
    assert answer.status_code == 202, answer.text
    finish_erasures(caller)
    output: dict[str, Any] = caller.get(f"{ADDRESS}/{answer.json()['id']}").json()
    return output


def finish_erasures(caller: Caller) -> None:
    """Run until no erasure is open."""
    runtime = caller.service.runtime
    run_erasures(runtime, "tests")
    finish_purges(runtime)
    run_erasures(runtime, "tests")
    with runtime.database.transaction(write=False) as db:
        assert not has_open_erasures(db)


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


def test_a_second_request_while_one_is_open_answers_the_open_one(caller: Caller) -> None:
    body = {"subject": "ada", "scope": "all"}
    first, second = (caller.post(ADDRESS, body).json() for _ in range(2))
    assert first == second and first["status"] == "queued"
    assert first["due_by"] > first["created_at"]
    other = caller.service.make_caller().post(ADDRESS, body).json()
    assert other["subject_hash"] != first["subject_hash"]
    finish_erasures(caller)


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
    origin = Origin.operator(caller.key.workspace_id)
    with caller.service.runtime.database.transaction(write=True) as db:
        add_hold(db, origin, kind="session", value=held)
    erasure = erase(caller, "ada")
    assert (erasure["status"], erasure["error"]["code"]) == ("failed", "held")
    assert caller.get(f"/v1/sessions/{held}").status_code == 200
    assert caller.get(f"/v1/sessions/{free}").status_code == 404
    with caller.service.runtime.database.transaction(write=True) as db:
        remove_hold(db, origin, kind="session", value=held)
    assert erase(caller, "ada")["status"] == "completed"


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
