"""Refusals name the member that is wrong, and advise what helps. Contract §1 (errors)."""

import pytest

from recorder import strict_json
from recorder.errors import ValidationFailed
from tests.support.factories import Caller, Service, assert_problem, event, frame, multipart, picture
from tests.support.two_click_sessions import replay_all, sealed_run


def places(answer: object, code: str = "validation_failed") -> list[tuple[str, str]]:
    """Return pointers and codes of the errors of a 422."""
    problem = assert_problem(answer, 422, code)  # type: ignore[arg-type]
    return [(error["pointer"], error["code"]) for error in problem["errors"]]


def test_a_frame_with_its_bytes_twice_names_the_superfluous_member(caller: Caller) -> None:
    session_id = caller.make_session()
    assert places(caller.add_frames(session_id, frame(1, part="p0"))) == [("/frames/0/part", "invalid_value")]
    item = {"t_ms": 1, "content_type": "image/png", "part": "a", "data": frame(1)["data"]}
    answer = caller.request("POST", f"/v1/sessions/{session_id}/frames", files=multipart([item], a=picture()))
    assert places(answer) == [("/frames/0/data", "invalid_value")]


def test_a_decision_names_its_selector(caller: Caller) -> None:
    body = {"session_id": sealed_run(caller), "sandbox": "dry", "mode": "guided"}
    replay_id = caller.post("/v1/replays", body).json()["id"]
    replay_all(caller)
    path, step = f"/v1/replays/{replay_id}/decision", {"step": 2}
    for selector in ({}, {"selector": None}):
        answer = caller.post(path, step | {"action": "retarget"} | selector)
        assert places(answer) == [("/selector", "missing")]
    answer = caller.post(path, step | {"action": "act", "selector": "#b"})
    assert places(answer) == [("/selector", "invalid_value")]
    assert places(caller.post(path, step | {"action": "jump", "selector": "#b"})) == [
        ("/action", "invalid_value")
    ]


def test_an_integer_over_64_bits_is_named(caller: Caller) -> None:
    for metadata, pointer in (
        ({"a": 2**63}, "/metadata/a"),
        ({"b": [1, {"c/d": -(2**70)}]}, "/metadata/b/1/c~1d"),
    ):
        answer = caller.post("/v1/sessions", {"workflow": "checkout", "metadata": metadata})
        assert places(answer) == [(pointer, "invalid_integer")]
    answer = caller.add_events(caller.make_session(), event(1), event(2, data={"n": 2**64}))
    assert places(answer) == [("/events/1/data/n", "invalid_integer")]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"a":9223372036854775808,"a":1', ""),
        (b'{"a":9223372036854775808,"b":' + b"9" * 5_000 + b"}", "/a"),
        (b"9223372036854775808", ""),
    ],
)
def test_a_body_that_is_wrong_in_other_ways_too_is_refused(body: bytes, pointer: str) -> None:
    with pytest.raises(ValidationFailed) as refusal:
        strict_json.parse(body)
    assert [(problem.pointer, problem.code) for problem in refusal.value.problems] == [
        (pointer, "invalid_integer")
    ]


def test_wrong_items_are_listed_by_number(caller: Caller) -> None:
    answer = caller.add_events(caller.make_session(), *[event(-1)] * 13)
    listed = ", ".join(f"/events/{number}/t_ms" for number in range(5))
    assert assert_problem(answer, 422, "validation_failed")["detail"] == f"13 problems: {listed}."


def test_a_plus_that_was_not_encoded_is_explained(caller: Caller) -> None:
    sentence = "In an address, write + as %2B."
    for name in ("since", "until"):
        answer = caller.get(f"/v1/sessions?{name}=2026-01-01T00:00:00+02:00")
        problem = assert_problem(answer, 422, "invalid_time")
        assert sentence in problem["detail"] and sentence in problem["errors"][0]["message"]
    assert sentence not in caller.get("/v1/sessions?since=yesterday").json()["detail"]
    assert caller.get("/v1/sessions?since=2026-01-01T00:00:00%2B02:00").status_code == 200


def test_a_test_key_is_told_which_mode_is_needed(service: Service, caller: Caller) -> None:
    tester = service.make_caller(workspace_id=caller.key.workspace_id, mode="test")
    requests = (
        ("POST", "/v1/keys", {"label": "a", "scope": "read", "mode": "live"}),
        ("PATCH", "/v1/workspaces/current", {"retention": {"frames_days": 9}}),
    )
    for method, path, body in requests:
        problem = assert_problem(tester.request(method, path, json=body), 403, "insufficient_scope")
        assert "of live mode" in problem["detail"] and "the scope admin, of" not in problem["detail"]
    entries = [entry for entry in caller.get("/v1/audit").json()["data"] if entry["outcome"] == "refused"]
    expected = {"needed": "admin", "held": "admin", "needed_mode": "live", "held_mode": "test"}
    assert [entry["details"] for entry in entries] == [expected] * 2
