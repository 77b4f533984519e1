"""Contract §3 (events and frames), row by row: answers, order, ids."""

import hashlib
import re

import pytest

from tests.support.factories import Caller, assert_problem, event, footprint, frame, multipart, picture
from tests.support.specification_checks import Rows

ROWS = Rows()


@pytest.mark.parametrize("name", ROWS)
def test_contract_3(caller: Caller, name: str) -> None:
    ROWS[name](caller)


@ROWS.row("events: 202 accepted, duplicates, first_id, last_id, event_count")
def check_events_202_accepted_duplicates_first_id_last_id_event(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(1))
    answer = caller.add_events(session_id, event(9), event(3), event(5))
    body = answer.json()
    assert (answer.status_code, list(body)) == (
        202, ["accepted", "duplicates", "first_id", "last_id", "event_count"],
    )  # fmt: skip
    assert (body["accepted"], body["duplicates"], body["event_count"]) == (3, 0, 4)
    stored = {
        item["t_ms"]: item["id"] for item in caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    }
    assert (body["first_id"], body["last_id"]) == (stored[9], stored[5])


@ROWS.row("events: only type and t_ms are required, and nothing is added but the id")
def check_events_only_type_and_t_ms_are_required_and_nothing_is(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(1))
    (stored,) = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    assert re.fullmatch("evt_[0-9a-z]{26}", stored.pop("id")) and stored == event(1)


@ROWS.row("events: types are an open set")
def check_events_types_are_an_open_set(caller: Caller) -> None:
    session_id = caller.make_session()
    for type in ("a", "own.thing_2", "x" * 64, "pointer_move"):
        assert caller.add_events(session_id, event(1, type)).status_code == 202


@ROWS.row("events: members may be null, and stay so")
def check_events_members_may_be_null_and_stay_so(caller: Caller) -> None:
    session_id = caller.make_session()
    names = ["target", "input", "url", "title", "app", "signals", "parent_id", "state_key", "trace", "data"]
    caller.add_events(session_id, event(1, **dict.fromkeys(names)))
    (stored,) = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    assert {name: stored[name] for name in names} == dict.fromkeys(names)


@ROWS.row("events: a batch may mix named and unnamed ones")
def check_events_a_batch_may_mix_named_and_unnamed_ones(caller: Caller) -> None:
    session_id = caller.make_session()
    accepted = caller.add_events(
        session_id, event(1), event(2, id="evt_B"), event(3), event(4, id="evt_A")
    ).json()
    stored = [item["id"] for item in caller.get(f"/v1/sessions/{session_id}/events").json()["data"]]
    assert (stored[1], stored[3], stored[0], stored[3]) == (
        "evt_B",
        "evt_A",
        accepted["first_id"],
        accepted["last_id"],
    )
    assert len(set(stored)) == 4


@ROWS.row("events: a dropped duplicate moves no other id")
def check_events_a_dropped_duplicate_moves_no_other_id(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(2, id="evt_B"))
    accepted = caller.add_events(session_id, event(1), event(2, id="evt_B"), event(3)).json()
    stored = {
        item["t_ms"]: item["id"] for item in caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    }
    assert (accepted["first_id"], accepted["last_id"]) == (stored[1], stored[3])


@ROWS.row("events: all or nothing, with a pointer")
def check_events_all_or_nothing_with_a_pointer(caller: Caller) -> None:
    session_id = caller.make_session()
    before = footprint(caller.service.runtime)
    answer = caller.add_events(session_id, *[event(1)] * 3, {"t_ms": "1", "type": "click"}, event(1))
    problem = assert_problem(answer, 422, "validation_failed")
    assert [error["pointer"] for error in problem["errors"]] == ["/events/3/t_ms"]
    assert footprint(caller.service.runtime) == before


@ROWS.row("events: order is (t_ms, id) in bytes, on both engines")
def check_events_order_is_t_ms_id_in_bytes_on_both_engines(caller: Caller) -> None:
    session_id = caller.make_session()
    names = ["evt_b", "evt_B", "evt_a1", "evt_A", "evt_10", "evt_9", "evt_aB", "evt_ab"]
    for name in names:
        caller.add_events(session_id, event(5, id=name))
    stored = [item["id"] for item in caller.get(f"/v1/sessions/{session_id}/events").json()["data"]]
    assert stored == sorted(names)


@ROWS.row("frames: 202 accepted, duplicates, data, frame_count")
def check_frames_202_accepted_duplicates_data_frame_count(caller: Caller) -> None:
    session_id = caller.make_session()
    answer = caller.add_frames(session_id, frame(9, 1, id="frm_A"), frame(3, 2))
    body = answer.json()
    assert (answer.status_code, set(body)) == (202, {"accepted", "duplicates", "data", "frame_count"})
    assert (body["accepted"], body["duplicates"], body["frame_count"]) == (2, 0, 2)
    sizes = [(item["t_ms"], item["sha256"], item["bytes"]) for item in body["data"]]
    assert sizes == [
        (t, hashlib.sha256(picture(s)).hexdigest(), len(picture(s))) for t, s in ((9, 1), (3, 2))
    ]
    assert body["data"][0]["id"] == "frm_A"


@ROWS.row("frames: png, jpeg and webp, as JSON or as multipart")
def check_frames_png_jpeg_and_webp_as_json_or_as_multipart(caller: Caller) -> None:
    session_id = caller.make_session()
    kinds = {"a": "PNG", "b": "JPEG", "c": "WEBP"}
    items = [
        {"t_ms": 1, "content_type": f"image/{kind.lower()}", "part": name} for name, kind in kinds.items()
    ]
    parts = {name: picture(9, format=kind) for name, kind in kinds.items()}
    answer = caller.request("POST", f"/v1/sessions/{session_id}/frames", files=multipart(items, **parts))
    assert (answer.status_code, answer.json()["accepted"]) == (202, 3)
    summary = caller.get(f"/v1/sessions/{session_id}?include=frames_summary").json()["frames_summary"]
    assert summary["content_types"] == ["image/jpeg", "image/png", "image/webp"]


@ROWS.row("frames: equal pictures of a session are stored once")
def check_frames_equal_pictures_of_a_session_are_stored_once(caller: Caller) -> None:
    session_id, runtime = caller.make_session(), caller.service.runtime
    caller.add_frames(session_id, *[frame(n, 5) for n in range(10)])
    (key,) = runtime.blobs.keys(f"frames/{caller.key.workspace_id}/{session_id}")
    assert runtime.blobs.get(key) == picture(5)
    caller.add_frames(session_id, frame(11, 5), frame(12, 6))
    assert caller.get(f"/v1/sessions/{session_id}").json()["frame_count"] == 12
    frames = caller.get(f"/v1/sessions/{session_id}/frames?limit=500").json()["data"]
    for item in (frames[0], frames[10], frames[11]):
        image = caller.get(f"/v1/sessions/{session_id}/frames/{item['id']}/image").content
        assert hashlib.sha256(image).hexdigest() == item["sha256"]


@ROWS.row("frames: type, pixels and header are checked before anything is written")
def check_frames_type_pixels_and_header_are_checked_before(caller: Caller) -> None:
    session_id = caller.make_session()
    before = footprint(caller.service.runtime)
    cut = {"t_ms": 1, "content_type": "image/png", "data": frame()["data"][:-16]}
    assert_problem(caller.add_frames(session_id, frame(1), cut), 422, "invalid_image")
    assert footprint(caller.service.runtime) == before


@ROWS.row("ids of clients: evt_ or frm_ and 1 to 40 letters and digits")
def check_ids_of_clients_evt_or_frm_and_1_to_40_letters_and(caller: Caller) -> None:
    session_id = caller.make_session()
    for name in ("1", "aZ", "0" * 40):
        assert caller.add_events(session_id, event(1, id=f"evt_{name}")).json()["accepted"] == 1
        assert caller.add_frames(session_id, frame(1, id=f"frm_{name}")).json()["accepted"] == 1
    for name in ("", "a-b", "0" * 41):
        assert caller.add_events(session_id, event(1, id=f"evt_{name}")).status_code == 422
        assert caller.add_frames(session_id, frame(1, id=f"frm_{name}")).status_code == 422
