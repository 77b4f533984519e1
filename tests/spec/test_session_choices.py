"""Contract §2 (sessions), row by row: what the specification leaves open."""

import pytest

from recorder import clock
from tests.support.factories import Caller, assert_problem, event, footprint, frame
from tests.support.recorded_sessions import outbox_types
from tests.support.specification_checks import Rows

ROWS = Rows()
STARTED = "2024-02-29T10:00:00.000Z"


@pytest.mark.parametrize("name", ROWS)
def test_contract_2(caller: Caller, name: str) -> None:
    ROWS[name](caller)


@ROWS.row("nothing stops a session by itself; a call that changes nothing emits nothing")
def check_nothing_stops_a_session_by_itself_a_call_that_changes(caller: Caller) -> None:
    session_id = caller.make_session()
    for _ in range(3):
        assert caller.post(f"/v1/sessions/{session_id}/start").json()["status"] == "recording"
    assert outbox_types(caller.service.runtime, session_id) == ["session.created", "session.started"]


@ROWS.row("actor: if sent, id and kind both; null is no actor")
def check_actor_if_sent_id_and_kind_both_null_is_no_actor(caller: Caller) -> None:
    session_id = caller.make_session(actor=None)
    assert caller.get(f"/v1/sessions/{session_id}").json()["actor"] is None
    answer = caller.post("/v1/sessions", {"workflow": "checkout", "actor": {"id": "ada"}})
    assert_problem(answer, 422, "validation_failed")


@ROWS.row("duration_ms: stopped_at − started_at, 0 until stopped")
def check_duration_ms_stopped_at_started_at_0_until_stopped(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(60_000))
    assert caller.get(f"/v1/sessions/{session_id}").json()["duration_ms"] == 0
    stopped = caller.post(f"/v1/sessions/{session_id}/stop").json()
    start, end = (clock.parse_time(stopped[name], name=name) for name in ("started_at", "stopped_at"))
    assert stopped["duration_ms"] == clock.to_ms(end) - clock.to_ms(start) < 60_000


@ROWS.row("import: started_at with start, the end is the largest t_ms")
def check_import_started_at_with_start_the_end_is_the_largest_t(caller: Caller) -> None:
    session_id = caller.make_session(started_at=STARTED)
    caller.add_events(session_id, event(5_000), event(90_000), event(10))
    caller.add_frames(session_id, frame(60_000))
    stopped = caller.post(f"/v1/sessions/{session_id}/stop").json()
    assert (stopped["started_at"], stopped["stopped_at"]) == (STARTED, "2024-02-29T10:01:30.000Z")
    assert stopped["duration_ms"] == 90_000


@ROWS.row("import: without contents it ends as it starts")
def check_import_without_contents_it_ends_as_it_starts(caller: Caller) -> None:
    session_id = caller.make_session(started_at="2024-02-29T12:00:00+02:00", status="stopped")
    stopped = caller.get(f"/v1/sessions/{session_id}").json()
    assert (stopped["started_at"], stopped["stopped_at"], stopped["duration_ms"]) == (STARTED, STARTED, 0)


@ROWS.row("import: since and until of the list bound created_at all the same")
def check_import_since_and_until_of_the_list_bound_created_at(caller: Caller) -> None:
    session_id = caller.make_session(started_at=STARTED)
    assert [item["id"] for item in caller.get("/v1/sessions?since=1h").json()["data"]] == [session_id]


@ROWS.row("outcome: the last mark in (t_ms, id) order, not in the order of sending")
def check_outcome_the_last_mark_in_t_ms_id_order_not_in_the(caller: Caller) -> None:
    session_id = caller.make_session(started_at=STARTED)
    caller.add_events(session_id, event(50, "success"), event(20, "error"), event(99))
    assert caller.post(f"/v1/sessions/{session_id}/stop").json()["outcome"] == "success"


@ROWS.row("outcome: tags and events weigh alike")
def check_outcome_tags_and_events_weigh_alike(caller: Caller) -> None:
    session_id = caller.make_session(started_at=STARTED)
    address = f"/v1/sessions/{session_id}"
    caller.add_events(session_id, event(50, "error"))
    caller.post(f"{address}/tags", {"name": "done", "t_ms": 40})
    assert caller.post(f"{address}/stop").json()["outcome"] == "error"
    caller.post(f"{address}/tags", {"name": "completed", "t_ms": 60})
    assert caller.get(address).json()["outcome"] == "success"


@ROWS.row("outcome: null before the stop, abandoned without a mark")
def check_outcome_null_before_the_stop_abandoned_without_a_mark(caller: Caller) -> None:
    address = f"/v1/sessions/{caller.make_session()}"
    assert caller.get(address).json()["outcome"] is None
    assert caller.post(f"{address}/stop").json()["outcome"] == "abandoned"


@ROWS.row("tag: 201 with its moment, event and frame")
def check_tag_201_with_its_moment_event_and_frame(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(5, id="evt_A1"))
    caller.post(f"/v1/sessions/{session_id}/frames", {"frames": [frame(6, id="frm_A1")]})
    body = {"name": "ready", "t_ms": 7, "event_id": "evt_A1", "frame_id": "frm_A1"}
    tag = caller.post(f"/v1/sessions/{session_id}/tags", body).json()
    assert set(tag) == {"id", "session_id", "name", "data", "t_ms", "event_id", "frame_id", "created_at"}
    assert {name: tag[name] for name in body} == body
    assert tag["id"].startswith("tag_") and tag["session_id"] == session_id


@ROWS.row("tag: t_ms defaults to now while recording, to the end after")
def check_tag_t_ms_defaults_to_now_while_recording_to_the_end(caller: Caller) -> None:
    session_id = caller.make_session()
    address = f"/v1/sessions/{session_id}"
    live = caller.post(f"{address}/tags", {"name": "a"}).json()
    stopped = caller.post(f"{address}/stop").json()
    late = caller.post(f"{address}/tags", {"name": "b"}).json()
    assert 0 <= live["t_ms"] <= stopped["duration_ms"] == late["t_ms"]


@ROWS.row("tag: t_ms of an import defaults to its latest moment")
def check_tag_t_ms_of_an_import_defaults_to_its_latest_moment(caller: Caller) -> None:
    session_id = caller.make_session(started_at=STARTED)
    caller.add_events(session_id, event(4_000))
    assert caller.post(f"/v1/sessions/{session_id}/tags", {"name": "a"}).json()["t_ms"] == 4_000


@ROWS.row("batch_stop: each id answers for itself, duplicates once")
def check_batch_stop_each_id_answers_for_itself_duplicates_once(caller: Caller) -> None:
    made = {status: caller.make_session(status=status) for status in ("recording", "stopped", "created")}
    sent = [made["recording"], made["stopped"], made["created"], made["recording"], "ses_none"]
    answer = caller.post("/v1/sessions:batch_stop", {"ids": sent}).json()
    assert [(item["id"], item["result"], item["status"]) for item in answer["data"]] == [
        (made["recording"], "stopped", "stopped"),
        (made["stopped"], "unchanged", "stopped"),
        (made["created"], "error", "created"),
        ("ses_none", "error", None),
    ]
    assert (answer["stopped"], answer["unchanged"], answer["failed"]) == (1, 1, 2)
    codes = [item["error"]["code"] if "error" in item else None for item in answer["data"]]
    assert codes == [None, None, "invalid_state", "not_found"]


@ROWS.row("batch_stop: 500 ids at once")
def check_batch_stop_500_ids_at_once(caller: Caller) -> None:
    answer = caller.post("/v1/sessions:batch_stop", {"ids": [f"ses_{n}" for n in range(500)]})
    assert (answer.status_code, answer.json()["failed"]) == (200, 500)


@ROWS.row("delete: 204 in any state, then 404")
def check_delete_204_in_any_state_then_404(caller: Caller) -> None:
    for status in ("created", "recording", "stopped"):
        address = f"/v1/sessions/{caller.make_session(status=status)}"
        assert (caller.delete(address).status_code, caller.delete(address).status_code) == (204, 404)


@ROWS.row("delete: gone at once from every read and list")
def check_delete_gone_at_once_from_every_read_and_list(caller: Caller) -> None:
    session_id = caller.make_session(workflow="gone")
    address = f"/v1/sessions/{session_id}"
    caller.post(f"{address}/tags", {"name": "gone"})
    caller.delete(address)
    for part in ("", "/events", "/frames", "/tags", "/frames/frm_1/image"):
        assert_problem(caller.get(f"{address}{part}"), 404, "not_found")
    for query in ("", "?workflow=gone", "?tag=gone", "?status=recording"):
        assert caller.get(f"/v1/sessions{query}").json()["data"] == []


@ROWS.row("delete: takes no data off the disk yet, and tells nobody but the audit log")
def check_delete_takes_no_data_off_the_disk_yet_and_tells_nobody(caller: Caller) -> None:
    session_id = caller.make_session(status="stopped")
    before = footprint(caller.service.runtime)
    caller.delete(f"/v1/sessions/{session_id}")
    after = footprint(caller.service.runtime)
    before["rows"]["audit_entries"] += 1
    before["rows"]["audit_heads"] = after["rows"]["audit_heads"]
    assert (after["rows"], after["objects"]) == (before["rows"], before["objects"])


@ROWS.row("added reads: tags of a session in order")
def check_added_reads_tags_of_a_session_in_order(caller: Caller) -> None:
    address = f"/v1/sessions/{caller.make_session()}/tags"
    sent = [caller.post(address, {"name": "n", "t_ms": t_ms}).json() for t_ms in (9, 1, 5)]
    page = caller.get(address).json()
    assert page == {"data": [sent[1], sent[2], sent[0]], "next_cursor": None, "has_more": False}
