"""Masking cannot starve anyone: slow patterns are refused, and slow scans stop. Contract §3 (masking)."""

import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlmodel import select

from api.bodies import batch_bodies
from recorder.models.workspace import WorkspaceRow
from tests.support.factories import Caller, assert_problem, event, footprint, frame
from tests.support.masking import pattern, read_events, set_masking, shown

CRAWL = [pattern(f"crawl{n}", rf"(?:[ab]*a[ab]{{30{n}}}c)") for n in range(6)]


@pytest.fixture(autouse=True)
def short(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a small budget, so that the slow bodies can be small too."""
    scanner = caller.service.app.state.masking.scanner
    monkeypatch.setattr(scanner, "budget_s", 0.3)
    monkeypatch.setattr(scanner, "budget_s_per_mb", 0.1)


def store_masking(caller: Caller, policy: dict[str, Any]) -> None:
    """Store settings that a service took before it measured patterns."""
    workspace_id = caller.get("/v1/workspaces/current").json()["id"]
    with caller.service.runtime.database.transaction(write=True) as db:
        row = db.exec(select(WorkspaceRow).where(WorkspaceRow.id == workspace_id)).one()
        row.masking = {"builtins": [], "patterns": [], **policy}
        db.add(row)
    # A change through the API makes the process read the settings again.
    assert caller.request("PATCH", "/v1/workspaces/current", json={}).status_code == 200


def slow_text(size: int, seed: int = 1) -> str:
    """Return a text on which each of the slow patterns takes 2 s a megabyte and more."""
    return "".join(random.Random(seed).choices("ab", k=size))


@pytest.mark.parametrize("path", ["/v1/workspaces/current", "/v1/workflows/checkout"])
def test_a_slow_pattern_is_not_saved_and_its_time_is_told(caller: Caller, path: str) -> None:
    policy = {"patterns": [pattern("quick", "ACC-[0-9]{4}"), CRAWL[0]]}
    before = footprint(caller.service.runtime)
    answer = caller.request("PATCH", path, json={"masking": policy})
    problem = assert_problem(answer, 422, "validation_failed")
    (item,) = problem["errors"]
    assert (item["pointer"], item["code"]) == ("/masking/patterns/1/pattern", "limit_reached")
    assert re.match(r"This needs [0-9,]{3,} ms per MB, at most 250 ms per MB is allowed; ", item["message"])
    assert "[ab]" not in answer.text
    assert footprint(caller.service.runtime) == before


def test_a_body_that_takes_too_long_is_never_stored(caller: Caller) -> None:
    store_masking(caller, {"patterns": [pattern("quick", "ACC-[0-9]{4}"), *CRAWL]})
    session_id = caller.make_session()
    before = footprint(caller.service.runtime)
    items = [event(n, data={"x": slow_text(30_000, n)}) for n in range(10)]
    first = caller.add_events(session_id, *items)
    assert_problem(first, 503, "unavailable")
    assert int(first.headers["retry-after"]) >= 1
    second = assert_problem(caller.add_events(session_id, *items), 422, "limit_reached")
    assert re.search(r"masking pattern `crawl[0-5]`", second["detail"])
    assert footprint(caller.service.runtime) == before
    assert caller.add_events(session_id, event(title="of ACC-1234")).status_code == 202
    assert [shown(item["title"]) for item in read_events(caller, session_id)] == ["of ‹quick›"]


def test_frames_that_take_too_long_are_never_stored(caller: Caller) -> None:
    store_masking(caller, {"patterns": CRAWL})
    session_id = caller.make_session()
    before = footprint(caller.service.runtime)
    dom = {"v": 1, "format": "nodes", "html": ["p", slow_text(300_000)]}
    for status, code in ((503, "unavailable"), (422, "limit_reached")):
        assert_problem(caller.add_frames(session_id, frame(dom=dom)), status, code)
    assert footprint(caller.service.runtime) == before


def test_tags_and_sessions_are_masked_by_patterns_before_their_transaction(caller: Caller) -> None:
    set_masking(caller, {"patterns": [pattern("account", "ACC-[0-9]{4}")]}, workflow="checkout")
    session_id = caller.make_session(metadata={"of": "ACC-1234"})
    assert shown(caller.get(f"/v1/sessions/{session_id}").json()["metadata"]["of"]) == "‹account›"
    tag = caller.post(f"/v1/sessions/{session_id}/tags", {"name": "of ACC-1234", "data": {"ACC-1234": 1}})
    assert shown(tag.json()["name"]) == "of ‹account›"
    assert [shown(key) for key in tag.json()["data"]] == ["‹account›"]


def test_another_workspace_is_answered_while_a_slow_body_is_scanned(caller: Caller) -> None:
    stranger = caller.service.make_caller()
    store_masking(caller, {"patterns": CRAWL})
    set_masking(stranger, {"patterns": [pattern("account", "ACC-[0-9]{4}")]})
    slow_session, session_id = caller.make_session(), stranger.make_session()
    items = [event(n, data={"x": slow_text(60_000, n)}) for n in range(40)]
    answers: list[int] = []

    def attack() -> None:
        answers.append(caller.add_events(slow_session, *items).status_code)

    attackers = [threading.Thread(target=attack) for _ in range(4)]
    for attacker in attackers:
        attacker.start()
    # The slow bodies take seconds each, one after the other; none of these waits for them.
    done_before = [stranger.add_events(session_id, event(n, title="ACC-1234")).status_code for n in range(10)]
    still_slow = sum(attacker.is_alive() for attacker in attackers)
    for attacker in attackers:
        attacker.join()
    assert done_before == [202] * 10 and still_slow >= 1
    assert sorted(answers) in ([422] * 3 + [503], [422] * 2 + [503] * 2, [422] + [503] * 3, [503] * 4)
    assert {shown(item["title"]) for item in read_events(stranger, session_id)} == {"‹account›"}


def test_workspaces_take_turns_at_masking_small_batches(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = caller.service.make_caller()
    for each in (caller, stranger):
        set_masking(each, {"builtins": ["email"]})
    began, go_on, pack = threading.Semaphore(0), threading.Event(), batch_bodies.pack_event_batch

    def pack_slowly(batch_caller: Any, *args: Any) -> Any:
        if batch_caller.workspace_id == caller.key.workspace_id:
            began.release()
            assert go_on.wait(30)
        return pack(batch_caller, *args)

    monkeypatch.setattr(batch_bodies, "pack_event_batch", pack_slowly)
    sessions = {each: each.make_session() for each in (caller, stranger)}
    dirty = event(1, title="ada@example.com")
    with ThreadPoolExecutor(40) as threads:
        flood = [threads.submit(caller.add_events, sessions[caller], dirty) for _ in range(40)]
        try:
            assert all(began.acquire(timeout=30) for _ in range(2))
            assert stranger.add_events(sessions[stranger], dirty).status_code == 202
            assert not began.acquire(blocking=False)
        finally:
            go_on.set()
        assert {request.result().status_code for request in flood} == {202}
