"""`GET /v1/sessions/{id}/frames/{frame_id}/dom` in each state of a session. Contract §8."""

from typing import Any

import pytest
import zstandard

from recorder.recording.snapshot_html import SNAPSHOT_POLICY
from tests.support.factories import Caller, assert_problem, frame
from tests.support.recorded_sessions import execute

DOM = {"v": 1, "format": "nodes", "html": ["html", {}, ["body", {"onload": "x()"}, "1 < 2"]]}


@pytest.fixture
def address(caller: Caller) -> str:
    """Return the address of a session's frames: `frm_a` has a snapshot, `frm_b` none, `frm_c` rrweb's.

    The last is stored as releases did that accepted it.
    """
    session_id = caller.make_session()
    sent = [frame(1, id="frm_a", dom=DOM), frame(2, 9, id="frm_b"), frame(3, id="frm_c", dom=DOM)]
    assert caller.add_frames(session_id, *sent).status_code == 202
    runtime = caller.service.runtime
    packed = zstandard.compress(b'{"v": 1, "format": "rrweb", "events": []}')
    key = f"frames/{caller.key.workspace_id}/{session_id}/rrweb"
    runtime.blobs.put(key, packed)
    statement = "UPDATE frames SET dom_object = :key, dom_offset = 0, dom_length = :length"
    execute(runtime, f"{statement} WHERE frame_id = 'frm_c'", key=key, length=len(packed))
    return f"/v1/sessions/{session_id}/frames"


def test_the_snapshot_is_an_attachment_by_default(caller: Caller, address: str) -> None:
    for accept in ("*/*", "application/json", "application/*"):
        answer = caller.get(f"{address}/frm_a/dom", Accept=accept)
        assert answer.status_code == 200, answer.text
    assert answer.json() == DOM
    answer = caller.get(f"{address}/frm_a/dom")
    assert (answer.json(), answer.headers["content-type"]) == (DOM, "application/json")
    assert answer.headers["content-disposition"] == 'attachment; filename="frm_a.json"'
    assert_is_guarded(answer)


def test_the_document_is_inert(caller: Caller, address: str) -> None:
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    answer = caller.get(f"{address}/frm_a/dom", Accept=browser)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "1 &lt; 2" in answer.text and "x()" not in answer.text
    assert "content-disposition" not in answer.headers
    assert_is_guarded(answer)
    head = caller.request("HEAD", f"{address}/frm_a/dom", headers={"Accept": "text/html"})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))


def assert_is_guarded(answer: Any) -> None:
    """Check the headers that keep a browser from running or loading anything."""
    assert answer.headers["content-security-policy"] == SNAPSHOT_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["vary"].lower() == "accept"


def test_a_frame_without_a_snapshot_is_not_found(caller: Caller, address: str) -> None:
    assert assert_problem(caller.get(f"{address}/frm_b/dom"), 404, "not_found")["resource"] == "dom"
    assert assert_problem(caller.get(f"{address}/frm_z/dom"), 404, "not_found")["resource"] == "frame"


def test_a_snapshot_of_another_format_is_json_alone(caller: Caller, address: str) -> None:
    assert caller.get(f"{address}/frm_c/dom").json()["format"] == "rrweb"
    assert_problem(caller.get(f"{address}/frm_c/dom", Accept="text/html"), 406, "not_acceptable")
    assert_problem(caller.get(f"{address}/frm_a/dom", Accept="image/png"), 406, "not_acceptable")


def test_a_snapshot_whose_object_is_gone_is_not_found(caller: Caller, address: str) -> None:
    runtime = caller.service.runtime
    for key in list(runtime.blobs.keys(f"frames/{caller.key.workspace_id}/{address.split('/')[3]}")):
        runtime.blobs.delete(key)
    assert assert_problem(caller.get(f"{address}/frm_a/dom"), 404, "not_found")["resource"] == "frame"
