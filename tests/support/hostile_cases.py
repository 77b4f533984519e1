"""The hostile corpus: how a case is written and judged. Contract §1; a refusal stores nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from recorder import limits
from recorder.runtime import Runtime
from tests.support.factories import JSON, Caller, assert_problem, footprint, frame

#: Stands in what a case sends, and must not come back in what is answered.
CANARY = "canary5150"


@dataclass(frozen=True)
class Refused:
    """Expected answer of a case."""

    status: int
    code: str
    #: `errors[0]`, where the code alone does not say it all.
    item: str | None = None
    pointer: str | None = None
    where: str | None = None
    #: `resource` of a 404, `current_status` of a 409.
    extra: dict[str, str] = field(default_factory=dict)


def case(number: int, *values: Any, name: str) -> Any:
    """Return a case of the corpus by its number, which its id begins with."""
    return pytest.param(*values, id=f"{number}-{name}")


def judge(answer: Any, refused: Refused) -> dict[str, Any]:
    """Hold an answer against what it should be; its problem document."""
    problem = assert_problem(answer, refused.status, refused.code)
    assert CANARY not in answer.text
    items = problem.get("errors", [])
    if refused.item is not None:
        assert [item["code"] for item in items] == [refused.item], problem
    if refused.pointer is not None:
        assert [item["pointer"] for item in items] == [refused.pointer], problem
    if refused.where is not None:
        assert {item["in"] for item in items} == {refused.where}, problem
    assert {name: problem.get(name) for name in refused.extra} == refused.extra
    return problem


@contextmanager
def nothing_stored(runtime: Runtime) -> Iterator[None]:
    """Fail if the block stores anything, except entries of the audit log."""
    before = _without_audit(footprint(runtime))
    yield
    assert _without_audit(footprint(runtime)) == before


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """Yield every statement that any database of this process is asked while the block runs."""
    statements: list[str] = []

    def note(_: Any, __: Any, statement: str, *more: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def _without_audit(actual: dict[str, Any]) -> dict[str, Any]:
    rows = {table: count for table, count in actual["rows"].items() if not table.startswith("audit_")}
    return {**actual, "rows": rows}


@dataclass(frozen=True)
class BodyRoute:
    """A route that reads a body: a member of it that takes a value of the client's choice."""

    method: str
    path: str
    #: `%s` stands for the value.
    template: bytes
    #: JSON pointer to the value; in batches to its item, since refusals name no more.
    pointer: str
    #: What may stand there.
    good: bytes = b'"fine"'
    body_bytes: int = limits.BODY_BYTES
    #: What a good body is answered with, where what it names is not there.
    refused: int | None = None

    def send(self, caller: Caller, session_id: str, value: bytes, **headers: str) -> Any:
        """Send a request with a value at the pointer."""
        return self.send_raw(caller, session_id, self.template % value, **headers)

    def send_raw(self, caller: Caller, session_id: str, content: Any, **headers: str) -> Any:
        """Return a request with an unchanged body, declared as JSON by default."""
        headers = {"Content-Type": JSON, **headers}
        path = self.path.replace("{session_id}", session_id)
        return caller.request(self.method, path, content=content, headers=headers)


_SESSION = "/v1/sessions/{session_id}"
_PICTURE = frame()["data"].encode()
BODY_ROUTES: dict[str, BodyRoute] = {
    "session": BodyRoute(
        "POST", "/v1/sessions", b'{"workflow":"checkout","metadata":{"x":%s}}', "/metadata/x"
    ),
    "tag": BodyRoute("POST", f"{_SESSION}/tags", b'{"name":"seen","data":{"x":%s}}', "/data/x"),
    "events": BodyRoute(
        "POST",
        f"{_SESSION}/events",
        b'{"events":[{"t_ms":1,"type":"click","data":{"x":%s}}]}',
        "/events/0/data/x",
        body_bytes=limits.EVENTS_REQUEST_BYTES,
    ),
    "frames": BodyRoute(
        "POST",
        f"{_SESSION}/frames",
        b'{"frames":[{"t_ms":1,"content_type":"image/png","data":"'
        + _PICTURE
        + b'","dom":{"v":1,"format":"nodes","html":["p"],"x":%s}}]}',
        "/frames/0/dom/x",
        body_bytes=limits.FRAMES_REQUEST_BYTES,
    ),
    "batch_stop": BodyRoute("POST", "/v1/sessions:batch_stop", b'{"ids":[%s]}', "/ids/0"),
    "export": BodyRoute(
        "POST",
        "/v1/exports",
        b'{"workflow":"checkout","format":"parquet","destination":{"kind":"signed_url"},"tag":%s}',
        "/tag",
    ),
    "similar": BodyRoute("POST", "/v1/memory/similar", b'{"session_id":%s}', "/session_id", refused=404),
    "replay": BodyRoute(
        "POST", "/v1/replays", b'{"session_id":%s,"sandbox":"dry"}', "/session_id", refused=404
    ),
    "recovery": BodyRoute(
        "POST", "/v1/recoveries", b'{"session_id":%s,"sandbox":"dry"}', "/session_id", refused=404
    ),
    "decision": BodyRoute(
        "POST",
        "/v1/replays/{replay_id}/decision",
        b'{"step":1,"action":"retarget","selector":%s}',
        "/selector",
        refused=404,
    ),
    "key": BodyRoute("POST", "/v1/keys", b'{"label":%s,"scope":"read"}', "/label"),
    "webhook": BodyRoute(
        "POST",
        "/v1/webhooks",
        b'{"url":"http://127.0.0.1:9/hook","events":["session.sealed"],"description":%s}',
        "/description",
    ),
    "webhook change": BodyRoute(
        "PATCH", "/v1/webhooks/{webhook_id}", b'{"description":%s}', "/description", refused=404
    ),
    "workflow": BodyRoute("PATCH", "/v1/workflows/checkout", b'{"tags":[%s]}', "/tags/0"),
    "workspace": BodyRoute(
        "PATCH",
        "/v1/workspaces/current",
        b'{"live_replay":{"allow_hosts":[%s]}}',
        "/live_replay/allow_hosts/0",
    ),
    "erasure": BodyRoute("POST", "/v1/privacy/erasure", b'{"subject":%s,"scope":"all"}', "/subject"),
}
