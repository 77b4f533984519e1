"""Masked batches: what comes again, what is too large, what is wrong. Contract §3 (masking), §8."""

import hashlib
from typing import Any

import orjson
import pytest
from sqlmodel import select

from recorder import limits
from recorder.models.event import BatchKeyRow
from tests.support.factories import Caller, assert_problem, event, footprint, frame
from tests.support.masking import ADA, EVERYTHING, pattern, read_events, set_masking, shown


def test_large_patterns_and_large_batches_are_scanned_all_the_same(caller: Caller) -> None:
    set_masking(caller, {"builtins": ["email"], "patterns": [pattern("row", "[ab]{60}")]})
    session_id = caller.make_session()
    items = [event(n, data={"x": "ab " * 10_000, "mail": ADA if n == 20 else ""}) for n in range(21)]
    assert caller.add_events(session_id, *items).status_code == 202
    caller.add_events(session_id, event(30, title="ab" * 30))
    stored = read_events(caller, session_id)
    assert [shown(item.get("data", {}).get("mail", "")) for item in stored] == [""] * 20 + ["‹email›", ""]
    assert shown(stored[-1]["title"]) == "‹row›"


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
