"""Hostile cursors on every list: cases 33 to 35. Contract §1 (lists)."""

import re
from typing import Any
from urllib.parse import parse_qsl

import pytest

from recorder.exports.runner.run import run_export
from tests.support.factories import Caller, Service, event, frame
from tests.support.hostile_cases import CANARY, Refused, case, judge
from tests.support.http_graph_sessions import sealed_walks
from tests.support.route_addresses import make_webhook, other, with_parameter
from tests.support.two_click_sessions import replay_all, sealed_run


def fill_lists(caller: Caller) -> dict[str, str]:
    """Return every list of a workspace with at least two items; paths by what they list."""
    session_id = caller.make_session()
    caller.make_session(workflow="refund")
    caller.add_events(session_id, event(1), event(2))
    caller.add_frames(session_id, frame(1), frame(2, 7))
    for name in ("a", "b"):
        caller.post(f"/v1/sessions/{session_id}/tags", {"name": name})
        wanted = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
        caller.post("/v1/exports", wanted)
        caller.post("/v1/keys", {"label": name, "scope": "read"})
    webhook_id, _ = make_webhook(caller)
    make_webhook(caller)
    caller.post(f"/v1/webhooks/{webhook_id}/test")
    sealed = sealed_walks(caller, "ab", "xyz")
    replayed = sealed_run(caller, workflow="approve")
    body = {"session_id": replayed, "sandbox": "dry"}
    replay_id, _ = (caller.post("/v1/replays", body).json()["id"] for _ in range(2))
    stuck = body | {"failure_tag": "ready"}
    assert {caller.post("/v1/recoveries", stuck).status_code for _ in range(2)} == {202}
    replay_all(caller)
    whole, part = (_exported(caller, exclude_session_ids=left_out) for left_out in ([], sealed))
    session = f"/v1/sessions/{session_id}"
    return {
        "sessions": "/v1/sessions",
        "events": f"{session}/events",
        "frames": f"{session}/frames",
        "tags": f"{session}/tags",
        "exports": "/v1/exports",
        "diff": f"/v1/exports/{whole}/diff?against={part}",
        "keys": "/v1/keys",
        "webhooks": "/v1/webhooks",
        "replays": "/v1/replays",
        "recoveries": "/v1/recoveries",
        "steps": f"/v1/replays/{replay_id}/steps",
        "deliveries": f"/v1/webhooks/{webhook_id}/deliveries",
        "workflows": "/v1/workflows",
        "audit": "/v1/audit",
        "outliers": "/v1/memory/outliers",
    }


def _exported(caller: Caller, **filters: Any) -> str:
    wanted = {"workflow": "checkout", "format": "jsonl", "destination": {"kind": "signed_url"}}
    export_id: str = caller.post("/v1/exports", wanted | {"filter": filters}).json()["id"]
    assert run_export(caller.service.runtime, export_id, owner="test").status == "completed"
    return export_id


#: Queries without which a list is refused or empty.
_NEEDED = {"/v1/memory/outliers": {"workflow": "checkout", "threshold": "1"}}


def ask(caller: Caller, path: str, **query: str) -> Any:
    """Return a list with this query."""
    address, _, needed = path.partition("?")
    return caller.request(
        "GET", address, params={**dict(parse_qsl(needed)), **_NEEDED.get(path, {}), **query}
    )


@pytest.fixture(scope="module")
def lister(service: Service) -> Caller:
    """Return a caller whose lists are all filled."""
    return service.make_caller()


@pytest.fixture(scope="module")
def paths(lister: Caller) -> dict[str, str]:
    """Return those lists."""
    return fill_lists(lister)


@pytest.fixture(scope="module")
def cursors(lister: Caller, paths: dict[str, str]) -> dict[str, str]:
    """Return the cursor after the first item of each list."""
    return first_cursors(lister, paths)


def first_cursors(caller: Caller, paths: dict[str, str]) -> dict[str, str]:
    """Return the cursor after the first item of each list."""
    cursors = {name: ask(caller, path, limit="1").json()["next_cursor"] for name, path in paths.items()}
    assert {name: cursor for name, cursor in cursors.items() if cursor is None} == {}
    return cursors


NOT_MINE = Refused(400, "invalid_cursor")


def test_every_list_is_tried(service: Service, paths: dict[str, str]) -> None:
    tried = {re.sub(r"/\w{3}_\w+", "/unknown", path.partition("?")[0]) for path in paths.values()}
    assert tried == set(with_parameter(service, "cursor"))


@pytest.mark.parametrize(
    "who", [case(33, "other workspace", name="workspace"), case(33, "other mode", name="mode")]
)
def test_a_cursor_of_somebody_else_is_refused(
    lister: Caller, paths: dict[str, str], cursors: dict[str, str], who: str
) -> None:
    stranger = other(lister, who)
    for name, cursor in cursors.items():
        judge(ask(stranger, paths[name], cursor=cursor), NOT_MINE)


@pytest.mark.parametrize(
    "alter",
    [
        case(34, lambda cursor: cursor[:-1] + ("A" if cursor[-1] != "A" else "B"), name="last-letter"),
        case(34, lambda cursor: ("A" if cursor[0] != "A" else "B") + cursor[1:], name="first-letter"),
        case(34, lambda cursor: cursor[:22], name="position-cut-off"),
        case(34, lambda cursor: cursor[:5], name="cut"),
        case(34, lambda cursor: cursor + cursor, name="twice"),
        case(34, lambda cursor: cursor + "=" * 4, name="padded"),
        case(34, lambda _: "", name="empty"),
        case(34, lambda _: CANARY, name="made-up"),
        case(34, lambda _: "é\u0000", name="no-base64"),
        case(34, lambda _: "A" * 20_000, name="20000-letters"),
    ],
)
def test_an_altered_cursor_is_refused(
    lister: Caller, paths: dict[str, str], cursors: dict[str, str], alter: Any
) -> None:
    for name, cursor in cursors.items():
        judge(ask(lister, paths[name], cursor=alter(cursor)), NOT_MINE)


@pytest.mark.parametrize(
    ("name", "query"),
    [
        case(35, "sessions", {"workflow": "checkout"}, name="workflow"),
        case(35, "sessions", {"status": "recording"}, name="status"),
        case(35, "sessions", {"since": "1h"}, name="since"),
        case(35, "exports", {"status": "queued"}, name="export-status"),
        case(35, "outliers", {"threshold": "0.9"}, name="threshold"),
        case(35, "audit", {"action": "key.create"}, name="action"),
    ],
)
def test_a_cursor_with_other_filters_is_refused(
    lister: Caller, paths: dict[str, str], cursors: dict[str, str], name: str, query: dict[str, str]
) -> None:
    path, cursor = paths[name], cursors[name]
    judge(ask(lister, path, cursor=cursor, **query), NOT_MINE)
    assert ask(lister, path, cursor=cursor, limit="2").status_code == 200


@pytest.mark.parametrize(
    "name", [case(35, "sessions", name="on-other-lists"), case(35, "keys", name="of-keys")]
)
def test_a_cursor_of_another_list_is_refused(
    lister: Caller, paths: dict[str, str], cursors: dict[str, str], name: str
) -> None:
    for path in set(paths.values()) - {paths[name]}:
        judge(ask(lister, path, cursor=cursors[name]), NOT_MINE)
