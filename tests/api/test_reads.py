"""Reads of recorded content: formats, pictures, ranges, includes, filters. Spec §4.1; contract §2."""

import base64
import hashlib
import io
from datetime import timedelta
from typing import Any

import orjson
import pyarrow as pa
import pytest

from recorder import clock
from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, assert_problem, event, frame, multipart, picture

FULL_EVENT = event(
    7,
    "fill",
    id="evt_full",
    target={
        "role": "textbox",
        "name": "Amount",
        "tag": "input",
        "text": None,
        "attrs": {"id": "amount", "data-x": "1"},
        "rect": [30, 318.5, 84, 29],
        "selectors": ['aria/Amount[role="textbox"]', ["#host", "#amount"]],
        "near": "Invoice",
        "frame_path": [0, 2],
    },
    input={
        "value": ["a", "b"],
        "masked": False,
        "secret_ref": None,
        "key": "Enter",
        "button": 0,
        "point": [72, 332],
        "modifiers": 2,
        "delta": [0, -120],
        "to": [1.5, 2],
        "files": ["a.pdf"],
    },
    url="https://erp.example/invoices/1042",
    title="Invoice “1042” \u2028 ü",
    app={"name": "chromium", "window": "w", "page": "p1"},
    signals=[{"type": "navigation", "url": "https://erp.example/"}],
    frame_id="frm_A1",
    parent_id="evt_parent",
    state_key="invoice",
    trace={"trace_id": "t", "span_id": "s"},
    data={"n": 1, "x": None, "deep": [{"a": [1, 2.5, True]}]},
)


def test_an_event_reads_back_as_it_was_sent(caller: Caller) -> None:
    session_id = caller.make_session()
    assert caller.add_events(session_id, FULL_EVENT).status_code == 202
    assert caller.get(f"/v1/sessions/{session_id}/events").json()["data"] == [FULL_EVENT]


def test_events_read_as_ndjson_and_as_arrow_hold_the_same(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(9), FULL_EVENT, event(3, title="é"), event(3, "log", data={"a": 1}))
    address = f"/v1/sessions/{session_id}/events"
    listed = caller.get(address).json()["data"]
    lines = caller.get(f"{address}?limit=1", Accept="application/x-ndjson")
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    assert [orjson.loads(line) for line in lines.content.splitlines()] == listed
    arrow = caller.get(address, Accept="text/html, application/vnd.apache.arrow.stream;q=0.5")
    rows = pa.ipc.open_stream(io.BytesIO(arrow.content)).read_all().to_pylist()
    assert [
        {
            **{name: row[name] for name in ("id", "t_ms", "type")},
            **({"frame_id": row["frame_id"]} if row["frame_id"] else {}),
            **orjson.loads(row["payload"]),
        }
        for row in rows
    ] == listed


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("way", ["json", "multipart"])
def test_a_picture_reads_back_to_the_byte(caller: Caller, form: str, way: str) -> None:
    session_id = caller.make_session()
    data, kind = picture(120, format=form), f"image/{form.lower()}"
    address = f"/v1/sessions/{session_id}/frames"
    if way == "json":
        encoded = base64.b64encode(data).decode()
        sent = caller.add_frames(session_id, {"t_ms": 4, "content_type": kind, "data": encoded})
    else:
        item = {"t_ms": 4, "content_type": kind, "part": "ä", "url": "https://a.example/€"}
        sent = caller.request("POST", address, files=multipart([item], **{"ä": data}))
    stored = sent.json()["data"][0]
    assert stored == {
        "id": stored["id"], "t_ms": 4, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data),
    }  # fmt: skip
    assert caller.get(f"{address}/{stored['id']}").json()["url"] in (None, "https://a.example/€")
    image = caller.get(f"{address}/{stored['id']}/image")
    assert (image.content, image.headers["content-type"]) == (data, kind)
    assert image.headers["x-content-type-options"] == "nosniff"


def test_a_frame_reads_back_with_its_members(caller: Caller) -> None:
    session_id = caller.make_session()
    members = {"id": "frm_A1", "keyframe": True, "url": "https://a.example", "active_rect": [0, 0, 4, 4]}
    sent = frame(5, 3, **members, masked_rects=[[1, 1, 2, 2]], dom=snapshot(["html"]), width=16, height=12)
    assert caller.add_frames(session_id, sent, frame(6, 3)).status_code == 202
    full, bare = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]
    shared = {"session_id": session_id, "content_type": "image/png", "width": 16, "height": 12}
    expected = {"bytes": len(picture(3)), "sha256": hashlib.sha256(picture(3)).hexdigest()}
    assert full == {
        **members,
        **shared,
        **expected,
        "t_ms": 5,
        "masked_rects": [[1, 1, 2, 2]],
        "has_dom": True,
    }
    absent = dict.fromkeys(("keyframe", "url", "active_rect", "masked_rects"))
    assert bare == {**absent, **shared, **expected, "id": bare["id"], "t_ms": 6, "has_dom": False}
    assert caller.get(f"/v1/sessions/{session_id}/frames/frm_A1").json() == full


@pytest.mark.parametrize(
    ("range_header", "status", "slice_", "content_range"),
    [
        ("bytes=0-3", 206, slice(0, 4), "bytes 0-3/{n}"),
        ("bytes=5-", 206, slice(5, None), "bytes 5-{last}/{n}"),
        ("bytes=-4", 206, slice(-4, None), "bytes {tail}-{last}/{n}"),
        ("bytes=-99999", 206, slice(0, None), "bytes 0-{last}/{n}"),
        ("bytes=0-99999", 206, slice(0, None), "bytes 0-{last}/{n}"),
        (f"bytes=-{'9' * 20}", 206, slice(0, None), "bytes 0-{last}/{n}"),
        (f"bytes=0-{'9' * 20}", 206, slice(0, None), "bytes 0-{last}/{n}"),
        (f"bytes={'0' * 5_000}1-{'0' * 5_000}3", 206, slice(1, 4), "bytes 1-3/{n}"),
        (f"bytes={'9' * 20}-", 416, slice(0, 0), "bytes */{n}"),
        (f"bytes={'9' * 5_000}-", 416, slice(0, 0), "bytes */{n}"),
        (f"bytes={'9' * 20}-{'9' * 20}", 416, slice(0, 0), "bytes */{n}"),
        ("bytes=99999-", 416, slice(0, 0), "bytes */{n}"),
        ("bytes=-0", 416, slice(0, 0), "bytes */{n}"),
        ("bytes=5-4", 416, slice(0, 0), "bytes */{n}"),
        ("bytes=-", 200, slice(0, None), None),
        ("bytes=0-1,3-4", 200, slice(0, None), None),
        ("frames=0-1", 200, slice(0, None), None),
    ],
)
def test_a_range_of_a_picture(
    caller: Caller, range_header: str, status: int, slice_: slice, content_range: str | None
) -> None:
    session_id = caller.make_session()
    caller.add_frames(session_id, frame(0, 2), frame(1, 5, id="frm_A1"))
    data = picture(5)
    answer = caller.get(f"/v1/sessions/{session_id}/frames/frm_A1/image", Range=range_header)
    size = {"n": len(data), "last": len(data) - 1, "tail": len(data) - 4}
    assert answer.status_code == status
    if status == 416:
        assert_problem(answer, 416, "range_not_satisfiable")
    else:
        assert answer.content == data[slice_]
    assert answer.headers.get("content-range") == (content_range and content_range.format(**size))


def test_a_range_with_a_validator_is_the_whole_picture(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_frames(session_id, frame(1, 5, id="frm_A1"))
    headers = {"Range": "bytes=0-3", "If-Range": '"old"'}
    answer = caller.get(f"/v1/sessions/{session_id}/frames/frm_A1/image", **headers)
    assert (answer.status_code, answer.content) == (200, picture(5))


def test_include_embeds_what_it_names(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(2), event(1))
    largest = picture(1, size=(14, 16))  # of the most pixels, but not the widest
    data = base64.b64encode(largest).decode()
    caller.add_frames(session_id, frame(3), frame(9, data=data))
    tag = caller.post(f"/v1/sessions/{session_id}/tags", {"name": "seen"}).json()
    address = f"/v1/sessions/{session_id}"
    plain = caller.get(address).json()
    assert not {"events", "tags", "frames_summary"} & set(plain)
    full = caller.get(f"{address}?include=tags,events,frames_summary").json()
    assert [item["t_ms"] for item in full["events"]] == [1, 2]
    assert (full["tags"], full["events_truncated"]) == ([tag], False)
    assert full["frames_summary"] == {
        "count": 2, "keyframes": None, "bytes": len(picture(0)) + len(largest), "first_t_ms": 3,
        "last_t_ms": 9, "width": 14, "height": 16, "content_types": ["image/png"],
        "storage": {"hot": 2, "cold": 0},
    }  # fmt: skip
    assert {name: value for name, value in full.items() if name in plain} == plain


def test_include_embeds_at_most_1000_events(caller: Caller) -> None:
    session_id = caller.make_session()
    for _ in range(10):
        caller.add_events(session_id, *[event(1)] * 100)
    address = f"/v1/sessions/{session_id}?include=events"
    assert caller.get(address).json()["events_truncated"] is False
    caller.add_events(session_id, event(0))
    full = caller.get(address).json()
    assert (len(full["events"]), full["events_truncated"], full["events"][0]["t_ms"]) == (1_000, True, 0)
    assert caller.get(full["events_url"]).status_code == 200


def test_sessions_are_listed_by_every_filter(caller: Caller) -> None:
    def ids(query: str) -> set[str]:
        return {session["id"] for session in caller.get(f"/v1/sessions?{query}").json()["data"]}

    human = caller.make_session(workflow="pay", actor={"id": "ada", "kind": "human"}, status="stopped")
    model = caller.make_session(workflow="ship", actor={"id": "bot", "kind": "model"})
    bare = caller.make_session(workflow="sell", status="created")
    caller.post(f"/v1/sessions/{human}/tags", {"name": "success"})
    caller.post(f"/v1/sessions/{model}/tags", {"name": "seen"})
    cases: dict[str, Any] = {
        "": {human, model, bare},
        "workflow=pay": {human},
        "workflow=pay&workflow=sell": {human, bare},
        "workflow=nobody_knows_it": set(),
        "status=recording": {model},
        "status=sealed": set(),
        "outcome=success": {human},
        "outcome=abandoned": set(),
        "actor.kind=model": {model},
        "actor.kind=script": set(),
        "tag=seen": {model},
        "tag=see": set(),
        "workflow=pay&status=stopped&outcome=success&actor.kind=human&tag=success&since=1h": {human},
        "since=1h": {human, model, bare},
        "until=1h": set(),
    }
    assert {query: ids(query) for query in cases} == cases


def test_since_is_inclusive_and_until_exclusive(caller: Caller) -> None:
    session = caller.get(f"/v1/sessions/{caller.make_session()}").json()
    created = clock.parse_time(session["created_at"], name="created_at")
    later = clock.to_iso(created + timedelta(milliseconds=1))

    def count(query: str) -> int:
        return len(caller.get(f"/v1/sessions?{query}").json()["data"])

    assert (count(f"since={session['created_at']}"), count(f"since={later}")) == (1, 0)
    assert (count(f"until={session['created_at']}"), count(f"until={later}")) == (0, 1)
    assert count(f"since={session['created_at']}&until={session['created_at']}") == 0


def test_a_type_spelled_with_escapes_marks_the_outcome_too(caller: Caller) -> None:
    session_id = caller.make_session()
    body = b'{"events":[{"t_ms":5,"type":"\\u0065rror"}]}'
    assert caller.post_raw(f"/v1/sessions/{session_id}/events", body).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").json()["outcome"] == "error"
