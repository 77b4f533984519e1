"""Hostile bodies on every route that reads one: cases 1 to 25. Contract §1 (JSON in, errors), §2, §3."""

import json
from typing import Any

import pytest

from recorder import limits
from tests.support.factories import Caller, Service, event, frame, json_size
from tests.support.hostile_cases import BODY_ROUTES, CANARY, BodyRoute, Refused, case, judge, nothing_stored

UNREADABLE = Refused(400, "invalid_json")
DEEPER_THAN_ALLOWED = b"[" * limits.JSON_DEPTH + b"]" * limits.JSON_DEPTH


@pytest.fixture
def session_id(caller: Caller) -> str:
    """Return a session that takes everything."""
    return caller.make_session()


def test_every_route_that_reads_a_body_is_tried(service: Service) -> None:
    described = {
        (method.upper(), path)
        for path, methods in service.app.openapi()["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    }
    tried = {
        (route.method, route.path.replace("/workflows/checkout", "/workflows/{workflow}"))
        for route in BODY_ROUTES.values()
    }
    assert tried == described


def test_every_route_takes_a_good_body(caller: Caller, session_id: str) -> None:
    statuses = {
        name: route.send(caller, session_id, route.good).status_code for name, route in BODY_ROUTES.items()
    }
    refused = {name: status for name, status in statuses.items() if status >= 300}
    assert refused == {name: route.refused for name, route in BODY_ROUTES.items() if route.refused}


@pytest.mark.parametrize(
    "body",
    [
        case(1, b'{"a":', name="unfinished"),
        case(1, b"{} {}", name="two-values"),
        case(1, b"{'a': 1}", name="single-quotes"),
        case(1, b'{"a":1,}', name="trailing-comma"),
        case(1, b'{"a":1}\x00', name="NUL-behind"),
        case(2, b"", name="empty"),
        case(2, b" \n", name="blank"),
        case(12, b'{"a":"\xff"}', name="invalid-UTF-8"),
        case(12, b'{"a":"\xed\xa0\x80"}', name="surrogate-in-UTF-8"),
        case(13, '{"a":1}'.encode("utf-16"), name="UTF-16"),
        case(13, '{"a":1}'.encode("utf-16-le"), name="UTF-16-without-mark"),
        case(13, '{"a":1}'.encode("utf-32"), name="UTF-32"),
        case(14, b'\xef\xbb\xbf{"a":1}', name="byte-order-mark"),
    ],
)
def test_a_body_that_is_no_json_is_refused(caller: Caller, session_id: str, body: bytes) -> None:
    with nothing_stored(caller.service.runtime):
        for route in BODY_ROUTES.values():
            judge(route.send_raw(caller, session_id, body), UNREADABLE)


@pytest.mark.parametrize(
    "body", [case(3, body, name=body.decode()) for body in (b"[]", b"null", b'"a"', b"1", b"true")]
)
def test_a_body_that_is_no_object_is_refused(caller: Caller, session_id: str, body: bytes) -> None:
    with nothing_stored(caller.service.runtime):
        for route in BODY_ROUTES.values():
            judge(route.send_raw(caller, session_id, body), Refused(422, "validation_failed", where="body"))


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        case(4, b"NaN", UNREADABLE, name="NaN"),
        case(5, b"Infinity", UNREADABLE, name="Infinity"),
        case(5, b"-Infinity", UNREADABLE, name="minus-Infinity"),
        case(6, b"1e999", UNREADABLE, name="1e999"),
        case(6, b"-1e999", UNREADABLE, name="minus-1e999"),
        case(7, rb'"\ud83d"', UNREADABLE, name="first-half-of-a-pair"),
        case(7, rb'"\ude00"', UNREADABLE, name="second-half"),
        case(7, rb'{"\ud83d":1}', UNREADABLE, name="half-a-pair-as-key"),
        case(10, b"9" * 5_000, UNREADABLE, name="5000-digits"),
        case(10, b"-" + b"9" * 5_000, UNREADABLE, name="minus-5000-digits"),
        case(11, DEEPER_THAN_ALLOWED, Refused(400, "invalid_json", "json_too_deep"), name="65-deep"),
        case(11, b"[" * 100_000, Refused(400, "invalid_json", "json_too_deep"), name="100000-deep"),
        case(
            11,
            b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
            Refused(400, "invalid_json", "json_too_deep"),
            name="objects",
        ),
        case(15, b'{"a":1,"a":2}', Refused(400, "invalid_json", "duplicate_key"), name="twice"),
        case(15, rb'{"a":1,"\u0061":2}', Refused(400, "invalid_json", "duplicate_key"), name="escaped"),
        case(8, rb'"a\u0000b"', Refused(422, "validation_failed", "invalid_string"), name="NUL"),
        case(8, rb'{"a\u0000":1}', Refused(422, "validation_failed", "invalid_string"), name="NUL-in-a-key"),
        case(9, b"9223372036854775808", Refused(422, "validation_failed", "invalid_integer"), name="2^63"),
        case(9, b"-9223372036854775809", Refused(422, "validation_failed", "invalid_integer"), name="below"),
        case(9, b"18446744073709551616", Refused(422, "validation_failed", "invalid_integer"), name="2^64"),
    ],
)
def test_a_value_that_parsers_differ_on_is_refused(
    caller: Caller, session_id: str, value: bytes, refused: Refused
) -> None:
    with nothing_stored(caller.service.runtime):
        for route in BODY_ROUTES.values():
            judge(route.send(caller, session_id, value), refused)


@pytest.mark.parametrize("name", BODY_ROUTES)
def test_an_unknown_member_is_refused(caller: Caller, session_id: str, name: str) -> None:
    # Cover case 16 of the hostile requests, on every route.
    route = BODY_ROUTES[name]
    body = json.loads(route.template % route.good)
    with nothing_stored(caller.service.runtime):
        answer = caller.request(
            route.method, route.path.replace("{session_id}", session_id), json={**body, CANARY: 1}
        )
        problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "validation_failed")
    assert [item["code"] for item in problem["errors"]] == ["unknown_field"]


def wrong_types() -> list[Any]:
    """Return every near miss of a boolean and of an integer, each at another position."""
    tag = {"name": "seen"}
    export = {"workflow": "checkout", "format": "parquet"}
    hosted = {"kind": "signed_url"}
    return [
        case(17, "session", {"workflow": "checkout", "start": "yes"}, "/start", name="start"),
        case(17, "session", {"workflow": "checkout", "start": 1}, "/start", name="start-1"),
        case(17, "workflow", {"memory_graph": "yes"}, "/memory_graph", name="memory_graph"),
        case(
            17,
            "events",
            {"events": [event(1, input={"masked": "yes"})]},
            "/events/0/input/masked",
            name="masked",
        ),
        case(17, "frames", {"frames": [frame(1, keyframe="yes")]}, "/frames/0/keyframe", name="keyframe"),
        case(18, "tag", {**tag, "t_ms": "12"}, "/t_ms", name="tag-text"),
        case(18, "tag", {**tag, "t_ms": 1.0}, "/t_ms", name="tag-fraction"),
        case(18, "tag", {**tag, "t_ms": True}, "/t_ms", name="tag-boolean"),
        case(
            18, "events", {"events": [{"type": "click", "t_ms": "12"}]}, "/events/0/t_ms", name="event-text"
        ),
        case(
            18,
            "events",
            {"events": [{"type": "click", "t_ms": 1.0}]},
            "/events/0/t_ms",
            name="event-fraction",
        ),
        case(18, "similar", {"session_id": "ses_1", "limit": "5"}, "/limit", name="limit-text"),
        case(18, "similar", {"session_id": "ses_1", "limit": 5.0}, "/limit", name="limit-fraction"),
        case(18, "frames", {"frames": [frame(1, width="16")]}, "/frames/0/width", name="frame-text"),
        case(18, "frames", {"frames": [frame(1, width=16.0)]}, "/frames/0/width", name="frame-fraction"),
        case(
            18,
            "export",
            {**export, "destination": {**hosted, "expires_in": "60"}},
            "/destination/expires_in",
            name="expires_in-text",
        ),
        case(
            18,
            "export",
            {**export, "destination": hosted, "filter": {"min_duration_ms": 1.0}},
            "/filter/min_duration_ms",
            name="min_duration_ms-fraction",
        ),
        case(
            18, "workspace", {"retention": {"frames_days": "30"}}, "/retention/frames_days", name="days-text"
        ),
        case(
            18,
            "workspace",
            {"retention": {"frames_days": 30.0}},
            "/retention/frames_days",
            name="days-fraction",
        ),
    ]


@pytest.mark.parametrize(("name", "body", "pointer"), wrong_types())
def test_a_near_miss_of_a_type_is_refused(
    caller: Caller, session_id: str, name: str, body: dict[str, Any], pointer: str
) -> None:
    with nothing_stored(caller.service.runtime):
        answer = BODY_ROUTES[name].send_raw(caller, session_id, json.dumps(body))
        judge(answer, Refused(422, "validation_failed", "invalid_value", pointer, "body"))


@pytest.mark.parametrize(
    "headers",
    [
        case(19, {"Content-Type": "text/plain"}, name="text"),
        case(19, {"Content-Type": "application/x-www-form-urlencoded"}, name="form"),
        case(19, {"Content-Type": "application/json-patch+json"}, name="JSON-patch"),
        case(19, {"Content-Type": ""}, name="none"),
        case(19, {"Content-Type": "application/json; charset=utf-8; charset=latin-1"}, name="charset twice"),
        case(20, {"Content-Encoding": "gzip"}, name="gzip"),
        case(20, {"Content-Encoding": "br"}, name="brotli"),
        case(20, {"Content-Encoding": "identity, gzip"}, name="list"),
    ],
)
def test_another_kind_of_content_is_refused(caller: Caller, session_id: str, headers: dict[str, str]) -> None:
    with nothing_stored(caller.service.runtime):
        for route in BODY_ROUTES.values():
            answer = route.send(caller, session_id, route.good, **headers)
            judge(answer, Refused(415, "unsupported_media_type"))


@pytest.mark.parametrize("route", [case(21, route, name=name) for name, route in BODY_ROUTES.items()])
def test_a_length_over_the_cap_is_refused_unread(caller: Caller, session_id: str, route: BodyRoute) -> None:
    length = {"Content-Length": str(route.body_bytes + 1)}
    with nothing_stored(caller.service.runtime):
        answer = route.send(caller, session_id, route.good, **length)
        judge(answer, Refused(413, "payload_too_large"))
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("route", [case(22, route, name=name) for name, route in BODY_ROUTES.items()])
def test_chunks_over_the_cap_are_refused_at_the_cap(
    caller: Caller, session_id: str, route: BodyRoute
) -> None:
    # What a real connection sends behind it is not read: tests/api/test_server.py.
    chunks = iter([b" " * 262_144] * (route.body_bytes // 262_144 + 1))
    with nothing_stored(caller.service.runtime):
        answer = route.send_raw(caller, session_id, chunks)
        judge(answer, Refused(413, "payload_too_large"))
    assert answer.headers["connection"] == "close"


def metadata_of(size: int, letter: str = "a") -> dict[str, str]:
    """Return metadata of exactly so many bytes of compact UTF-8 JSON."""
    width = len(letter.encode())
    room = size - json_size({"x": ""})
    return {"x": letter * (room // width) + "a" * (room % width)}


@pytest.mark.parametrize("letter", [case(23, "a", name="letters"), case(23, "😀", name="four-byte-letters")])
def test_metadata_over_its_cap_is_refused(caller: Caller, letter: str) -> None:
    largest = metadata_of(limits.METADATA_BYTES, letter)
    too_large = metadata_of(limits.METADATA_BYTES + 1, letter)
    assert caller.post("/v1/sessions", {"workflow": "checkout", "metadata": largest}).status_code == 201
    with nothing_stored(caller.service.runtime):
        answer = caller.post("/v1/sessions", {"workflow": "checkout", "metadata": too_large})
        judge(answer, Refused(422, "metadata_too_large", pointer="/metadata"))


@pytest.mark.parametrize(
    ("kind", "count", "code"),
    [
        case(24, "events", limits.EVENTS_PER_BATCH + 1, "batch_too_large", name="101-events"),
        case(24, "frames", limits.FRAMES_PER_BATCH + 1, "batch_too_large", name="51-frames"),
        case(25, "events", 0, "empty_batch", name="no-event"),
        case(25, "frames", 0, "empty_batch", name="no-frame"),
    ],
)
def test_a_batch_of_another_size_is_refused(
    caller: Caller, session_id: str, kind: str, count: int, code: str
) -> None:
    items = [event(1) if kind == "events" else frame(1)] * count
    with nothing_stored(caller.service.runtime):
        answer = caller.post(f"/v1/sessions/{session_id}/{kind}", {kind: items})
        judge(answer, Refused(422, code, pointer=f"/{kind}"))
