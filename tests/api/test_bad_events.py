"""Event batches that are refused: nothing of them is stored. Contract §3 (event item), §1 (errors)."""

import json
from typing import Any

import pytest

from recorder import limits
from recorder.models.session import SessionRow
from tests.support.factories import Caller, assert_problem, event, footprint, frame, json_size

GOOD = event(1)


def padded(size: int) -> dict[str, Any]:
    """Return an event of exactly so many bytes as compact JSON."""
    empty = event(1, data={"x": ""})
    return event(1, data={"x": "a" * (size - json_size(empty))})


BAD_ITEMS: dict[str, tuple[Any, str, str]] = {
    "not an object": ([1], "/events/1", "invalid_value"),
    "null": (None, "/events/1", "invalid_value"),
    "without t_ms": ({"type": "click"}, "/events/1/t_ms", "missing"),
    "without type": ({"t_ms": 1}, "/events/1/type", "missing"),
    "t_ms null": ({"t_ms": None, "type": "click"}, "/events/1/t_ms", "invalid_value"),
    "t_ms negative": (event(-1), "/events/1/t_ms", "invalid_value"),
    "t_ms a fraction": (event(1.0), "/events/1/t_ms", "invalid_value"),  # type: ignore[arg-type]
    "t_ms text": (event("12"), "/events/1/t_ms", "invalid_value"),  # type: ignore[arg-type]
    "t_ms a boolean": (event(True), "/events/1/t_ms", "invalid_value"),
    "t_ms past every clock": (event(limits.T_MS_MAX + 1), "/events/1/t_ms", "invalid_value"),
    "t_ms the largest integer": (event(2**63 - 1), "/events/1/t_ms", "invalid_value"),
    "type in capitals": (event(1, "Click"), "/events/1/type", "invalid_value"),
    "type empty": (event(1, ""), "/events/1/type", "invalid_value"),
    "type with a line end": (event(1, "click\n"), "/events/1/type", "invalid_value"),
    "type of 65 letters": (event(1, "c" * 65), "/events/1/type", "invalid_value"),
    "type with a foreign digit": (event(1, "click٣"), "/events/1/type", "invalid_value"),
    "unknown member": (event(1, nobody_knows=1), "/events/1/nobody_knows", "unknown_field"),
    "unknown member of target": (event(1, target={"kind": "x"}), "/events/1/target/kind", "unknown_field"),
    "unknown member of input": (event(1, input={"text": "x"}), "/events/1/input/text", "unknown_field"),
    "unknown member of app": (event(1, app={"version": "1"}), "/events/1/app/version", "unknown_field"),
    "unknown member of trace": (event(1, trace={"id": "1"}), "/events/1/trace/id", "unknown_field"),
    "rect of three": (event(1, target={"rect": [1, 2, 3]}), "/events/1/target/rect", "invalid_value"),
    "point of one": (event(1, input={"point": [1]}), "/events/1/input/point", "invalid_value"),
    "name of 121 letters": (event(1, target={"name": "n" * 121}), "/events/1/target/name", "invalid_value"),
    "attribute a number": (
        event(1, target={"attrs": {"a/b": 1}}),
        "/events/1/target/attrs/a~1b",
        "invalid_value",
    ),
    "masked as text": (event(1, input={"masked": "yes"}), "/events/1/input/masked", "invalid_value"),
    "url a number": (event(1, url=1), "/events/1/url", "invalid_value"),
    "data an array": (event(1, data=[1]), "/events/1/data", "invalid_value"),
    "signals an object": (event(1, signals={}), "/events/1/signals", "invalid_value"),
    "id without prefix": (event(1, id="A1"), "/events/1/id", "invalid_id"),
    "id of a frame": (event(1, id="frm_A1"), "/events/1/id", "invalid_id"),
    "id empty": (event(1, id="evt_"), "/events/1/id", "invalid_id"),
    "id of 41 letters": (event(1, id="evt_" + "a" * 41), "/events/1/id", "invalid_id"),
    "id with a line end": (event(1, id="evt_A1\n"), "/events/1/id", "invalid_id"),
    "id with a dot": (event(1, id="evt_A.1"), "/events/1/id", "invalid_id"),
    "frame_id of an event": (event(1, frame_id="evt_A1"), "/events/1/frame_id", "invalid_id"),
    "parent_id of a frame": (event(1, parent_id="frm_A1"), "/events/1/parent_id", "invalid_id"),
    "item of 65,537 bytes": (padded(65_537), "/events/1", "too_large"),
}


@pytest.mark.parametrize("case", BAD_ITEMS)
def test_one_bad_item_refuses_its_batch(caller: Caller, case: str) -> None:
    item, pointer, code = BAD_ITEMS[case]
    session_id = caller.make_session()
    before = footprint(caller.service.runtime)
    problem = assert_problem(caller.add_events(session_id, GOOD, item), 422, "validation_failed")
    errors = [(error["in"], error["pointer"], error["code"]) for error in problem["errors"]]
    assert errors == [("body", pointer, code)]
    assert footprint(caller.service.runtime) == before


def test_each_bad_item_of_a_batch_is_named(caller: Caller) -> None:
    items = [event("1"), GOOD, {"type": "click"}, event(1, url=1, extra=1)]  # type: ignore[arg-type]
    problem = assert_problem(caller.add_events(caller.make_session(), *items), 422, "validation_failed")
    places = [error["pointer"] for error in problem["errors"]]
    assert places[:2] == ["/events/0/t_ms", "/events/2/t_ms"]
    assert len(places) == 3 and places[2].startswith("/events/3/")


SENTENCES = [
    (event("1"), "Takes an integer."),  # type: ignore[arg-type]
    (event(-1), "Takes an integer of 0 or more."),
    (event(10**12 + 1), "Takes an integer of 1,000,000,000,000 or less."),
    (event(1, target={"name": "a" * 121}), "Takes at most 120 characters."),
    (event(1, target={"rect": [1]}), "Takes at least 4 items."),
    (event(1, input={"value": 1}), "Takes a string or an array."),
    (event(1, input={"point": ["1", 1]}), "Takes a number."),
    (event(1, input={"masked": 1}), "Takes true or false."),
]


@pytest.mark.parametrize(("item", "sentence"), SENTENCES, ids=[sentence for _, sentence in SENTENCES])
def test_a_refusal_says_in_words_of_json_what_a_member_takes(
    caller: Caller, item: dict[str, Any], sentence: str
) -> None:
    problem = assert_problem(caller.add_events(caller.make_session(), item), 422, "validation_failed")
    assert [error["message"] for error in problem["errors"]] == [sentence]


def test_an_answer_never_repeats_what_was_wrong(caller: Caller) -> None:
    session_id = caller.make_session()
    canary = "canary5150"
    for item in (
        event(1, canary),
        event(1, url={canary: canary}),
        event(1, **{canary: canary}),
        event(1, id=canary),
        event(1, frame_id=f"frm_{canary}!"),
        event(1, target={"attrs": {"a": [canary]}}),
    ):
        answer = caller.add_events(session_id, item)
        assert canary in json.dumps(item)
        # The name of an unknown member is told, as its place; values never are.
        names = answer.text.count(canary) if canary in item else 0
        assert answer.status_code in (202, 422) and answer.text.count(canary) == names


@pytest.mark.parametrize(
    ("items", "code"),
    [
        pytest.param([], "empty_batch", id="no event"),
        pytest.param([GOOD] * 101, "batch_too_large", id="101 events"),
        pytest.param([GOOD] * 100 + [{"t_ms": "bad"}], "batch_too_large", id="101 events, the last one bad"),
        pytest.param({}, "validation_failed", id="an object"),
        pytest.param(None, "validation_failed", id="null"),
    ],
)
def test_a_batch_holds_1_to_100_events(caller: Caller, items: Any, code: str) -> None:
    address = f"/v1/sessions/{caller.make_session()}/events"
    before = footprint(caller.service.runtime)
    problem = assert_problem(caller.post(address, {"events": items}), 422, code)
    assert problem["errors"][0]["pointer"] == "/events"
    assert footprint(caller.service.runtime) == before


def test_the_largest_batch_and_item_are_taken(caller: Caller) -> None:
    session_id = caller.make_session()
    assert caller.add_events(session_id, *[GOOD] * 100).json()["event_count"] == 100
    assert caller.add_events(session_id, padded(65_536)).json()["event_count"] == 101
    assert caller.add_events(session_id, event(limits.T_MS_MAX)).status_code == 202


def spelled(item: dict[str, Any], spelling: str) -> bytes:
    """Return a batch of one event in another spelling of JSON than the compact one."""
    spellings = {"escapes": {"ensure_ascii": True}, "spaces": {"ensure_ascii": False, "indent": 2_000}}
    return json.dumps({"events": [item]}, **spellings[spelling]).encode()  # type: ignore[arg-type]


@pytest.mark.parametrize("spelling", ["escapes", "spaces"])
def test_an_event_is_measured_as_compact_json(caller: Caller, spelling: str) -> None:
    address = f"/v1/sessions/{caller.make_session()}/events"
    text = "日" * 21_000 if spelling == "escapes" else {f"k{n}": n for n in range(40)}
    item = event(1, data={"x": text})
    body = spelled(item, spelling)
    assert json_size(item) < limits.EVENT_BYTES < len(body)
    assert caller.post_raw(address, body).status_code == 202
    (stored,) = caller.get(address).json()["data"]
    assert stored["data"] == item["data"]


@pytest.mark.parametrize("policy", [None, {"builtins": ["email"]}], ids=["unmasked", "masked"])
def test_an_event_over_its_cap_as_compact_json_is_refused_in_any_spelling(
    caller: Caller, policy: dict[str, Any] | None
) -> None:
    if policy is not None:
        caller.request("PATCH", "/v1/workspaces/current", json={"masking": policy})
    address = f"/v1/sessions/{caller.make_session()}/events"
    largest = event(1, data={"x": "日" * ((limits.EVENT_BYTES - json_size(event(1, data={"x": ""}))) // 3)})
    assert caller.post_raw(address, spelled(largest, "escapes")).status_code == 202
    larger = event(1, data={"x": largest["data"]["x"] + "日"})
    problem = assert_problem(caller.post_raw(address, spelled(larger, "escapes")), 422, "validation_failed")
    assert [(error["pointer"], error["code"]) for error in problem["errors"]] == [("/events/0", "too_large")]


def test_an_unmasked_event_of_many_spaces_is_taken_where_masking_is_on(caller: Caller) -> None:
    caller.request("PATCH", "/v1/workspaces/current", json={"masking": {"builtins": ["email"]}})
    address = f"/v1/sessions/{caller.make_session()}/events"
    masked = json.dumps(event(2, url="ada@example.com")).encode()
    spaced = b'{"t_ms":1,"type":"click"' + b" " * limits.EVENT_BYTES * (limits.MASKING_GROWTH + 1) + b"}"
    assert caller.post_raw(address, b'{"events":[' + masked + b"," + spaced + b"]}").status_code == 202


@pytest.mark.parametrize(
    ("content_type", "headers"),
    [
        pytest.param(None, {}, id="no Content-Type"),
        pytest.param("text/plain", {}, id="text"),
        pytest.param("application/x-ndjson", {}, id="NDJSON"),
        pytest.param("multipart/form-data; boundary=x", {}, id="multipart"),
        pytest.param("application/json", {"Content-Encoding": "gzip"}, id="compressed"),
    ],
)
def test_events_come_as_plain_json(caller: Caller, content_type: str | None, headers: dict[str, str]) -> None:
    address = f"/v1/sessions/{caller.make_session()}/events"
    before = footprint(caller.service.runtime)
    body = b'{"events":[{"t_ms":1,"type":"click"}]}'
    answer = caller.post_raw(address, body, content_type=content_type, **headers)
    assert_problem(answer, 415, "unsupported_media_type")
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "chunked"])
def test_a_request_over_its_cap_is_refused(caller: Caller, is_announced: bool) -> None:
    address = f"/v1/sessions/{caller.make_session()}/events"
    before = footprint(caller.service.runtime)
    chunks = [b" " * 65_536] * (limits.EVENTS_REQUEST_BYTES // 65_536) + [b" "]
    answer = caller.post_raw(address, b"".join(chunks) if is_announced else iter(chunks))
    assert_problem(answer, 413, "payload_too_large")
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("status", ["created", "stopped", "deleted"])
@pytest.mark.parametrize("kind", ["events", "named events", "keyed events", "frames", "named frames"])
def test_only_a_recording_session_takes_items(caller: Caller, status: str, kind: str) -> None:
    session_id = caller.make_session(status=status)
    before = footprint(caller.service.runtime)
    answer = {
        "events": lambda: caller.add_events(session_id, GOOD),
        "named events": lambda: caller.add_events(session_id, event(1, id="evt_A1")),
        "keyed events": lambda: caller.add_events(session_id, GOOD, key="batch-1"),
        "frames": lambda: caller.add_frames(session_id, frame(1)),
        "named frames": lambda: caller.add_frames(session_id, frame(1, id="frm_A1"), key="batch-1"),
    }[kind]()
    if status == "deleted":
        assert assert_problem(answer, 404, "not_found")["resource"] == "session"
    else:
        assert assert_problem(answer, 409, "invalid_state")["current_status"] == status
    assert footprint(caller.service.runtime) == before


def test_the_recording_of_a_live_replay_takes_nothing_from_clients(caller: Caller) -> None:
    session_id = caller.make_session()
    with caller.service.runtime.database.transaction(write=True) as db:
        db.get_one(SessionRow, session_id).origin = "replay"
    before = footprint(caller.service.runtime)
    for key in (None, "batch-1"):
        for answer in (
            caller.add_events(session_id, event(), key=key),
            caller.add_events(session_id, event(id="evt_click1"), key=key),
            caller.add_frames(session_id, frame(1), key=key),
        ):
            assert "live replay" in assert_problem(answer, 409, "invalid_state")["detail"]
    assert footprint(caller.service.runtime) == before


def test_the_first_twenty_wrong_events_are_described(caller: Caller) -> None:
    wrong = [event(1, nonsense=1) if n % 2 else event(1) for n in range(60)]
    problem = assert_problem(caller.add_events(caller.make_session(), *wrong), 422, "validation_failed")
    pointers = [each["pointer"] for each in problem["errors"]]
    assert pointers == [f"/events/{n}/nonsense" for n in range(1, 40, 2)]
