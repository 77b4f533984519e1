"""A session answers the same before sealing, after it, and after the sweep. Contract §2 (added reads)."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from recorder import limits
from recorder.recording import session_events
from recorder.recording.session_events import SessionEventPortions, list_session_event_records
from recorder.sealing import Sealer
from recorder.storage.blobs import Blobs
from recorder.tenant import Tenant
from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, Service, assert_problem, event, frame, picture
from tests.support.recorded_sessions import execute, outbox_types, session_row
from tests.support.sealing import seal_waiting

PARTS = (
    "/events",
    "/events?limit=2",
    "/frames",
    "/frames?limit=2",
    "/frames/frm_a",
    "/frames/frm_a/image",
    "/frames/frm_a/dom",
    "/tags",
    "?include=events,tags",
)


@pytest.fixture
def sealer(service: Service) -> Iterator[Sealer]:
    """Yield the sealing run of this service."""
    run = Sealer(service.runtime, owner="tests")
    assert run.take()
    yield run
    run.release()


def sweep(caller: Caller, sealer: Sealer, session_id: str) -> None:
    """Let the session have been sealed long ago, and sweep it."""
    execute(
        caller.service.runtime, "UPDATE sessions SET sealed_at = '2020-01-01' WHERE id = :id", id=session_id
    )
    sealer.maintain()
    assert not session_row(caller.service.runtime, session_id).is_hot


def rich_session(caller: Caller) -> str:
    """Return a stopped session with one object of each kind."""
    session_id = caller.make_session(metadata={"n": 2**53 + 1, "é": [None, 0.1]})
    events = [
        event(9, "click", id="evt_b", data={"z": 1, "a": {"y": 1e-7, "x": -0.0, "big": 2**63 - 1}}),
        event(9, "fill", id="evt_B", input={"value": "ü\u2028", "point": [1, 2.5]}, title=None),
    ]
    later = [event(3), event(9, "own.type", frame_id="frm_a"), event(12, "success")]
    seen = {
        "url": "https://a.example/1",
        "active_rect": [0, 0, 1, 1.5],
        "keyframe": True,
        "dom": snapshot(["html"]),
    }
    frames = [
        frame(4, 1, id="frm_a", **seen),
        frame(4, 2, masked_rects=[[1, 2, 3, 4]], keyframe=False),
        frame(1, 1),
    ]
    tag = {"name": "seen", "data": {"b": 1, "a": None}}
    sent = [
        caller.add_events(session_id, *events),
        caller.add_events(session_id, *later),
        caller.add_frames(session_id, *frames),
        caller.post(f"/v1/sessions/{session_id}/tags", tag),
        caller.post(f"/v1/sessions/{session_id}/stop"),
    ]
    assert [answer.status_code for answer in sent] == [202, 202, 202, 201, 200]
    return session_id


def answers(caller: Caller, session_id: str) -> dict[str, Any]:
    """Return the bytes of every read of a session, without the members that sealing changes."""
    before: dict[str, Any] = {}
    for part in PARTS:
        answer = caller.get(f"/v1/sessions/{session_id}{part}")
        assert answer.status_code == 200, answer.text
        content = answer.content.replace(b'"status":"sealed"', b'"status":"stopped"')
        before[part] = re.sub(rb'"path_id":"pth_[0-9a-z]+"', b'"path_id":null', content)
    for accept in ("application/x-ndjson", "application/vnd.apache.arrow.stream"):
        before[accept] = caller.get(f"/v1/sessions/{session_id}/events", Accept=accept).content
    return before


def test_every_read_answers_the_same(caller: Caller, sealer: Sealer) -> None:
    session_id = rich_session(caller)
    stopped = answers(caller, session_id)
    seal_waiting(sealer)
    assert answers(caller, session_id) == stopped
    sweep(caller, sealer, session_id)
    assert answers(caller, session_id) == stopped


def test_pages_go_on_over_seal_and_sweep(caller: Caller, sealer: Sealer) -> None:
    session_id = rich_session(caller)
    for kind, total in (("events", 5), ("frames", 3)):
        address = f"/v1/sessions/{session_id}/{kind}"
        ids = [item["id"] for item in caller.get(address).json()["data"]]
        cursor = caller.get(f"{address}?limit=1").json()["next_cursor"]
        seal_waiting(sealer)
        sweep(caller, sealer, session_id)
        rest = caller.get(f"{address}?limit=500&cursor={cursor}").json()
        assert [item["id"] for item in rest["data"]] == ids[1:] and len(ids) == total


def test_portions_continue_over_seal_and_sweep(
    caller: Caller, sealer: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = rich_session(caller)
    runtime = caller.service.runtime
    address = f"/v1/sessions/{session_id}/events"
    whole = caller.get(address, Accept="application/x-ndjson").content
    monkeypatch.setattr(session_events, "PORTION_EVENTS", 2)
    assert caller.get(address, Accept="application/x-ndjson").content == whole
    portions = SessionEventPortions(
        runtime.database, runtime.lake, Tenant(caller.key.workspace_id, "live"), session_id
    )
    lines = [record.as_json() for record in list_session_event_records(portions.read())]
    assert len(lines) == 2
    seal_waiting(sealer)
    sweep(caller, sealer, session_id)
    rest = list(iter(portions.read, None))
    lines += [record.as_json() for portion in rest for record in list_session_event_records(portion)]
    assert lines == whole.splitlines() and [portion.num_rows for portion in rest] == [2, 1]
    assert caller.get(address, Accept="application/x-ndjson").content == whole


def test_the_summary_counts_keyframes_once_sealed(caller: Caller, sealer: Sealer) -> None:
    session_id = rich_session(caller)
    address = f"/v1/sessions/{session_id}?include=frames_summary"
    before = caller.get(address).json()["frames_summary"]
    seal_waiting(sealer)
    hot = caller.get(address).json()["frames_summary"]
    sweep(caller, sealer, session_id)
    swept = caller.get(address).json()["frames_summary"]
    assert before["keyframes"] is None and hot["keyframes"] >= 1
    assert hot == swept == {**before, "keyframes": hot["keyframes"]}


def test_a_sealed_session_takes_tags_and_nothing_else(caller: Caller, sealer: Sealer) -> None:
    session_id = rich_session(caller)
    seal_waiting(sealer)
    sweep(caller, sealer, session_id)
    address = f"/v1/sessions/{session_id}"
    for answer in (
        caller.post(f"{address}/start"),
        caller.add_events(session_id, event(1)),
        caller.add_frames(session_id, frame(1)),
    ):
        problem = assert_problem(answer, 409, "invalid_state")
        assert problem["current_status"] == "sealed" and " a new session" in problem["detail"]
    stopped = caller.post(f"{address}/stop").json()
    assert (stopped["status"], stopped["outcome"]) == ("sealed", "success")
    caller.post(f"{address}/tags", {"name": "failed", "t_ms": 10**6})
    assert caller.get(address).json()["outcome"] == "error"
    types = outbox_types(caller.service.runtime, session_id)
    assert types[-3:] == ["session.sealed", "session.tagged", "session.error"]


def test_a_deleted_sealed_session_is_gone(caller: Caller, sealer: Sealer) -> None:
    session_id = rich_session(caller)
    seal_waiting(sealer)
    sweep(caller, sealer, session_id)
    assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
    for part in ("", *PARTS):
        assert_problem(caller.get(f"/v1/sessions/{session_id}{part}"), 404, "not_found")
    assert caller.get("/v1/sessions?status=sealed").json()["data"] == []


def test_a_picture_whose_object_is_gone_is_not_found(caller: Caller, sealer: Sealer) -> None:
    session_id = caller.make_session()
    caller.add_frames(session_id, frame(1, 7, id="frm_a"))
    runtime = caller.service.runtime
    address = f"/v1/sessions/{session_id}/frames/frm_a"
    assert caller.get(f"{address}/image").content == picture(7)
    for key in list(runtime.blobs.keys(f"frames/{caller.key.workspace_id}/{session_id}")):
        runtime.blobs.delete(key)
    assert assert_problem(caller.get(f"{address}/image"), 404, "not_found")["resource"] == "frame"
    assert caller.get(address).status_code == 200


@pytest.mark.parametrize("state", ["hot", "swept", "archived"])
def test_a_range_of_a_picture_is_read_without_the_bytes_after_it(
    caller: Caller, sealer: Sealer, state: str
) -> None:
    session_id = caller.make_session()
    caller.add_frames(session_id, frame(1, 7, id="frm_a"), frame(2, 8, id="frm_b"))
    runtime = caller.service.runtime
    folder = f"frames/{caller.key.workspace_id}/{session_id}/"
    store = runtime.blobs
    if state != "hot":
        assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
        seal_waiting(sealer)
        sweep(caller, sealer, session_id)
    if state == "archived":
        store = Blobs(runtime.settings.cold_url)
        for key in list(runtime.blobs.keys(folder)):
            store.put(key, runtime.blobs.get(key))
            runtime.blobs.delete(key)
    address = f"/v1/sessions/{session_id}/frames/frm_b/image"
    wanted = caller.get(address, Range="bytes=3-9")
    assert (wanted.status_code, wanted.content) == (206, picture(8)[3:10])
    assert caller.get(address).content == picture(8)
    for key in list(store.keys(folder)):
        store.put(key, store.get(key)[: len(picture(7)) + 10])  # the rest of the second picture is lost
    again = caller.get(address, Range="bytes=3-9")
    assert (again.content, again.headers["content-range"]) == (
        picture(8)[3:10],
        f"bytes 3-9/{len(picture(8))}",
    )
    assert_problem(caller.get(address, Range=f"bytes={len(picture(8))}-"), 416, "range_not_satisfiable")
    assert_problem(caller.get(address, Range="bytes=3-10"), 404, "not_found")


def read_pages(caller: Caller, path: str) -> list[list[dict[str, Any]]]:
    """Return the items of each page of a list, with the largest `limit`."""
    pages, cursor = [], ""
    while True:
        answer = caller.get(f"{path}?limit=500{cursor}")
        assert len(answer.content) < limits.PAGE_BYTES * 1.1
        page = answer.json()
        pages.append(page["data"])
        assert page["has_more"] == (page["next_cursor"] is not None)
        if not page["has_more"]:
            return pages
        cursor = f"&cursor={page['next_cursor']}"


def test_pages_of_large_items_end_by_their_bytes_and_hold_every_item_once(
    caller: Caller, sealer: Sealer
) -> None:
    session_id = caller.make_session()
    for batch in range(2):
        items = [event(n % 7, data={"n": 100 * batch + n, "x": "y" * 60_000}) for n in range(100)]
        assert caller.add_events(session_id, *items).status_code == 202
    rectangles = [[1000.125 + n % 9, 1000.25, 1000.5, 1000.75] for n in range(8_000)]
    frames = [frame(n, url="https://a.example/", masked_rects=rectangles) for n in range(25)]
    assert caller.add_frames(session_id, *frames).status_code == 202
    url = f"/v1/sessions/{session_id}"
    assert caller.post(f"{url}/stop").status_code == 200
    states = []
    for step in (lambda: None, lambda: seal_waiting(sealer), lambda: sweep(caller, sealer, session_id)):
        step()
        events, shown = read_pages(caller, f"{url}/events"), read_pages(caller, f"{url}/frames")
        assert sorted(item["data"]["n"] for page in events for item in page) == list(range(200))
        assert len({item["id"] for page in shown for item in page}) == 25
        assert len(events) >= 3 and len(shown) >= 2
        detail = caller.get(f"{url}?include=events").json()
        assert detail["events"] == events[0] and detail["events_truncated"]
        states.append((events, shown))
    assert states[0] == states[1] == states[2]


def test_a_page_has_at_least_one_item_however_large(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAGE_BYTES", 1)
    session_id = caller.make_session()
    assert caller.add_events(session_id, event(1), event(2)).status_code == 202
    assert caller.add_frames(session_id, frame(1), frame(2)).status_code == 202
    for kind in ("events", "frames"):
        page = caller.get(f"/v1/sessions/{session_id}/{kind}").json()
        assert len(page["data"]) == 1 and page["has_more"]
