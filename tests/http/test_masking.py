"""What is recorded is masked before it is stored, streamed or told. Contract §3 (masking), §8."""

import hashlib
import json
from typing import Any

import orjson
import pytest
import zstandard
from sqlmodel import select

from recorder import limits
from recorder.masking.tokens import masking_key, subject_digests
from recorder.models.event import BatchKeyRow
from recorder.models.frame import FrameRow
from recorder.models.outbox import OutboxRow
from recorder.runtime import Runtime
from tests.factories import Caller, Service, assert_problem, event, footprint, frame, multipart, picture
from tests.masking import ALL, pattern, set_masking, shown

ADA = "ada@example.com"
EVERYTHING = {"builtins": list(ALL), "patterns": []}
ACCOUNTS = {"patterns": [pattern("account", r"ACC-[0-9]{4}", "[account]")]}


def read_events(caller: Caller, session_id: str) -> list[dict[str, Any]]:
    """The events of a session as they are read back."""
    data: list[dict[str, Any]] = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    return data


def shown_json(value: Any) -> Any:
    """A JSON value without the digits of its tokens."""
    return json.loads(shown(json.dumps(value, ensure_ascii=False)))


def told(runtime: Runtime, session_id: str) -> list[Any]:
    """The data of the outbox events about a session."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(OutboxRow).where(OutboxRow.subject_id == session_id)).all()
        return [row.data for row in rows]


def snapshots(runtime: Runtime, session_id: str) -> list[Any]:
    """The DOM snapshots of a session as they lie in the blob store."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(FrameRow).where(FrameRow.session_id == session_id)).all()
    packed = [
        runtime.blobs.get(row.dom_object, row.dom_offset, row.dom_length)
        for row in rows
        if row.dom_object is not None and row.dom_offset is not None and row.dom_length is not None
    ]
    return [orjson.loads(zstandard.ZstdDecompressor().decompress(data)) for data in packed]


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
    told = {"id": "frm_a", "url": f"https://x.example/?q={ADA}", "dom": dom}
    if form == "json":
        answer = caller.add_frames(session_id, frame(0, 1, **told), frame(1, 2))
    else:
        items = [{"t_ms": 0, "content_type": "image/png", "part": "a", **told}]
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
    assert caller.add_frames(session_id, frame(url="url", dom={"dom": "url"})).status_code == 202
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
        [{"‹word›": "‹word›"}],
    )


def test_large_patterns_and_large_batches_are_scanned_all_the_same(caller: Caller) -> None:
    set_masking(caller, {"builtins": ["email"], "patterns": [pattern("row", "[ab]{900}")]})
    session_id = caller.make_session()
    items = [event(n, data={"x": "ab " * 10_000, "mail": ADA if n == 20 else ""}) for n in range(21)]
    assert caller.add_events(session_id, *items).status_code == 202
    caller.add_events(session_id, event(30, title="ab" * 450))
    stored = read_events(caller, session_id)
    assert [shown(item.get("data", {}).get("mail", "")) for item in stored] == [""] * 20 + ["‹email›", ""]
    assert shown(stored[-1]["title"]) == "‹row›"


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
    key = masking_key(caller.service.runtime.settings.secret, caller.key.workspace_id)
    for subject, stored in ((ADA, session["actor"]["id"]), ("ACC-1234", session["metadata"]["a"])):
        assert any(f":{digest}›" in stored for digest in subject_digests(key, subject))


@pytest.mark.parametrize("kind", ["events", "frames"])
def test_a_batch_sent_again_is_told_by_what_was_sent(caller: Caller, kind: str) -> None:
    set_masking(caller, EVERYTHING)
    session_id = caller.make_session()
    path = f"/v1/sessions/{session_id}/{kind}"
    item = event(url=ADA) if kind == "events" else frame(url=ADA)
    first = caller.post(path, {kind: [item]}, key="one")
    again = caller.post(path, {kind: [item]}, key="one")
    other = caller.post(path, {kind: [{**item, "url": "Ada@example.com"}]}, key="one")
    assert (first.status_code, again.content) == (202, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert_problem(other, 422, "idempotency_key_reused")


def test_what_a_batch_held_cannot_be_tried_out(caller: Caller) -> None:
    set_masking(caller, EVERYTHING)
    session_id = caller.make_session()
    body = orjson.dumps({"events": [event(url="4111111111111111")]})
    caller.post_raw(f"/v1/sessions/{session_id}/events", body, **{"Idempotency-Key": ADA})
    with caller.service.runtime.database.transaction(write=False) as db:
        row = db.exec(select(BatchKeyRow).where(BatchKeyRow.session_id == session_id)).one()
    guesses = [hashlib.sha256(body).digest(), hashlib.blake2b(body, digest_size=32).digest()]
    assert ADA not in row.batch_key and bytes(row.body_digest) not in guesses


@pytest.mark.parametrize("kind", ["events", "frames"])
def test_items_that_name_themselves_are_compared_masked(caller: Caller, kind: str) -> None:
    set_masking(caller, EVERYTHING)
    session_id = caller.make_session()
    add = caller.add_events if kind == "events" else caller.add_frames
    make = event if kind == "events" else frame
    own_id = "evt_a" if kind == "events" else "frm_a"
    assert add(session_id, make(3, id=own_id, url=ADA)).json()["accepted"] == 1
    again = add(session_id, make(3, id=own_id, url=ADA), make(9))
    assert (again.json()["accepted"], again.json()["duplicates"]) == (1, 1)
    assert_problem(add(session_id, make(3, id=own_id, url="bob@example.com")), 409, "event_conflict")
    texts = [item.get("url") for item in caller.get(f"/v1/sessions/{session_id}/{kind}").json()["data"]]
    assert [text and shown(text) for text in texts] == ["‹email›", None]


def test_masked_texts_may_exceed_the_caps_of_sent_ones(caller: Caller) -> None:
    set_masking(caller, EVERYTHING)
    metadata = {"m": ["a@b.co"] * 1819}
    session_id = caller.make_session(metadata=metadata)
    long_name = "a@b.co " * 17
    target = {"name": long_name, "attrs": {"x": "a@b.co " * 28}}
    named = event(0, id="evt_a", target=target)
    assert caller.add_events(session_id, named).status_code == 202
    again = caller.add_events(session_id, named, event(1, id="evt_b", target=target))
    assert again.json()["duplicates"] == 1
    tag = caller.post(f"/v1/sessions/{session_id}/tags", {"name": long_name.strip()})
    assert tag.status_code == 201
    assert {len(text) for text in caller.get(f"/v1/sessions/{session_id}").json()["metadata"]["m"]} == {24}
    assert [shown(item["target"]["name"]).count("‹email›") for item in read_events(caller, session_id)] == [
        17
    ] * 2


TOO_LARGE = {
    "event": ("events", {"events": [event(), event(data={"a": ["1"] * 4000})]}, "/events/1"),
    "tag name": ("tags", {"name": "1" * 20}, "/name"),
    "tag data": ("tags", {"name": "x", "data": {"a": ["1"] * 900}}, "/data"),
}


@pytest.mark.parametrize(("part", "body", "pointer"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_what_masking_makes_four_times_too_large_is_refused(
    caller: Caller, part: str, body: Any, pointer: str
) -> None:
    set_masking(caller, {"patterns": [pattern("digit", "[0-9]", "#" * 100)]})
    session_id = caller.make_session()
    before = footprint(caller.service.runtime)
    problem = assert_problem(caller.post(f"/v1/sessions/{session_id}/{part}", body), 422, "validation_failed")
    assert [(item["pointer"], item["code"]) for item in problem["errors"]] == [(pointer, "too_large")]
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"metadata": {"a": ["1"] * 4000}}, "/metadata"),
        ({"actor": {"id": "123", "kind": "human"}}, "/actor/id"),
    ],
)
def test_a_session_that_masking_makes_too_large_is_refused(caller: Caller, body: Any, pointer: str) -> None:
    set_masking(caller, {"patterns": [pattern("digit", "[0-9]", "#" * 100)]})
    answer = caller.post("/v1/sessions", {"workflow": "checkout", **body})
    problem = assert_problem(answer, 422, "validation_failed")
    assert [item["pointer"] for item in problem["errors"]] == [pointer]


def test_size_of_metadata_is_checked_before_masking(caller: Caller) -> None:
    set_masking(caller, EVERYTHING)
    fitting = {"m": "a@b.co " + "x" * (limits.METADATA_BYTES - 15)}
    assert caller.post("/v1/sessions", {"workflow": "checkout", "metadata": fitting}).status_code == 201
    fitting["m"] += "x"
    answer = caller.post("/v1/sessions", {"workflow": "checkout", "metadata": fitting})
    assert_problem(answer, 422, "metadata_too_large")


def test_a_wrong_body_is_refused_as_without_masking(caller: Caller) -> None:
    set_masking(caller, EVERYTHING)
    session_id = caller.make_session()
    path = f"/v1/sessions/{session_id}/events"
    assert_problem(caller.post_raw(path, f'{{"events":[{{"title":"{ADA}"'.encode()), 400, "invalid_json")
    assert_problem(caller.post(path, {"events": [event(-1, title=ADA)]}), 422, "validation_failed")
    missing = caller.post(f"/v1/sessions/{session_id[:-2]}zz/events", {"events": [event(title=ADA)]})
    assert_problem(missing, 404, "not_found")


@pytest.mark.parametrize("path", ["/v1/workspaces/current", "/v1/workflows/checkout"])
def test_a_wrong_expression_is_pointed_at_and_not_repeated(caller: Caller, path: str) -> None:
    policy = {"patterns": [pattern("good", "x"), pattern("bad", "(hush")]}
    answer = caller.request("PATCH", path, json={"masking": policy})
    problem = assert_problem(answer, 422, "validation_failed")
    assert [item["pointer"] for item in problem["errors"]] == ["/masking/patterns/1/pattern"]
    assert "hush" not in answer.text
