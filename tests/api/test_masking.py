"""Recorded content is masked before it is stored, streamed or sent. Contract §3 (masking), §8."""

from typing import Any

import pytest

from recorder.masking.detectors import derive_masking_key, list_subject_digests
from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, Service, event, frame, multipart, picture
from tests.support.masking import (
    ADA,
    EVERYTHING,
    pattern,
    read_events,
    set_masking,
    shown,
    shown_json,
    snapshots,
    told,
)

ACCOUNTS = {"patterns": [pattern("account", r"ACC-[0-9]{4}", "[account]")]}


def test_nothing_is_masked_until_it_is_turned_on(caller: Caller) -> None:
    session_id = caller.make_session(metadata={"mail": ADA}, actor={"id": ADA, "kind": "human"})
    caller.add_events(session_id, event(title=ADA))
    session = caller.get(f"/v1/sessions/{session_id}").json()
    assert (session["metadata"], session["actor"]["id"]) == ({"mail": ADA}, ADA)
    assert read_events(caller, session_id)[0]["title"] == ADA


def test_every_text_of_an_event_is_masked(caller: Caller) -> None:
    set_masking(caller, EVERYTHING)
    session_id = caller.make_session()
    sent = event(
        7,
        "fill",
        frame_id="frm_4111111111111111",
        url=f"https://x.example/?to={ADA}",
        target={"name": ADA, "attrs": {ADA: "x", "href": f"mailto:{ADA}"}, "selectors": [[f"text/{ADA}"]]},
        input={"value": ["4111 1111 1111 1111", "x"], "point": [1, 2.5]},
        signals=[{"type": "dialog", "message": ADA}],
        data={"deep": [{"key": "nsk_live_" + "a" * 49, ADA: 4111111111111111}]},
    )
    assert caller.add_events(session_id, sent, event(8, "click")).status_code == 202
    (masked, untouched) = read_events(caller, session_id)
    del masked["id"]
    assert shown_json(masked) == {
        "t_ms": 7,
        "type": "fill",
        "frame_id": "frm_4111111111111111",
        "url": "https://x.example/?to=‹email›",
        "target": {
            "name": "‹email›",
            "attrs": {"‹email›": "x", "href": "mailto:‹email›"},
            "selectors": [["text/‹email›"]],
        },
        "input": {"value": ["‹card›", "x"], "point": [1, 2.5], "masked": True},
        "signals": [{"type": "dialog", "message": "‹email›"}],
        "data": {"deep": [{"key": "‹token›", "‹email›": 4111111111111111}]},
    }
    assert untouched == {"id": untouched["id"], "t_ms": 8, "type": "click"}


@pytest.mark.parametrize(
    ("given", "is_marked"),
    [
        ({"value": ADA}, True),
        ({"value": [ADA]}, True),
        ({"files": [f"{ADA}.csv"]}, True),
        ({"key": ADA}, True),
        ({"value": ADA, "masked": False}, True),
        ({"secret_ref": ADA}, None),
        ({"value": "x"}, None),
        ({"value": "x", "masked": False}, False),
    ],
)
def test_input_that_was_touched_is_marked(caller: Caller, given: Any, is_marked: bool | None) -> None:
    set_masking(caller, EVERYTHING)
    session_id = caller.make_session()
    caller.add_events(session_id, event(title=ADA, input=given))
    assert read_events(caller, session_id)[0]["input"].get("masked") is is_marked


@pytest.mark.parametrize(
    "written", [r"ada\u0040example.com", "ada@example.com", r"\u0061da@example\u002ecom"]
)
def test_no_escape_in_the_body_hides_a_text(caller: Caller, written: str) -> None:
    set_masking(caller, EVERYTHING)
    session_id = caller.make_session()
    body = f'{{"events":[{{"t_ms":0,"type":"click","title":"{written}"}}]}}'
    assert caller.post_raw(f"/v1/sessions/{session_id}/events", body.encode()).status_code == 202
    assert shown(read_events(caller, session_id)[0]["title"]) == "‹email›"


def test_metadata_actor_and_webhook_events_are_masked(caller: Caller) -> None:
    set_masking(caller, EVERYTHING)
    metadata = {"to": [ADA], ADA: {"n": 1}}
    session_id = caller.make_session(metadata=metadata, actor={"id": ADA, "kind": "human"})
    session = caller.get(f"/v1/sessions/{session_id}").json()
    assert shown_json(session["metadata"]) == {"to": ["‹email›"], "‹email›": {"n": 1}}
    assert shown(session["actor"]["id"]) == "‹email›"
    assert ADA not in str(told(caller.service.runtime, session_id))


def test_tags_are_masked_before_they_are_told(caller: Caller) -> None:
    set_masking(caller, EVERYTHING)
    session_id = caller.make_session()
    tag = caller.post(
        f"/v1/sessions/{session_id}/tags", {"name": f"for {ADA}", "data": {"card": "4111111111111111"}}
    )
    assert (tag.status_code, shown(tag.json()["name"])) == (201, "for ‹email›")
    assert shown_json(tag.json()["data"]) == {"card": "‹card›"}
    assert caller.get(f"/v1/sessions/{session_id}/tags").json()["data"] == [tag.json()]
    assert ADA not in str(told(caller.service.runtime, session_id))


@pytest.mark.parametrize("form", ["json", "multipart"])
def test_frames_lose_what_their_address_and_snapshot_say(caller: Caller, form: str) -> None:
    set_masking(caller, EVERYTHING)
    session_id = caller.make_session()
    dom = {"v": 1, "format": "nodes", "html": ["p", {"title": ADA, "class": "x"}, "card 4111-1111-1111-1111"]}
    named_frame = {"id": "frm_a", "url": f"https://x.example/?q={ADA}", "dom": dom}
    if form == "json":
        answer = caller.add_frames(session_id, frame(0, 1, **named_frame), frame(1, 2))
    else:
        items = [{"t_ms": 0, "content_type": "image/png", "part": "a", **named_frame}]
        items.append({"t_ms": 1, "content_type": "image/png", "part": "b"})
        files = multipart(items, a=picture(1), b=picture(2))
        answer = caller.request("POST", f"/v1/sessions/{session_id}/frames", files=files)
    assert answer.status_code == 202, answer.text
    stored = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]
    assert [shown(item["url"] or "") for item in stored] == ["https://x.example/?q=‹email›", ""]
    (snapshot,) = snapshots(caller.service.runtime, session_id)
    assert shown_json(snapshot["html"]) == ["p", {"title": "‹email›", "class": "x"}, "card ‹card›"]
    image = caller.get(f"/v1/sessions/{session_id}/frames/frm_a/image").content
    assert image == picture(1)


def test_names_of_the_contract_s_own_members_stay(caller: Caller) -> None:
    set_masking(
        caller,
        {"patterns": [pattern("word", "^(events|title|target|name|input|value|url|dom|masked|t_ms)$")]},
    )
    session_id = caller.make_session()
    sent = event(title="title", target={"name": "name"}, input={"value": "value"}, data={"value": "x"})
    assert caller.add_events(session_id, sent).status_code == 202
    assert (
        caller.add_frames(
            session_id, frame(url="url", dom=snapshot(["p", "url"]) | {"dom": "url"})
        ).status_code
        == 202
    )
    (stored,) = read_events(caller, session_id)
    del stored["id"]
    assert shown_json(stored) == {
        "t_ms": 0,
        "type": "click",
        "title": "‹word›",
        "target": {"name": "‹word›"},
        "input": {"value": "‹word›", "masked": True},
        "data": {"‹word›": "x"},
    }
    (seen,) = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]
    assert (shown(seen["url"]), shown_json(snapshots(caller.service.runtime, session_id))) == (
        "‹word›",
        [snapshot(["p", "‹word›"]) | {"‹word›": "‹word›"}],
    )


def test_a_workflow_masks_on_top_of_its_workspace(caller: Caller) -> None:
    set_masking(caller, {"builtins": ["email"]})
    set_masking(caller, ACCOUNTS, workflow="billing")
    titles = {}
    for workflow in ("billing", "other"):
        session_id = caller.make_session(workflow=workflow, metadata={"a": "ACC-1234"})
        for t_ms in range(2):  # the second finds the workflow remembered
            caller.add_events(session_id, event(t_ms, title=f"{ADA} ACC-1234"))
        caller.add_frames(session_id, frame(url="ACC-1234"))
        caller.post(f"/v1/sessions/{session_id}/tags", {"name": "ACC-1234"})
        detail = caller.get(f"/v1/sessions/{session_id}?include=tags").json()
        urls = [item["url"] for item in caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]]
        texts = [*(item["title"] for item in read_events(caller, session_id)), *urls]
        titles[workflow] = [
            shown(text) for text in (*texts, detail["tags"][0]["name"], detail["metadata"]["a"])
        ]
    assert titles["billing"] == [*["‹email› [account]‹account›"] * 2, *["[account]‹account›"] * 3]
    assert titles["other"] == [*["‹email› ACC-1234"] * 2, *["ACC-1234"] * 3]


def test_a_workflow_alone_may_mask(caller: Caller) -> None:
    set_masking(caller, {"builtins": ["email"]}, workflow="billing")
    kept = {}
    for workflow in ("billing", "other"):
        session_id = caller.make_session(workflow=workflow)
        caller.add_events(session_id, event(title=ADA))
        kept[workflow] = shown(read_events(caller, session_id)[0]["title"])
    assert kept == {"billing": "‹email›", "other": ADA}


def test_masking_holds_from_the_change_on(caller: Caller) -> None:
    session_id = caller.make_session()
    policies: list[dict[str, Any]] = [{}, EVERYTHING, {}]
    for t_ms, policy in enumerate(policies):
        set_masking(caller, policy)
        caller.add_events(session_id, event(t_ms, title=ADA))
    assert [shown(item["title"]) for item in read_events(caller, session_id)] == [ADA, "‹email›", ADA]


def test_tokens_tell_equal_values_within_a_workspace_alone(service: Service) -> None:
    tokens = []
    for caller in (service.make_caller(), service.make_caller()):
        set_masking(caller, EVERYTHING)
        metadata = {"one": ADA, "other": "Ada@Example.com"}
        session_id = caller.make_session(metadata=metadata)
        tokens += caller.get(f"/v1/sessions/{session_id}").json()["metadata"].values()
    assert tokens[0] == tokens[1] != tokens[2] == tokens[3]


def test_a_masked_person_is_found_by_recomputing_the_token(caller: Caller) -> None:
    set_masking(caller, {"builtins": ["email"], **ACCOUNTS})
    session_id = caller.make_session(actor={"id": ADA, "kind": "human"}, metadata={"a": "ACC-1234"})
    session = caller.get(f"/v1/sessions/{session_id}").json()
    key = derive_masking_key(caller.service.runtime.settings.secret, caller.key.workspace_id)
    for subject, stored in ((ADA, session["actor"]["id"]), ("ACC-1234", session["metadata"]["a"])):
        assert any(f":{digest}›" in stored for digest in list_subject_digests(key, subject))
