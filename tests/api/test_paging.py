"""Lists: order, pages and cursors. Contract §1 (lists); spec §4.1 (GET /v1/sessions)."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recorder import limits
from recorder.sealing import Sealer
from tests.support.factories import Caller, assert_problem, event, frame

LISTS = ["sessions", "events", "frames", "tags"]


def fill(caller: Caller, kind: str) -> tuple[str, list[str]]:
    """Create seven items of a list; return its address, and their ids in the expected order."""
    if kind == "sessions":
        return "/v1/sessions", [caller.make_session(workflow="paged") for _ in range(7)][::-1]
    session_id = caller.make_session()
    address = f"/v1/sessions/{session_id}/{kind}"
    # Ids that people, bytes and the order of sending all sort differently.
    times_and_ids = [(5, "b"), (5, "B"), (5, "_"), (0, "z"), (5, "a1"), (5, "10"), (9, "A")]
    if kind == "tags":
        made = [caller.post(address, {"name": name, "t_ms": t_ms}).json() for t_ms, name in times_and_ids]
        return address, [tag["id"] for tag in sorted(made, key=lambda tag: (tag["t_ms"], tag["id"]))]
    prefix = "evt" if kind == "events" else "frm"
    named = [(t_ms, f"{prefix}_{name.replace('_', 'x')}") for t_ms, name in times_and_ids]
    make: Callable[..., dict[str, Any]] = event if kind == "events" else frame
    items = [make(t_ms, id=item_id) for t_ms, item_id in named]
    # In two batches that overlap in time.
    for part in (items[:3], items[3:]):
        assert caller.post(address, {kind: part}).status_code == 202
    return address, [item_id for _, item_id in sorted(named)]


def pages(caller: Caller, address: str, query: str = "") -> Iterator[dict[str, Any]]:
    """Yield the pages of a list, one after the other."""
    cursor = ""
    while True:
        answer = caller.get(f"{address}?{query}{cursor}")
        assert answer.status_code == 200, answer.text
        page = answer.json()
        yield page
        if not page["has_more"]:
            return
        cursor = f"&cursor={page['next_cursor']}"


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 8, 500])
def test_pages_hold_every_item_once_in_order(caller: Caller, kind: str, limit: int) -> None:
    address, ids = fill(caller, kind)
    listed = list(pages(caller, address, f"limit={limit}"))
    assert [item["id"] for page in listed for item in page["data"]] == ids
    assert [len(page["data"]) for page in listed[:-1]] == [limit] * (len(listed) - 1)
    assert all(page["has_more"] == (page["next_cursor"] is not None) for page in listed)
    assert listed[-1]["data"]


def test_pages_of_the_largest_sessions_end_by_their_bytes(caller: Caller) -> None:
    made = [caller.make_session(metadata={"note": "x" * 16_000}) for _ in range(300)]
    listed = list(pages(caller, "/v1/sessions", "limit=500"))
    assert [item["id"] for page in listed for item in page["data"]] == made[::-1]
    assert len(listed) == 2 and len(listed[0]["data"]) > 200


def fill_every_list(caller: Caller) -> list[str]:
    """Return the addresses of lists that hold two items at least."""
    session_id, *_ = (caller.make_session(workflow=name) for name in ("flow_a", "flow_b"))
    assert caller.add_events(session_id, event(1), event(2)).status_code == 202
    for name in ("one", "two"):
        assert caller.post(f"/v1/sessions/{session_id}/tags", {"name": name}).status_code == 201
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    sealer = Sealer(caller.service.runtime, owner="tests")
    assert sealer.take() and sealer.seal_batch() is not None
    sealer.release()
    webhook = {"url": "https://hooks.example.com/a", "events": ["session.created"]}
    export = {"workflow": "flow_a", "format": "jsonl", "destination": {"kind": "signed_url"}}
    replay = {"session_id": session_id, "sandbox": "dry", "mode": "full"}
    for path, body in (("exports", export), ("replays", replay), ("webhooks", webhook)):
        made = [caller.post(f"/v1/{path}", body) for _ in range(2)]
        assert {answer.status_code for answer in made} <= {201, 202}, made[0].text
    address = f"/v1/webhooks/{made[0].json()['id']}"
    assert [caller.post(f"{address}/test").status_code for _ in range(2)] == [202] * 2
    caller.service.make_caller(workspace_id=caller.key.workspace_id)
    lists = ("sessions", "workflows", "webhooks", "exports", "replays", "keys", "audit")
    return [*(f"/v1/{name}" for name in lists), f"/v1/sessions/{session_id}/tags", f"{address}/deliveries"]


def test_a_page_of_every_list_ends_by_its_bytes(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = fill_every_list(caller)
    whole = [next(pages(caller, address, "limit=500"))["data"] for address in addresses]
    monkeypatch.setattr(limits, "PAGE_BYTES", 1)
    for address, items in zip(addresses, whole, strict=True):
        listed = [page["data"] for page in pages(caller, address, "limit=500")]
        assert len(items) >= 2 and listed == [[item] for item in items], address


@pytest.mark.parametrize("kind", LISTS)
def test_an_altered_cursor_is_refused(caller: Caller, kind: str) -> None:
    address, _ = fill(caller, kind)
    cursor = caller.get(f"{address}?limit=2").json()["next_cursor"]
    raw = bytearray(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    raw[20] ^= 1
    altered = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    for bad in (altered, cursor[:-4], cursor + "AAAA", "", "a", "%00", "é", "null", cursor[::-1]):
        assert_problem(caller.get(f"{address}?limit=2&cursor={bad}"), 400, "invalid_cursor")


@pytest.mark.parametrize("kind", LISTS)
def test_a_cursor_is_bound_to_its_caller(caller: Caller, kind: str) -> None:
    address, _ = fill(caller, kind)
    cursor = caller.get(f"{address}?limit=2").json()["next_cursor"]
    twin = caller.service.make_caller(workspace_id=caller.key.workspace_id)
    assert twin.get(f"{address}?limit=2&cursor={cursor}").status_code == 200
    for stranger in (
        caller.service.make_caller(),
        caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id),
    ):
        assert_problem(stranger.get(f"{address}?limit=2&cursor={cursor}"), 400, "invalid_cursor")


def test_a_cursor_is_bound_to_its_address(caller: Caller) -> None:
    address, _ = fill(caller, "events")
    other, _ = fill(caller, "events")
    cursor = caller.get(f"{address}?limit=2").json()["next_cursor"]
    for elsewhere in (other, address.replace("/events", "/frames"), "/v1/sessions"):
        assert_problem(caller.get(f"{elsewhere}?limit=2&cursor={cursor}"), 400, "invalid_cursor")


def test_a_relative_time_means_the_same_on_every_page(caller: Caller) -> None:
    for number in range(3):
        caller.post("/v1/keys", json={"label": f"early {number}", "scope": "read"})
    first = caller.get("/v1/audit?until=0s&limit=1").json()
    late_id = caller.post("/v1/keys", json={"label": "late", "scope": "read"}).json()["id"]
    address = "/v1/audit?until=0s&limit=500"
    rest = caller.get(f"{address}&cursor={first['next_cursor']}").json()
    assert late_id in {entry["resource"]["id"] for entry in caller.get(address).json()["data"]}
    assert late_id not in {entry["resource"]["id"] for entry in rest["data"]}


def test_a_cursor_is_bound_to_its_filters_but_not_to_its_limit(caller: Caller) -> None:
    address, ids = fill(caller, "sessions")
    cursor = caller.get(f"{address}?limit=2&workflow=paged&since=1h").json()["next_cursor"]
    rest = caller.get(f"{address}?limit=500&since=1h&workflow=paged&cursor={cursor}").json()
    assert [session["id"] for session in rest["data"]] == ids[2:]
    for filters in ("", "workflow=paged", "workflow=paged&since=2h", "workflow=paged&workflow=x2&since=1h"):
        answer = caller.get(f"{address}?limit=2&cursor={cursor}&{filters}")
        assert_problem(answer, 400, "invalid_cursor")


def test_pages_stay_whole_while_sessions_come_and_go(caller: Caller) -> None:
    address, ids = fill(caller, "sessions")
    first = caller.get(f"{address}?limit=3").json()
    caller.make_session()
    caller.delete(f"{address}/{ids[4]}")
    rest = caller.get(f"{address}?limit=500&cursor={first['next_cursor']}").json()
    assert [session["id"] for session in rest["data"]] == [ids[3], ids[5], ids[6]]
