"""Hostile order, repetition and load: cases 83 to 85 and 88 to 93. Contract §1 (idempotency), §2, §3."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from recorder.access.keys import authenticate_key
from recorder.access.rate_limits.stream_slots import StreamSlot, StreamSlots
from tests.support.factories import Caller, Service, event, frame
from tests.support.hostile_cases import CANARY, Refused, case, judge, nothing_stored
from tests.support.recorded_sessions import execute


@pytest.mark.parametrize(
    ("status", "method", "path", "body"),
    [
        case(83, "stopped", "POST", "/start", None, name="start-a-stopped-one"),
        case(84, "created", "POST", "/stop", None, name="stop-a-created-one"),
        case(85, "stopped", "POST", "/events", {"events": [event(1)]}, name="events-to-a-stopped-one"),
        case(85, "created", "POST", "/events", {"events": [event(1)]}, name="events-to-a-created-one"),
        case(85, "stopped", "POST", "/frames", {"frames": [frame(1)]}, name="frames-to-a-stopped-one"),
        case(85, "created", "POST", "/tags", {"name": "seen"}, name="tag-on-a-created-one"),
    ],
)
def test_what_a_state_does_not_admit_is_refused(
    caller: Caller, status: str, method: str, path: str, body: Any
) -> None:
    session_id = caller.make_session(status=status)
    with nothing_stored(caller.service.runtime):
        answer = caller.request(method, f"/v1/sessions/{session_id}{path}", json=body)
        judge(answer, Refused(409, "invalid_state", extra={"current_status": status}))


#: A POST, and two bodies of it.
KEYED: dict[str, tuple[str, Any, Any]] = {
    "session": ("/v1/sessions", {"workflow": "checkout"}, {"workflow": "refund"}),
    "tag": ("/v1/sessions/{id}/tags", {"name": "a"}, {"name": "b"}),
    "events": ("/v1/sessions/{id}/events", {"events": [event(1)]}, {"events": [event(2)]}),
    "frames": ("/v1/sessions/{id}/frames", {"frames": [frame(1)]}, {"frames": [frame(2)]}),
    "export": (
        "/v1/exports",
        {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}},
        {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}, "tag": "b"},
    ),
    "key": ("/v1/keys", {"label": "a", "scope": "read"}, {"label": "b", "scope": "read"}),
}


@pytest.mark.parametrize("name", [case(88, name, name=name) for name in KEYED])
def test_one_key_is_for_one_body(caller: Caller, name: str) -> None:
    path, first, second = KEYED[name]
    address = path.format(id=caller.make_session())
    answer = caller.post(address, first, key=CANARY)
    assert answer.status_code in (201, 202), answer.text
    with nothing_stored(caller.service.runtime):
        judge(caller.post(address, second, key=CANARY), Refused(422, "idempotency_key_reused"))
        assert caller.post(address, first, key=CANARY).headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("requests", [case(89, 8, name="eight-at-once")])
def test_one_key_is_carried_out_once_however_many_send_it_at_once(caller: Caller, requests: int) -> None:
    answers: list[Any] = []
    begin = threading.Barrier(requests)

    def create() -> None:
        begin.wait()
        answers.append(caller.post("/v1/sessions", {"workflow": "once"}, key="one"))

    threads = [threading.Thread(target=create) for _ in range(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waiting = [answer for answer in answers if answer.status_code != 201]
    for answer in waiting:
        judge(answer, Refused(409, "idempotency_in_progress"))
        assert answer.headers["retry-after"] == "1"
    assert len(waiting) < requests
    assert len(caller.get("/v1/sessions?workflow=once").json()["data"]) == 1


@pytest.mark.parametrize("named", [case(90, CANARY, name="another"), case(90, "K", name="other-case")])
def test_two_keys_of_one_request_are_refused(caller: Caller, named: str) -> None:
    with nothing_stored(caller.service.runtime):
        body = {"workflow": "checkout", "idempotency_key": named}
        judge(caller.post("/v1/sessions", body, key="k"), Refused(422, "validation_failed"))


@pytest.mark.parametrize(
    "key",
    [
        case(91, "k" * 256, name="256-letters"),
        case(91, "", name="empty"),
        case(91, " ", name="blank"),
        case(91, "a b", name="space"),
        case(91, "a\tb", name="tab"),
        case(91, "a\x1b[31m", name="ANSI"),
        case(91, "ä", name="no-ASCII"),
    ],
)
@pytest.mark.parametrize("name", KEYED)
def test_a_malformed_key_is_refused(caller: Caller, name: str, key: str) -> None:
    path, body, _ = KEYED[name]
    address = path.format(id=caller.make_session())
    with nothing_stored(caller.service.runtime):
        headers = {"Idempotency-Key": key.encode("latin-1")}
        answer = caller.request("POST", address, json=body, headers=headers)
        judge(answer, Refused(422, "validation_failed", "invalid_string", "Idempotency-Key", "header"))


@pytest.fixture
def full(service: Service) -> Iterator[Caller]:
    """Yield a key that has as many streams open as it may."""
    caller = service.make_caller(tier="default")
    slots: StreamSlots = caller.service.app.state.stream_slots
    runtime = caller.service.runtime
    with runtime.database.transaction(write=False) as db:
        known = authenticate_key(db, caller.key.key, secret=runtime.settings.secret)

    async def fill() -> list[StreamSlot]:
        return [await slots.acquire(known) for _ in range(known.tier.streams_per_key)]

    async def free(held: list[StreamSlot]) -> None:
        for slot in held:
            slots.release(slot)
        await asyncio.sleep(0)

    portal = caller.service.client.portal
    assert portal is not None
    held = portal.call(fill)
    yield caller
    portal.call(free, held)


@pytest.mark.parametrize("kind", [case(92, "stream", name="SSE")])
def test_one_stream_more_than_allowed_is_refused(full: Caller, kind: str) -> None:
    address = f"/v1/sessions/{full.make_session()}/events/{kind}"
    with nothing_stored(full.service.runtime):
        answer = full.get(address)
        judge(answer, Refused(429, "too_many_streams"))
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize(
    "position",
    [
        case(93, item, name=ascii(item)[1:12])
        for item in ("abc", "", "-1", "+1", "1.0", "1e3", "01", "٣", " 1", "99999", "9" * 5_000, CANARY)
    ],
)
def test_a_position_that_no_stream_gave_out_is_refused(caller: Caller, position: str) -> None:
    address = f"/v1/sessions/{caller.make_session()}/events/stream"
    headers = {"Last-Event-ID": position.encode("utf-8")}
    judge(caller.request("GET", address, headers=headers), Refused(400, "invalid_event_id"))


@pytest.mark.parametrize("minutes", [case(93, 31, name="31-minutes-old")])
def test_a_position_that_is_too_old_cannot_be_resumed(caller: Caller, minutes: int) -> None:
    session_id = caller.make_session()
    caller.add_events(session_id, event(1), event(2))
    runtime = caller.service.runtime
    moved = "UPDATE event_batches SET received_ms = received_ms - :ms WHERE session_id = :id"
    execute(runtime, moved, ms=minutes * 60_000, id=session_id)
    answer = caller.get(f"/v1/sessions/{session_id}/events/stream", **{"Last-Event-ID": "2"})
    judge(answer, Refused(410, "resume_window_expired"))
