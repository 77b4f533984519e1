"""Hostile keys, scopes and headers: cases 45 to 56. Spec §5, contract §1 (keys, scopes, errors)."""

import logging
import random
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from api.gate.endpoints import ENDPOINTS
from recorder import clock as recorder_clock
from recorder.access.keys import _BASE62, _compute_key_checksum, _hash_api_key
from recorder.ids import new_id
from recorder.logs import make_log_formatter
from recorder.models.workspace import KeyRow, WorkspaceRow
from tests.support.factories import Caller, Service, assert_problem
from tests.support.hostile_cases import Refused, case, counted_statements, judge, nothing_stored
from tests.support.limiter_clock import Clock, stopped_clock

MISSING = Refused(401, "missing_authorization")
INVALID = Refused(401, "invalid_api_key")
TOO_LITTLE = Refused(403, "insufficient_scope")


@pytest.fixture(autouse=True)
def clock(service: Service) -> Iterator[Clock]:
    """Stop the clock of the buckets, so that unknown callers are counted as each test begins."""
    with stopped_clock(service) as stopped:
        yield stopped


def send(
    service: Service, headers: list[tuple[str, Any]], path: str = "/v1/sessions", method: str = "GET"
) -> Any:
    """Return a request with these headers and none of ours."""
    return service.client.request(method, path, headers=headers)


def judge_unauthenticated(answer: Any, refused: Refused) -> None:
    """Hold an answer against a 401 and what belongs to it."""
    judge(answer, refused)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-scope"] == "per_address"


@pytest.mark.parametrize(
    "headers", [case(45, [], name="none"), case(45, [("X-Api-Key", "{key}")], name="other")]
)
def test_no_address_opens_without_the_header(
    service: Service, caller: Caller, clock: Clock, headers: list[tuple[str, str]]
) -> None:
    sent = [(name, value.format(key=caller.key.key)) for name, value in headers]
    with nothing_stored(service.runtime):
        for endpoint in ENDPOINTS:
            clock.now += 1
            path = re.sub(r"\{\w+(:path)?\}", "unknown", endpoint.path)
            judge_unauthenticated(send(service, sent, path, endpoint.method), MISSING)


@pytest.mark.parametrize(
    "headers",
    [
        case(46, [("Authorization", "Basic {key}")], name="Basic"),
        case(46, [("Authorization", "Token {key}")], name="Token"),
        case(46, [("Authorization", "{key}")], name="no-scheme"),
        case(46, [("Authorization", "Bearer")], name="no-key"),
        case(46, [("Authorization", "")], name="nothing"),
        case(46, [("Authorization", "Bearer  {key}")], name="two-spaces"),
        case(46, [("Authorization", "Bearer {key} {key}")], name="two-keys"),
        case(46, [("Authorization", "Bearer {key}, Bearer {key}")], name="list"),
        case(46, [("Authorization", "Bearer {key}"), ("Authorization", "Bearer {key}")], name="two-headers"),
        case(46, [("Authorization", "Bearer {key}"), ("authorization", "Basic x")], name="two-schemes"),
        case(46, [("Authorization", b"Bearer \xff\xfe")], name="no-ASCII"),
    ],
)
def test_anything_but_one_bearer_key_is_refused(
    service: Service, caller: Caller, headers: list[tuple[str, Any]]
) -> None:
    assert caller.get("/v1/sessions").status_code == 200
    sent = [
        (name, value if isinstance(value, bytes) else value.format(key=caller.key.key))
        for name, value in headers
    ]
    judge_unauthenticated(send(service, sent), INVALID)


def well_formed(prefix: str) -> str:
    """Return key with a valid checksum that was never issued."""
    body = prefix + "".join(random.choices(_BASE62, k=43))
    return body + _compute_key_checksum(body)


@pytest.mark.parametrize(
    "alter",
    [
        case(47, lambda key: key[:-1] + ("0" if key[-1] != "0" else "1"), name="checksum"),
        case(47, lambda key: key[:20] + ("0" if key[20] != "0" else "1") + key[21:], name="one-letter"),
        case(47, lambda key: key[:20] + key[21] + key[20] + key[22:], name="two-swapped"),
        case(47, lambda key: key[:-1], name="cut"),
        case(47, lambda key: key + "0", name="longer"),
        case(47, lambda key: key.swapcase(), name="other-case"),
        case(47, lambda _: "nsk_local_" + "0" * 10_000, name="10000-letters"),
    ],
)
def test_a_mistyped_key_costs_no_query(service: Service, caller: Caller, alter: Any) -> None:
    key = alter(caller.key.key)
    if key == caller.key.key:  # two equal letters were swapped
        key = key[:30] + "!" + key[31:]
    with counted_statements() as statements:
        judge_unauthenticated(send(service, [("Authorization", f"Bearer {key}")]), INVALID)
    assert statements == []


@pytest.mark.parametrize(
    "member", [case(48, "expires_at", name="expired"), case(48, "revoked_at", name="revoked")]
)
def test_a_key_that_ended_is_refused(service: Service, caller: Caller, member: str) -> None:
    with service.runtime.database.transaction(write=True) as db:
        row = db.get_one(KeyRow, caller.key.key_id)
        setattr(row, member, recorder_clock.now() - timedelta(milliseconds=1))
        db.add(row)
    judge_unauthenticated(caller.get("/v1/sessions"), INVALID)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        case(49, "POST", "/v1/sessions", name="create"),
        case(49, "POST", "/v1/sessions/{id}/events", name="events"),
        case(49, "POST", "/v1/sessions/{id}/stop", name="stop"),
        case(49, "DELETE", "/v1/sessions/{id}", name="delete"),
        case(49, "POST", "/v1/exports", name="export"),
        case(49, "PATCH", "/v1/workflows/checkout", name="workflow"),
        case(49, "GET", "/v1/webhooks", name="webhooks"),
        case(49, "POST", "/v1/keys", name="key"),
        case(49, "GET", "/v1/audit", name="audit"),
    ],
)
def test_a_read_key_writes_nothing(service: Service, caller: Caller, method: str, path: str) -> None:
    session_id = caller.make_session()
    reader = service.make_caller(scope="read", workspace_id=caller.key.workspace_id)
    with nothing_stored(service.runtime):
        # The scope is asked before the body is looked at.
        answer = reader.request(
            method, path.format(id=session_id), content=b"{", headers={"Content-Type": "x/y"}
        )
        judge(answer, TOO_LITTLE)


@pytest.mark.parametrize("hard", [case(50, "true", name="hard")])
def test_a_write_key_deletes_nothing_for_good(service: Service, caller: Caller, hard: str) -> None:
    session_id = caller.make_session()
    writer = service.make_caller(scope="write", workspace_id=caller.key.workspace_id)
    with nothing_stored(service.runtime):
        judge(writer.delete(f"/v1/sessions/{session_id}?hard={hard}"), TOO_LITTLE)
        # Nor does it learn whether there is such a session.
        judge(writer.delete(f"/v1/sessions/ses_unknown?hard={hard}"), TOO_LITTLE)
    assert writer.delete(f"/v1/sessions/{session_id}?hard=false").status_code == 204


@pytest.mark.parametrize(
    "scope", [case(51, "admin replay:live", name="admin"), case(51, "read replay:live", name="read")]
)
def test_a_key_does_not_grant_live_replays_that_it_may_not_start(
    service: Service, caller: Caller, scope: str
) -> None:
    with nothing_stored(service.runtime):
        judge(caller.post("/v1/keys", {"label": "more", "scope": scope}), TOO_LITTLE)


@pytest.mark.parametrize("path", [case(52, "", name="session"), case(52, "/events", name="events")])
def test_a_test_key_sees_no_live_session(service: Service, caller: Caller, path: str) -> None:
    session_id = caller.make_session()
    tester = service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    answer = tester.get(f"/v1/sessions/{session_id}{path}")
    judge(answer, Refused(404, "not_found", extra={"resource": "session"}))


@pytest.mark.parametrize(
    "prefix", [case(53, "nsk_live_", name="live"), case(53, "nsk_prod_", name="unknown")]
)
def test_a_key_of_another_kind_of_deployment_is_refused_even_if_it_is_stored(
    service: Service, caller: Caller, prefix: str
) -> None:
    key = well_formed(prefix)
    with service.runtime.database.transaction(write=True) as db:
        row = KeyRow(
            id=new_id("key"),
            workspace_id=caller.key.workspace_id,
            mode="live",
            label="of the hosted service",
            scope="admin",
            key_hash=_hash_api_key(key, service.runtime.settings.secret),
            last4=key[-4:],
            created_at=recorder_clock.now(),
        )
        db.add(row)
    with counted_statements() as statements:
        judge_unauthenticated(send(service, [("Authorization", f"Bearer {key}")]), INVALID)
    assert statements == []


@pytest.mark.parametrize(
    "status", [case(54, "suspended", name="suspended"), case(54, "expired", name="expired")]
)
def test_a_workspace_that_is_not_active_is_refused(service: Service, caller: Caller, status: str) -> None:
    with service.runtime.database.transaction(write=True) as db:
        row = db.get_one(WorkspaceRow, caller.key.workspace_id)
        row.status = status
        db.add(row)
    with nothing_stored(service.runtime):
        judge(caller.post("/v1/sessions", {"workflow": "checkout"}), Refused(403, "workspace_disabled"))
        judge(caller.get("/v1/nothing"), Refused(403, "workspace_disabled"))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """Return the lines that the service has logged so far."""
    caplog.set_level(logging.DEBUG, "recorder")
    formatter = make_log_formatter()
    return lambda: [
        formatter.format(record) for record in caplog.records if record.name.startswith("recorder")
    ]


@pytest.mark.parametrize(
    "name", [case(55, name, name=name) for name in ("key", "api_key", "access_token", "Authorization")]
)
def test_a_key_in_the_query_opens_nothing_and_is_not_logged(
    service: Service, caller: Caller, lines: Any, name: str
) -> None:
    judge_unauthenticated(send(service, [], f"/v1/sessions?{name}={caller.key.key}"), MISSING)
    written = lines()
    assert written and not [line for line in written if caller.key.key[10:] in line]


@pytest.mark.parametrize(
    "text",
    [
        case(56, b"a\x1b[31mred", name="ANSI"),
        case(56, b"a\x9b31mred", name="ANSI-in-one-byte"),
        case(56, b"a\r\nX-Evil: 1", name="line-end"),
        case(56, b"a\x0b\x0c\x08", name="control"),
        case(56, b"a\xe2\x80\xa8b", name="line-separator"),
    ],
)
def test_control_characters_reach_neither_answer_nor_log(
    service: Service, caller: Caller, lines: Any, text: bytes
) -> None:
    key = caller.key.key.encode()
    headers = [(b"Authorization", b"Bearer " + key), (b"X-Request-Id", text), (b"User-Agent", text)]
    before = len(lines())
    answer = send(service, headers)  # type: ignore[arg-type]
    assert (answer.status_code, "x-client-request-id" in answer.headers) == (200, False)
    assert "x-evil" not in answer.headers
    (line,) = lines()[before:]
    assert line.isascii() and line.isprintable()
    with nothing_stored(service.runtime):
        label = text.decode("latin-1")
        judge(
            caller.post("/v1/keys", {"label": label, "scope": "read"}),
            Refused(422, "validation_failed", "invalid_string", "/label", "body"),
        )
    assert_problem(send(service, [*headers, (b"Service-Version", text)]), 400, "unsupported_version")  # type: ignore[list-item]
