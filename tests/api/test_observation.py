"""Every request leaves a count and a line; lines hold ids and numbers. Hostile cases 55 and 56."""

import json
import logging
from typing import Any

import pytest
from starlette.testclient import WebSocketDenialResponse

from api.gate import access_log
from recorder.logs import make_log_formatter
from tests.support.completed_work import shown_recording, streamed_over_socket
from tests.support.factories import Caller, Service, event

LINE = {
    "request_id",
    "workspace_id",
    "key_id",
    "method",
    "route",
    "status",
    "duration_ms",
    "bytes",
}


def access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the log lines of requests."""
    formatter = make_log_formatter()
    records = [record for record in caplog.records if record.name == "recorder.access"]
    return [json.loads(formatter.format(record)) for record in records]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return all lines from the least level on."""
    caplog.set_level(logging.DEBUG, logger="recorder")
    return caplog


def test_a_request_is_one_line_with_its_ids(caller: Caller, log: pytest.LogCaptureFixture) -> None:
    answer = caller.get("/v1/sessions?limit=7")
    (line,) = access_lines(log)
    assert set(line) == LINE | {"at", "level", "event", "logger"}
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["workspace_id"], line["key_id"]) == (caller.key.workspace_id, caller.key.key_id)
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/sessions", 200)
    assert line["bytes"] == len(answer.content) and line["duration_ms"] > 0


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("GET", "/v1/sessions/ses_unknown?include=tags", "/v1/sessions/{session_id}", 404),
        ("POST", "/v1/sessions:batch_stop", "/v1/sessions:batch_stop", 415),
        ("GET", "/v1/nothing/of/the/kind", "unmatched", 404),
        ("PUT", "/v1/sessions", "unmatched", 405),
        ("GET", "/healthz", "/healthz", 200),
    ],
)
def test_a_line_names_the_route_and_not_the_address(
    caller: Caller, log: pytest.LogCaptureFixture, method: str, path: str, route: str, status: int
) -> None:
    caller.request(method, path)
    (line,) = access_lines(log)
    assert (line["method"], line["route"], line["status"]) == (method, route, status)


def test_who_was_refused_has_a_line_too(service: Service, log: pytest.LogCaptureFixture) -> None:
    answer = service.client.get("/v1/sessions")
    (line,) = access_lines(log)
    assert (line["status"], line["key_id"]) == (401, None)
    assert line["request_id"] == answer.headers["x-request-id"]


def test_a_key_in_the_query_opens_nothing_and_is_not_logged(
    caller: Caller, log: pytest.LogCaptureFixture
) -> None:
    # Cover case 55.
    key = caller.key.key
    answer = caller.service.client.get(f"/v1/sessions?api_key={key}&authorization=Bearer {key}")
    assert (answer.status_code, answer.json()["code"]) == (401, "missing_authorization")
    assert key not in log.text and key not in json.dumps(access_lines(log))


@pytest.mark.parametrize("hostile", ["\x1b[31mred", "a\tb", "\x9b31m"])
def test_hostile_headers_leave_one_clean_line(
    caller: Caller, log: pytest.LogCaptureFixture, hostile: str
) -> None:
    # Cover case 56.
    headers = {"X-Request-Id": hostile.encode("latin-1"), "User-Agent": hostile.encode("latin-1")}
    answer = caller.request("GET", "/v1/sessions", headers=headers)
    assert "x-client-request-id" not in answer.headers
    (line,) = [record for record in log.records if record.name == "recorder.access"]
    assert make_log_formatter().format(line).isprintable()


@pytest.mark.parametrize(
    ("level", "request_line"),
    [
        pytest.param("DEBUG", "batch", id="an accepted batch"),
        pytest.param("DEBUG", "health", id="a health check"),
        pytest.param("INFO", "read", id="a read"),
        pytest.param("INFO", "refused batch", id="a refused batch"),
    ],
)
def test_the_level_tells_how_often_such_lines_come(
    caller: Caller, log: pytest.LogCaptureFixture, level: str, request_line: str
) -> None:
    session_id = caller.make_session()
    log.clear()
    {
        "batch": lambda: caller.add_events(session_id, event(1)),
        "health": lambda: caller.service.client.get("/healthz"),
        "read": lambda: caller.get(f"/v1/sessions/{session_id}"),
        "refused batch": lambda: caller.add_events(session_id),
    }[request_line]()
    (record,) = [record for record in log.records if record.name == "recorder.access"]
    assert record.levelname == level


def test_a_socket_has_a_line_for_its_handshake_and_what_it_was_sent(
    caller: Caller, log: pytest.LogCaptureFixture
) -> None:
    owner, session_id = shown_recording(caller)
    log.clear()
    with (
        pytest.raises(WebSocketDenialResponse),
        caller.service.client.websocket_connect(f"/v1/sessions/{session_id}/events/ws"),
    ):
        pass
    messages = streamed_over_socket(owner, session_id)
    refused, opened = access_lines(log)
    assert (refused["status"], refused["key_id"], refused["method"]) == (401, None, "GET")
    assert (opened["status"], opened["key_id"]) == (101, owner.key.key_id)
    assert opened["route"] == "/v1/sessions/{session_id}/events/ws"
    assert opened["bytes"] >= sum(len(json.dumps(message, separators=(",", ":"))) for message in messages)


def test_a_slow_request_is_a_warning(
    caller: Caller, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "SLOW_SECONDS", 0.0)
    caller.get("/v1/sessions")
    assert [line["level"] for line in access_lines(log)] == ["warning"]


def test_no_body_stands_in_any_line(caller: Caller, log: pytest.LogCaptureFixture) -> None:
    secret = "the words of a customer"
    session_id = caller.make_session(metadata={"note": secret})
    caller.add_events(session_id, event(1, title=secret))
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": secret, "unknown": secret})
    formatter = make_log_formatter()
    lines = [formatter.format(record) for record in log.records if record.name.startswith("recorder")]
    assert len(lines) >= 3 and secret not in "\n".join(lines)
