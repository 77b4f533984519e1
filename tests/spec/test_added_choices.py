"""Contract §2, §3, §5, §6, row by row: filters, anchors, rectangles, webhooks, labels, batch ids."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from recorder.recording import hot_event_reader, session_events, stored_events
from tests.support.factories import Caller, assert_problem, event, frame
from tests.support.http_exports import BODY
from tests.support.recorded_sessions import execute, outbox_types, session_row
from tests.support.sealing import seal_all
from tests.support.specification_checks import Rows

ROWS = Rows()
NDJSON, ARROW = "application/x-ndjson", "application/vnd.apache.arrow.stream"
HOOK = {"url": "http://127.0.0.1:9/hook", "events": ["session.sealed"], "description": "first"}


@pytest.mark.parametrize("name", ROWS)
def test_added_choice(caller: Caller, name: str) -> None:
    ROWS[name](caller)


def sealed(caller: Caller, session_id: str) -> None:
    """Let a session be stopped, sealed and swept: its rows are in the lake alone."""
    runtime = caller.service.runtime
    caller.post(f"/v1/sessions/{session_id}/stop")
    seal_all(caller.service.runtime)
    execute(runtime, "UPDATE sessions SET sealed_at = '2020-01-01' WHERE id = :id", id=session_id)
    from recorder.sealing import Sealer

    sealer = Sealer(runtime, owner="tests")
    assert sealer.take()
    sealer.maintain()
    sealer.release()
    assert not session_row(runtime, session_id).is_hot


def at_each_stage(caller: Caller, session_id: str, check: Callable[[], None]) -> None:
    """Run a check while a session records, and once it is in the lake alone."""
    check()
    sealed(caller, session_id)
    check()


def times(caller: Caller, session_id: str, query: str) -> list[int]:
    """Return the times of the events that all pages of a query list."""
    statuses: list[int] = []
    cursor = ""
    while True:
        page = caller.get(f"/v1/sessions/{session_id}/events?{query}{cursor}").json()
        statuses += [item["t_ms"] for item in page["data"]]
        if not page["has_more"]:
            assert page["next_cursor"] is None
            return statuses
        cursor = f"&cursor={page['next_cursor']}"


def whole(caller: Caller, session_id: str, query: str, accept: str) -> list[int]:
    """Return the times of the events that a whole read of a query gives."""
    content = caller.get(f"/v1/sessions/{session_id}/events?{query}", Accept=accept).content
    if accept == NDJSON:
        return [json.loads(line)["t_ms"] for line in content.splitlines()]
    table = pa.ipc.open_stream(content).read_all()
    return [int(t_ms) for t_ms in table["t_ms"].to_pylist()]


@ROWS.row("events: type, from_t_ms and to_t_ms, as pages, NDJSON and Arrow, hot and sealed the same")
def check_events_type_from_t_ms_and_to_t_ms_as_pages_ndjson_and(caller: Caller) -> None:
    session_id = caller.make_session()
    for start in (0, 50, 25):
        batch = [event(start + n, "click" if n % 3 else "own.rare") for n in range(40)]
        assert caller.add_events(session_id, *batch).status_code == 202
    stored = [(start + n, "click" if n % 3 else "own.rare") for start in (0, 50, 25) for n in range(40)]

    def check() -> None:
        for query, fits in {
            "type=own.rare": lambda t, kind: kind == "own.rare",
            "type=own.rare&type=click": lambda t, kind: True,
            "type=nothing": lambda t, kind: False,
            "from_t_ms=30": lambda t, kind: t >= 30,
            "to_t_ms=30": lambda t, kind: t < 30,
            "from_t_ms=20&to_t_ms=60&type=own.rare": lambda t, kind: 20 <= t < 60 and kind == "own.rare",
            "from_t_ms=30&to_t_ms=30": lambda t, kind: False,
        }.items():
            expected = sorted(t for t, kind in stored if fits(t, kind))
            assert times(caller, session_id, f"{query}&limit=7") == expected, query
            assert whole(caller, session_id, query, NDJSON) == expected, query
            assert whole(caller, session_id, query, ARROW) == expected, query

    at_each_stage(caller, session_id, check)


@ROWS.row("events: a search for rare types ends a page early and leads on, and misses nothing")
def check_events_a_search_for_rare_types_ends_a_page_early_and(caller: Caller) -> None:
    session_id = caller.make_session()
    for n in range(60):
        kind = "own.rare" if n in (5, 41, 59) else "click"
        caller.add_events(session_id, event(10 * n, kind), event(10 * n + 3))

    def check() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stored_events, "SEARCHED_BATCHES", 4)
            patch.setattr(hot_event_reader, "BOUNDS", hot_event_reader.ReadBounds(searched_batches=4))
            patch.setattr(session_events, "SEARCHED_EVENTS", 1)
            assert times(caller, session_id, "type=own.rare&limit=2") == [50, 410, 590]
            assert times(caller, session_id, "type=nothing") == []
            for accept in (NDJSON, ARROW):
                assert whole(caller, session_id, "type=own.rare", accept) == [50, 410, 590]
                assert whole(caller, session_id, "type=nothing", accept) == []

    at_each_stage(caller, session_id, check)


@ROWS.row("events: the cursor is bound to the filters")
def check_events_the_cursor_is_bound_to_the_filters(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, *(event(n) for n in range(5)))
    path = f"/v1/sessions/{session_id}/events"
    cursor = caller.get(f"{path}?type=click&limit=2").json()["next_cursor"]
    assert caller.get(f"{path}?type=click&limit=3&cursor={cursor}").status_code == 200
    for query in ("", "type=fill", "type=click&from_t_ms=1", "type=click&to_t_ms=9"):
        assert_problem(
            caller.get(f"{path}?{query}&limit=2&cursor={cursor}".replace("?&", "?")), 400, "invalid_cursor"
        )


@ROWS.row("events: a filter that is none is refused by name")
def check_events_a_filter_that_is_none_is_refused_by_name(caller: Caller) -> None:
    path = f"/v1/sessions/{caller.make_session()}/events"
    for query, pointer in (
        ("type=Not A Type", "type"),
        ("from_t_ms=-1", "from_t_ms"),
        ("to_t_ms=1e3", "to_t_ms"),
        ("from_t_ms=1&from_t_ms=2", "from_t_ms"),
        ("&".join(["type=click"] * 51), "type"),
    ):
        problem = assert_problem(caller.get(f"{path}?{query}"), 422, "validation_failed")
        assert [error["pointer"] for error in problem["errors"]] == [pointer], query
    assert_problem(caller.get(f"{path}?from_t_ms=9&to_t_ms=8"), 422, "invalid_range")


@ROWS.row("frames: active_rect and masked_rects read back as they were sent, whole numbers as such")
def check_frames_active_rect_and_masked_rects_read_back_as_they(caller: Caller) -> None:
    session_id = caller.make_session()
    rects = {"active_rect": [1, 2, 3, 4], "masked_rects": [[1, 2.5, 3, 4], [0, 0, 9, 9]]}
    caller.add_frames(session_id, frame(1, id="frm_a", **rects))
    target, given = {"rect": [1, 2, 3, 4]}, {"point": [5, 6.5], "to": [7, 8]}
    caller.add_events(session_id, event(1, target=target, input=given))

    def check() -> None:
        path = f"/v1/sessions/{session_id}"
        for text in (caller.get(f"{path}/frames").text, caller.get(f"{path}/frames/frm_a").text):
            assert '"active_rect":[1,2,3,4]' in text and '"masked_rects":[[1,2.5,3,4],[0,0,9,9]]' in text
        lines = caller.get(f"{path}/events", Accept=NDJSON).text
        columns = pa.ipc.open_stream(caller.get(f"{path}/events", Accept=ARROW).content).read_all()
        for text in (caller.get(f"{path}/events").text, lines, columns["payload"][0].as_py()):
            assert '"rect":[1,2,3,4]' in text and '"point":[5,6.5]' in text and '"to":[7,8]' in text

    at_each_stage(caller, session_id, check)


@ROWS.row("tags: an anchored tag takes the time of its event, else of its frame")
def check_tags_an_anchored_tag_takes_the_time_of_its_event_else(caller: Caller) -> None:
    session_id = caller.make_session()
    named, given = event(700, id="evt_own"), [event(n) for n in (30, 10, 20)]
    caller.add_events(session_id, named, *given)
    caller.add_events(session_id, event(5), event(6, id="evt_other"))
    caller.add_frames(session_id, frame(40, id="frm_own"), frame(50, 9))
    events = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    frames = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]

    def tag(**members: Any) -> int:
        answer = caller.post(f"/v1/sessions/{session_id}/tags", {"name": "seen", **members})
        assert answer.status_code == 201, answer.text
        return int(answer.json()["t_ms"])

    def check() -> None:
        for item in events:
            assert tag(event_id=item["id"]) == item["t_ms"]
        for item in frames:
            assert tag(frame_id=item["id"]) == item["t_ms"]
        assert tag(event_id="evt_own", frame_id="frm_own") == 700
        assert tag(event_id="evt_own", t_ms=3) == 3

    assert len(events) == 6
    at_each_stage(caller, session_id, check)


@ROWS.row("tags: an unknown anchor is 422 at its pointer; the session and its state come first")
def check_tags_an_unknown_anchor_is_422_at_its_pointer_the(caller: Caller) -> None:
    session_id, other = caller.make_session(), caller.make_session()
    caller.add_events(session_id, event(1), event(2, id="evt_here"))
    there = caller.add_events(other, event(1)).json()["first_id"]
    path = f"/v1/sessions/{session_id}/tags"

    def check() -> None:
        for event_id in (
            "evt_missing",
            "evt_01k00000000000000000000000",
            "evt_7zzzzzzzzzzzzzzzzzzzzzzzzz",
            there,
        ):
            for more in ({}, {"t_ms": 5}):
                answer = caller.post(path, {"name": "seen", "event_id": event_id, **more})
                problem = assert_problem(answer, 422, "validation_failed")
                assert [(error["pointer"], error["code"]) for error in problem["errors"]] == [
                    ("/event_id", "unknown_event")
                ]
        both = caller.post(path, {"name": "seen", "event_id": "evt_missing", "frame_id": "frm_missing"})
        pointers = [error["pointer"] for error in assert_problem(both, 422, "validation_failed")["errors"]]
        assert pointers == ["/event_id", "/frame_id"]
        assert caller.get(path).json()["data"] == []

    at_each_stage(caller, session_id, check)
    body = {"name": "seen", "event_id": "evt_missing"}
    assert_problem(caller.post("/v1/sessions/ses_01k00000000000000000000000/tags", body), 404, "not_found")
    created = caller.make_session(status="created")
    assert_problem(caller.post(f"/v1/sessions/{created}/tags", body), 409, "invalid_state")


@ROWS.row("tags: an anchored tag with an Idempotency-Key is stored once")
def check_tags_an_anchored_tag_with_an_idempotency_key_is_stored(caller: Caller) -> None:
    session_id = caller.make_session()
    first_id = caller.add_events(session_id, event(9)).json()["first_id"]
    path, body = f"/v1/sessions/{session_id}/tags", {"name": "seen", "event_id": first_id}
    first, again = (caller.post(path, body, key="once") for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201) and first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true" and len(caller.get(path).json()["data"]) == 1


@ROWS.row("webhooks: PATCH changes url, events, description; secret and deliveries stay; it is audited")
def check_webhooks_patch_changes_url_events_description_secret(caller: Caller) -> None:
    made = caller.post("/v1/webhooks", HOOK).json()
    path = f"/v1/webhooks/{made['id']}"
    delivery = caller.post(f"{path}/test").json()["id"]
    secrets = "SELECT number FROM webhook_secrets WHERE webhook_id = :id"
    change = {
        "url": "http://127.0.0.1:10/other",
        "events": ["session.error", "session.error"],
        "description": "b",
    }
    changed = caller.request("PATCH", path, json=change)
    assert changed.status_code == 200 and "secret" not in changed.json()
    expected = {"url": change["url"], "events": ["session.error"], "description": "b"}
    assert changed.json() == caller.get(path).json() == caller.get(path).json() | expected
    assert [item["id"] for item in caller.get(f"{path}/deliveries").json()["data"]] == [delivery]
    with caller.service.runtime.database.transaction(write=False) as db:
        from sqlalchemy import text

        assert db.connection().execute(text(secrets), {"id": made["id"]}).scalars().all() == [1]
    entries = caller.get("/v1/audit?action=webhook.update").json()["data"]
    (entry,) = [item for item in entries if item["resource"]["id"] == made["id"]]
    assert entry["details"] == {"changed": ["description", "events", "url"], "events": ["session.error"]}
    assert caller.request("PATCH", path, json={}).json() == changed.json()
    assert len(caller.get("/v1/audit?action=webhook.update").json()["data"]) == len(entries)


@ROWS.row("webhooks: PATCH checks what registration checks, and needs admin")
def check_webhooks_patch_checks_what_registration_checks_and(caller: Caller) -> None:
    path = f"/v1/webhooks/{caller.post('/v1/webhooks', HOOK).json()['id']}"
    for change, code, pointer in (
        ({"url": "ftp://127.0.0.1/"}, "invalid_url", "/url"),
        ({"url": "http://10.0.0.1/"}, "url_not_allowed", "/url"),
        ({"events": []}, "validation_failed", "/events"),
        ({"events": ["*"]}, "validation_failed", "/events/0"),
        ({"secret": "whsec_x"}, "validation_failed", "/secret"),
    ):
        problem = assert_problem(caller.request("PATCH", path, json=change), 422, code)
        assert [error["pointer"] for error in problem["errors"]] == [pointer], change
    writer = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write")
    assert_problem(writer.request("PATCH", path, json={"description": "x"}), 403, "insufficient_scope")
    missing = caller.request("PATCH", "/v1/webhooks/whk_01k00000000000000000000000", json={})
    assert_problem(missing, 404, "not_found")
    assert caller.get(path).json()["description"] == "first"


@ROWS.row("exports: GET /v1/exports?tag= lists those with the label")
def check_exports_get_v1_exports_tag_lists_those_with_the_label(caller: Caller) -> None:
    caller.make_session()
    ids = {}
    for tag in ("v1", "v2", None, "v1"):
        ids.setdefault(tag, []).append(caller.post("/v1/exports", BODY | {"tag": tag}).json()["id"])
    listed = [item["id"] for item in caller.get("/v1/exports?tag=v1").json()["data"]]
    assert listed == ids["v1"][::-1]
    first = caller.get("/v1/exports?tag=v1&limit=1").json()
    rest = caller.get(f"/v1/exports?tag=v1&limit=1&cursor={first['next_cursor']}").json()
    assert [item["id"] for item in first["data"] + rest["data"]] == listed and not rest["has_more"]
    assert_problem(caller.get(f"/v1/exports?tag=v2&cursor={first['next_cursor']}"), 400, "invalid_cursor")
    assert caller.get("/v1/exports?tag=v1&status=completed").json()["data"] == []
    assert_problem(caller.get("/v1/exports?tag="), 422, "validation_failed")


@ROWS.row("batch ids: a batch sent again is stored once for as long as its session records")
def check_batch_ids_a_batch_sent_again_is_stored_once_for_as(caller: Caller) -> None:
    session_id = caller.make_session()
    first = caller.add_events(session_id, event(1), key="a")
    frames = caller.add_frames(session_id, frame(1), key="a")
    # Long after the window of other keys.
    runtime = caller.service.runtime
    execute(runtime, "UPDATE event_batches SET received_ms = 0 WHERE session_id = :id", id=session_id)
    from recorder.sealing import Sealer

    sealer = Sealer(runtime, owner="tests")
    assert sealer.take()
    sealer.maintain()
    sealer.release()
    again, pictures = (
        caller.add_events(session_id, event(1), key="a"),
        caller.add_frames(session_id, frame(1), key="a"),
    )
    assert (again.json(), pictures.json()) == (first.json(), frames.json())
    assert again.headers["idempotent-replayed"] == pictures.headers["idempotent-replayed"] == "true"
    assert caller.get(f"/v1/sessions/{session_id}").json()["event_count"] == 1
    assert "session.sealed" not in outbox_types(runtime, session_id)
