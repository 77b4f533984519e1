"""Sessions, tags and batch stops that are refused, with nothing stored. Spec §2.1, §2.2; contract §2."""

import json
from typing import Any

import pytest

from api.bodies.body_costs import LARGE_BYTES
from tests.support.factories import Caller, assert_problem, footprint, json_size
from tests.support.route_addresses import fill


def metadata_of(size: int) -> dict[str, str]:
    """Return metadata of exactly so many bytes as compact UTF-8 JSON."""
    empty = json_size({"é": ""})
    return {"é": "ü" * ((size - empty) // 2) + "u" * ((size - empty) % 2)}


BAD_SESSIONS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no workflow": ({"workflow": None}, "validation_failed", "/workflow", "invalid_value"),
    "slug of one letter": ({"workflow": "a"}, "validation_failed", "/workflow", "invalid_value"),
    "slug of 65 letters": ({"workflow": "a" * 65}, "validation_failed", "/workflow", "invalid_value"),
    "slug with a capital": ({"workflow": "Ab"}, "validation_failed", "/workflow", "invalid_value"),
    "slug with a line end": ({"workflow": "ab\n"}, "validation_failed", "/workflow", "invalid_value"),
    "slug with a foreign digit": ({"workflow": "ab٣"}, "validation_failed", "/workflow", "invalid_value"),
    "slug a number": ({"workflow": 12}, "validation_failed", "/workflow", "invalid_value"),
    "metadata an array": ({"metadata": []}, "validation_failed", "/metadata", "invalid_value"),
    "metadata of 16,385 bytes": (
        {"metadata": metadata_of(16_385)},
        "metadata_too_large",
        "/metadata",
        "metadata_too_large",
    ),
    "actor without kind": ({"actor": {"id": "ada"}}, "validation_failed", "/actor/kind", "missing"),
    "actor without id": ({"actor": {"kind": "human"}}, "validation_failed", "/actor/id", "missing"),
    "actor of another kind": (
        {"actor": {"id": "ada", "kind": "robot"}},
        "validation_failed",
        "/actor/kind",
        "invalid_value",
    ),
    "actor with an empty id": (
        {"actor": {"id": "", "kind": "human"}},
        "validation_failed",
        "/actor/id",
        "invalid_value",
    ),
    "actor with more": (
        {"actor": {"id": "ada", "kind": "human", "n": 1}},
        "validation_failed",
        "/actor/n",
        "unknown_field",
    ),
    "start as text": ({"start": "yes"}, "validation_failed", "/start", "invalid_value"),
    "start a number": ({"start": 1}, "validation_failed", "/start", "invalid_value"),
    "unknown member": ({"a/b~c": 1}, "validation_failed", "/a~1b~0c", "unknown_field"),
    "id": ({"id": "ses_1"}, "validation_failed", "/id", "unknown_field"),
    "started_at without start": (
        {"started_at": "2026-01-01T00:00:00Z"},
        "validation_failed",
        "/started_at",
        "needs_start",
    ),
    "started_at ahead": (
        {"start": True, "started_at": "9999-01-01T00:00:00Z"},
        "invalid_time",
        "/started_at",
        "invalid_time",
    ),
    "started_at without a zone": (
        {"start": True, "started_at": "2026-01-01T00:00:00"},
        "invalid_time",
        "/started_at",
        "invalid_time",
    ),
    "started_at relative": (
        {"start": True, "started_at": "1h"},
        "invalid_time",
        "/started_at",
        "invalid_time",
    ),
    "started_at a number": (
        {"start": True, "started_at": 1_700_000_000},
        "invalid_time",
        "/started_at",
        "invalid_time",
    ),
    "idempotency_key a number": (
        {"idempotency_key": 7},
        "validation_failed",
        "/idempotency_key",
        "invalid_value",
    ),
}
BAD_TAGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no name": ({"name": None}, "/name", "invalid_value"),
    "empty name": ({"name": ""}, "/name", "invalid_value"),
    "name of 129 letters": ({"name": "n" * 129}, "/name", "invalid_value"),
    "name with a line end": ({"name": "a\nb"}, "/name", "invalid_string"),
    "name with an escape code": ({"name": "\x1b[31m"}, "/name", "invalid_string"),
    "data an array": ({"data": [1]}, "/data", "invalid_value"),
    "data of 4,097 bytes": ({"data": {"x": "a" * (4_097 - 8)}}, "/data", "too_large"),
    "t_ms negative": ({"t_ms": -1}, "/t_ms", "invalid_value"),
    "t_ms a fraction": ({"t_ms": 1.0}, "/t_ms", "invalid_value"),
    "t_ms past every clock": ({"t_ms": 10**12 + 1}, "/t_ms", "invalid_value"),
    "event_id of a frame": ({"event_id": "frm_1"}, "/event_id", "invalid_id"),
    "frame_id without prefix": ({"frame_id": "1"}, "/frame_id", "invalid_id"),
    "unknown member": ({"color": "red"}, "/color", "unknown_field"),
}


@pytest.mark.parametrize("case", BAD_SESSIONS)
def test_a_bad_session_is_refused(caller: Caller, case: str) -> None:
    members, code, pointer, item = BAD_SESSIONS[case]
    before = footprint(caller.service.runtime)
    problem = assert_problem(caller.post("/v1/sessions", {"workflow": "checkout", **members}), 422, code)
    assert [(error["pointer"], error["code"]) for error in problem["errors"]] == [(pointer, item)]
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("case", BAD_SESSIONS)
def test_a_bad_session_in_a_large_body_is_refused_with_the_same_problems(caller: Caller, case: str) -> None:
    body = {"workflow": "checkout", **BAD_SESSIONS[case][0]}
    small = caller.post("/v1/sessions", body)
    large = caller.post_raw("/v1/sessions", json.dumps(body).encode() + b" " * LARGE_BYTES)
    assert {**large.json(), "request_id": ""} == {**small.json(), "request_id": ""}


def test_metadata_takes_16384_bytes(caller: Caller) -> None:
    metadata = metadata_of(16_384)
    session_id = caller.make_session(metadata=metadata)
    assert json_size(metadata) == 16_384
    assert caller.get(f"/v1/sessions/{session_id}").json()["metadata"] == metadata


@pytest.mark.parametrize("case", BAD_TAGS)
def test_a_bad_tag_is_refused(caller: Caller, case: str) -> None:
    members, pointer, code = BAD_TAGS[case]
    address = f"/v1/sessions/{caller.make_session()}/tags"
    before = footprint(caller.service.runtime)
    problem = assert_problem(caller.post(address, {"name": "seen", **members}), 422, "validation_failed")
    assert [(error["pointer"], error["code"]) for error in problem["errors"]] == [(pointer, code)]
    assert footprint(caller.service.runtime) == before


def test_tag_data_takes_4096_bytes(caller: Caller) -> None:
    address = f"/v1/sessions/{caller.make_session()}/tags"
    assert caller.post(address, {"name": "n" * 128, "data": {"x": "a" * (4_096 - 8)}}).status_code == 201


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param({}, "validation_failed", id="no ids"),
        pytest.param({"ids": "ses_1"}, "validation_failed", id="text"),
        pytest.param({"ids": [1]}, "validation_failed", id="numbers"),
        pytest.param({"ids": ["ses_1"] * 501}, "too_many_ids", id="501 ids"),
        pytest.param({"ids": [], "all": True}, "validation_failed", id="unknown member"),
    ],
)
def test_a_bad_batch_stop_is_refused(caller: Caller, body: dict[str, Any], code: str) -> None:
    caller.make_session()
    before = footprint(caller.service.runtime)
    assert_problem(caller.post("/v1/sessions:batch_stop", body), 422, code)
    assert footprint(caller.service.runtime) == before


def test_a_body_without_content_type_is_refused_where_one_is_read(caller: Caller) -> None:
    before = footprint(caller.service.runtime)
    for content_type in (None, "text/plain", "application/json-patch+json"):
        answer = caller.post_raw("/v1/sessions", b'{"workflow":"checkout"}', content_type=content_type)
        assert_problem(answer, 415, "unsupported_media_type")
    answer = caller.post_raw("/v1/sessions", b'{"workflow":"checkout"}', **{"Content-Encoding": "gzip"})
    assert_problem(answer, 415, "unsupported_media_type")
    headers = [
        ("Authorization", f"Bearer {caller.key.key}"),
        ("Content-Encoding", "identity"),
        ("Content-Encoding", "gzip"),
    ]
    answer = caller.service.client.post("/v1/sessions", json={"workflow": "checkout"}, headers=headers)
    assert_problem(answer, 415, "unsupported_media_type")
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("action", ["start", "stop"])
def test_a_body_where_none_belongs_is_refused(caller: Caller, action: str) -> None:
    session_id = caller.make_session(status="created" if action == "start" else "recording")
    before = footprint(caller.service.runtime)
    answer = caller.post(f"/v1/sessions/{session_id}/{action}", {"force": True})
    assert assert_problem(answer, 422, "validation_failed")["errors"][0]["code"] == "unexpected_body"
    assert footprint(caller.service.runtime) == before
    for body in (b"{}", b"{ }", b" {\r\n\t} ", b" ", b""):
        path = f"/v1/sessions/{session_id}/{action}"
        assert caller.post_raw(path, body, content_type=None).status_code == 200
        assert caller.post_raw(path, body, content_type="Application/JSON; charset=UTF-8").status_code == 200
    for body in (b"{", b"{}{}", b'{" "}', b"{\x0b}", b"[]"):
        assert_problem(caller.post_raw(path, body, content_type=None), 422, "validation_failed")


def test_a_body_of_another_type_is_refused_where_none_belongs(caller: Caller) -> None:
    paths = [
        path
        for path, methods in caller.service.app.openapi()["paths"].items()
        if "post" in methods and "requestBody" not in methods["post"]
    ]
    assert {"/v1/exports/{export_id}/cancel", "/v1/webhooks/{webhook_id}/test"} <= set(paths)
    for path in map(fill, paths):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"):
            assert_problem(caller.post_raw(path, b"{}", content_type=kind), 415, "unsupported_media_type")
            assert caller.post_raw(path, b"", content_type=kind).status_code not in (415, 422)
