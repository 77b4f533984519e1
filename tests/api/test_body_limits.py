"""Limits on the work of request bodies: bytes, requests under way, memory, worker processes. Contract §1."""

import asyncio
import json
import mmap
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from api.bodies import body_limits
from api.bodies.body_costs import LARGE_BYTES, is_costly_body
from api.bodies.body_limits import PORTION_BYTES
from api.bodies.body_memory import BodyMemory
from api.bodies.worker_checks import check_json_body_file
from api.bodies.worker_pool import BodyWorkers, open_body_file_for_workers
from api.gate.bucket_decisions import BucketDecision, CallerPlan
from api.gate.rate_limiter import RateLimiter
from recorder import limits
from recorder.access import keys
from recorder.errors import InvalidJson, Overloaded, RateLimited, ValidationFailed
from recorder.ids import new_id
from recorder.models.session import SessionCreate
from recorder.tenant import Tenant
from tests.support.factories import Caller, Service, assert_problem, event, frame
from tests.support.http_service import RunningService, running_service
from tests.support.limiter_clock import TIER, Clock, limit_headers, limited_key, stopped_clock

KEY_BURST = TIER.body_bytes.per_key.burst
WORKSPACE_BURST = TIER.body_bytes.per_workspace.burst
MB = 1024 * 1024


@pytest.fixture
def clock(service: Service) -> Iterator[Clock]:
    """Stop the clock of the buckets, unless a test advances it."""
    with stopped_clock(service) as stopped:
        yield stopped


@pytest.fixture
def caller(service: Service) -> Caller:
    """Return a key of a new workspace with the limits of the specification."""
    return service.make_caller(tier="default")


def plan_of(caller: Caller, *, key_id: str | None = None) -> CallerPlan:
    """Return the limits of a caller on the surface of `other`, or of another key of its workspace."""
    limiting: RateLimiter = caller.service.app.state.rate_limiter
    who = keys.Caller(Tenant(caller.key.workspace_id, "live"), key_id or caller.key.key_id, tier=TIER)
    return limiting.plan_of(who, None)


def send_bytes(caller: Caller, count: int, *, key_id: str | None = None) -> None:
    """Charge bytes, as bodies of the caller (or of another key of its workspace) would."""
    limiting: RateLimiter = caller.service.app.state.rate_limiter
    plan = plan_of(caller, key_id=key_id)

    async def pay() -> None:
        assert (await limiting.pay_bytes(plan, count)).error is None

    caller.service.client.portal.call(pay)  # type: ignore[union-attr]


def bytes_left(caller: Caller) -> int:
    """Return what the key's token bucket of bytes holds."""
    limiting: RateLimiter = caller.service.app.state.rate_limiter
    group = plan_of(caller).only_bytes.group
    grant = limiting.callers.take_tokens_without_waiting(group, cost=0)
    assert grant is not None
    return int(grant[1][0])


def body_of(size: int) -> bytes:
    """Return a batch of events of about so many bytes."""
    text = "x" * 1_000
    return json.dumps({"events": [event(data={"text": text * (size // 100_000)})] * 100}).encode()


# --- bytes per second ---


@pytest.mark.parametrize("scope", ["per_key_bytes", "per_workspace_bytes"])
def test_a_large_body_is_refused_unread_where_the_bytes_are_used_up(
    caller: Caller, clock: Clock, scope: str
) -> None:
    session_id = caller.make_session()
    body = body_of(1_000_000)
    if scope == "per_key_bytes":
        send_bytes(caller, KEY_BURST - 500_000)
    else:
        for left in (KEY_BURST, KEY_BURST - 500_000):
            send_bytes(caller, left, key_id=new_id("key"))
    refused = caller.post_raw(f"/v1/sessions/{session_id}/events", body)
    assert_problem(refused, 429, "rate_limited")
    burst = {"per_key_bytes": KEY_BURST, "per_workspace_bytes": WORKSPACE_BURST}[scope]
    assert limit_headers(refused)[::3] == (burst, scope)
    assert limit_headers(refused)[1] == pytest.approx(500_000, abs=1_000)
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["connection"] == "close"
    # Small requests go on, and say nothing of bytes.
    small = caller.add_events(session_id, event())
    assert small.status_code == 202
    assert limit_headers(small)[3] in ("per_key", "per_workspace")
    clock.now += 1.0
    accepted = caller.post_raw(f"/v1/sessions/{session_id}/events", body)
    assert accepted.status_code == 202


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"[" * 400_000, 400),
        (
            json.dumps({"events": [{"type": "UPPER", "t_ms": n, "title": "x" * 4_000} for n in range(100)]}),
            422,
        ),
        (json.dumps({"events": [event()] * 20_000}), 422),
    ],
)
def test_a_refused_body_costs_its_bytes(
    caller: Caller, clock: Clock, content: str | bytes, status: int
) -> None:
    session_id, before = caller.make_session(), bytes_left(caller)
    assert caller.post_raw(f"/v1/sessions/{session_id}/events", content).status_code == status
    assert before - bytes_left(caller) == pytest.approx(len(content), abs=1_000)


def test_small_bodies_are_charged_together(caller: Caller, clock: Clock) -> None:
    session_id, before = caller.make_session(), bytes_left(caller)
    body = body_of(100_000)[:90_000]  # no JSON any more
    for _ in range(2):
        assert caller.post_raw(f"/v1/sessions/{session_id}/events", body).status_code == 400
    assert bytes_left(caller) == before
    caller.post_raw(f"/v1/sessions/{session_id}/events", body)
    assert before - bytes_left(caller) == 3 * len(body)


def test_a_refused_small_body_costs_nothing_and_leaves_what_is_owed(caller: Caller, clock: Clock) -> None:
    session_id = caller.make_session()
    body = body_of(100_000)[:90_000]  # no JSON any more
    address = f"/v1/sessions/{session_id}/events"
    for _ in range(2):
        assert caller.post_raw(address, body).status_code == 400
    send_bytes(caller, bytes_left(caller) - 100_000)
    for _ in range(2):
        assert_problem(caller.post_raw(address, body), 429, "rate_limited")
    clock.now += 1.0
    before = bytes_left(caller)
    assert caller.post_raw(address, body).status_code == 400
    assert before - bytes_left(caller) == 3 * len(body)


def test_a_refusal_of_a_shared_limiter_leaves_what_is_owed(caller: Caller, clock: Clock) -> None:
    limiting: RateLimiter = caller.service.app.state.rate_limiter
    who = keys.Caller(Tenant(caller.key.workspace_id, "live"), caller.key.key_id, tier=TIER)

    def admit() -> BucketDecision:
        """Admit a body of 90,000 bytes in the way that may wait for Redis."""
        call = partial(limiting.admit, who, None, body_bytes=90_000)
        return caller.service.client.portal.call(call)  # type: ignore[union-attr]

    assert [admit().error for _ in range(2)] == [None, None]
    send_bytes(caller, bytes_left(caller) - 100_000)
    assert all(isinstance(admit().error, RateLimited) for _ in range(2))
    clock.now += 1.0
    before = bytes_left(caller)
    assert admit().error is None
    assert before - bytes_left(caller) == 3 * 90_000


def test_chunks_are_paid_for_as_they_come(caller: Caller, clock: Clock) -> None:
    session_id, before = caller.make_session(), bytes_left(caller)
    sent: list[int] = []

    def chunks(count: int) -> Iterator[bytes]:
        for _ in range(count):
            sent.append(64_000)
            yield b"x" * 64_000

    address = f"/v1/sessions/{session_id}/events"
    assert caller.post_raw(address, chunks(40)).status_code == 400
    # What was paid ahead counts towards the next bodies.
    assert before - bytes_left(caller) + plan_for_events(caller).unpaid == 40 * 64_000
    send_bytes(caller, bytes_left(caller) - PORTION_BYTES // 2)
    plan_for_events(caller).unpaid = 0
    refused = caller.post_raw(address, chunks(40))
    assert_problem(refused, 429, "rate_limited")
    assert limit_headers(refused)[3] == "per_key_bytes"


def plan_for_events(caller: Caller) -> CallerPlan:
    """Return the limits of a caller on the surface of events."""
    limiting: RateLimiter = caller.service.app.state.rate_limiter
    return limiting._plans[caller.key.key_id, "append_events"]


def test_a_body_over_the_cap_costs_nothing_as_nothing_is_read(caller: Caller, clock: Clock) -> None:
    before = bytes_left(caller)
    refused = caller.post_raw("/v1/sessions", b"x" * (limits.BODY_BYTES + 1))
    assert_problem(refused, 413, "payload_too_large")
    assert bytes_left(caller) == before


def test_a_burst_admits_the_largest_request_there_is() -> None:
    assert KEY_BURST >= limits.FRAMES_REQUEST_BYTES


# --- requests under way ---


@pytest.mark.parametrize("scope", ["per_key_concurrency", "per_workspace_concurrency"])
def test_requests_under_way_are_limited(caller: Caller, scope: str) -> None:
    caller.get("/v1/limits")
    plan = plan_of(caller)
    count, most = {
        "per_key_concurrency": (plan.of_key, TIER.requests_per_key),
        "per_workspace_concurrency": (plan.of_workspace, TIER.requests_per_workspace),
    }[scope]
    count.count += most - 1
    assert caller.get("/v1/limits").status_code == 200
    count.count += 1
    refused = caller.get("/v1/limits")
    assert_problem(refused, 429, "rate_limited")
    assert limit_headers(refused)[::3] == (most, scope)
    assert (limit_headers(refused)[1], refused.headers["retry-after"]) == (0, "1")
    count.count -= most
    assert caller.get("/v1/limits").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/limits", 200),
        ("GET", "/v1/nothing", 404),
        ("PUT", "/v1/sessions", 405),
        ("POST", "/v1/sessions", 400),
        ("GET", "/v1/sessions/ses_unknown", 404),
    ],
)
def test_a_request_counts_no_longer_than_it_takes(
    caller: Caller, method: str, path: str, status: int
) -> None:
    plan = plan_of(caller)
    for _ in range(3):
        assert (
            caller.request(
                method,
                path,
                content=b"{" if method == "POST" else None,
                headers={"Content-Type": "application/json"},
            ).status_code
            == status
        )
        assert (plan.of_key.count, plan.of_workspace.count) == (0, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder of the running service of this module."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[RunningService]:
    """Yield a service that listens on a socket."""
    with running_service(folder) as service:
        yield service


def dial(running: RunningService, key: str, *, length: int, sent: bytes = b"{") -> socket.socket:
    """Return a connection on which a request began whose body does not come."""
    address = urlsplit(running.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=20)
    head = (
        f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    connection.sendall(head.encode() + sent)
    return connection


def read_head(connection: socket.socket) -> str:
    """Return the head of an answer, lower case."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65_536)
        assert part, "the connection ended without an answer"
        received += part
    return received.partition(b"\r\n\r\n")[0].decode().lower()


def test_bodies_that_do_not_come_hold_no_more_than_their_number(
    running: RunningService, folder: Path
) -> None:
    key, other = limited_key(folder), limited_key(folder)
    with ExitStack() as stack:
        held = [stack.enter_context(dial(running, key, length=50)) for _ in range(TIER.requests_per_key)]
        deadline = time.monotonic() + 20
        while True:
            with dial(running, key, length=2, sent=b"{}") as one_more:
                head = read_head(one_more)
            if "x-scope: per_key_concurrency" in head:
                break
            assert time.monotonic() < deadline, head
        assert head.startswith("http/1.1 429 ")
        with dial(running, other, length=2, sent=b"{}") as neighbour:
            assert read_head(neighbour).startswith("http/1.1 422 ")
        for connection in held:
            connection.close()
    while True:  # the service learns of it when it reads
        with dial(running, key, length=2, sent=b"{}") as one_more:
            if read_head(one_more).startswith("http/1.1 422 "):
                return
        assert time.monotonic() < deadline + 20


@pytest.mark.parametrize("key", ["nsk_local_unknown", "none at all"])
def test_the_body_of_a_stranger_is_dropped_up_to_the_size_of_the_largest_body(
    running: RunningService, key: str
) -> None:
    with dial(running, key, length=100 * MB, sent=b"x" * 10_000) as connection:
        head = read_head(connection)
        assert head.startswith(("http/1.1 401 ", "http/1.1 429 "))
        assert "connection: close" in head
        sent = 0
        with pytest.raises(OSError):  # the service has gone; its buffers hold some more
            while sent < 100 * MB:
                sent += connection.send(b"x" * 65_536)
        assert sent < limits.LINGERING_BYTES + 20 * MB


@pytest.mark.parametrize(("is_revoked", "status"), [(True, 401), (False, 400)])
def test_a_key_that_is_revoked_while_its_body_arrives_slowly_is_refused(
    running: RunningService, monkeypatch: pytest.MonkeyPatch, is_revoked: bool, status: int
) -> None:
    monkeypatch.setattr(body_limits, "TRUSTED_S", 0.0)
    with httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {running.key}"}) as admin:
        made = admin.post("/v1/keys", json={"label": "slow", "scope": "write"}).json()
        with dial(running, made["key"], length=200_000, sent=b"{" * 100_000) as connection:
            if is_revoked:
                time.sleep(0.2)  # the request is admitted
                assert admin.delete(f"/v1/keys/{made['id']}").status_code == 204
            connection.sendall(b"{" * 100_000)
            assert read_head(connection).startswith(f"http/1.1 {status} ")


# --- memory ---


def test_memory_is_taken_while_a_large_body_is_under_way_and_no_longer(
    service: Service, caller: Caller
) -> None:
    memory: BodyMemory = service.app.state.body_memory
    session_id = caller.make_session()
    for content in (body_of(1_000_000), b"x" * 300_000, iter([b"x" * 100_000] * 5)):
        caller.post_raw(f"/v1/sessions/{session_id}/events", content)
        assert memory.taken == 0


def test_a_body_without_room_is_refused_and_does_nothing(
    service: Service, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory: BodyMemory = service.app.state.body_memory
    monkeypatch.setattr(memory, "patience_s", 0.05)
    share = limits.BODY_MEMORY_BYTES // 2
    monkeypatch.setattr(memory, "returned_bytes", 2 * share + 1)  # released outside of the event loop
    session_id = caller.make_session()
    other = service.make_caller()
    other_session = other.make_session()
    memory._take_bytes(caller.key.workspace_id, share - 1_000)
    try:
        refused = caller.post_raw(f"/v1/sessions/{session_id}/events", body_of(1_000_000))
        assert_problem(refused, 503, "unavailable")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        assert caller.add_events(session_id, event()).status_code == 202
        accepted = other.post_raw(f"/v1/sessions/{other_session}/events", body_of(1_000_000))
        assert accepted.status_code == 202
    finally:
        memory.release(caller.key.workspace_id, share - 1_000)
    assert caller.get(f"/v1/sessions/{session_id}").json()["event_count"] == 1
    accepted = caller.post_raw(f"/v1/sessions/{session_id}/events", body_of(1_000_000))
    assert accepted.status_code == 202


# --- worker processes ---


def die(path: str) -> None:
    """End the worker process as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)


def take_memory(path: str) -> int:
    """Take more than a worker process may."""
    from api.bodies.worker_checks import _WorkerMemoryLimit

    with _WorkerMemoryLimit():
        return len([bytes(64 * MB) for _ in range(64)])


def read_niceness(path: str) -> int:
    """Return how far the worker process lets others go first."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_a_worker_lets_the_api_process_go_first() -> None:
    async def run() -> list[int]:
        workers = BodyWorkers(1)
        async with open_body_file_for_workers() as file:
            return [await workers.run("a", read_niceness, file) for _ in range(2)]

    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    assert asyncio.run(run()) == [min(19, niceness + 5)] * 2


def test_a_worker_that_dies_costs_one_request() -> None:
    async def run() -> None:
        workers = BodyWorkers(2)
        async with open_body_file_for_workers() as bad, open_body_file_for_workers() as good:
            good.write(b'{"a": 1}')
            bad.write(b"{")
            answers = await asyncio.gather(
                workers.run("a", die, bad),
                workers.run("b", check_json_body_file, good, dict[str, int]),
                workers.run("c", check_json_body_file, bad, dict[str, int]),
                return_exceptions=True,
            )
            assert [type(item) for item in answers] == [Overloaded, type(None), InvalidJson]
            assert await workers.run("a", check_json_body_file, good, dict[str, int]) is None

    asyncio.run(run())


def test_a_body_is_freed_at_the_end_of_its_block_but_for_parts_in_use() -> None:
    async def run(*, is_used: bool) -> tuple[mmap.mmap, memoryview | None]:
        async with open_body_file_for_workers() as file:
            file.write(b"picture")
            content = file.map_content()
            return content, memoryview(content)[2:] if is_used else None

    content, _ = asyncio.run(run(is_used=False))
    assert content.closed
    content, view = asyncio.run(run(is_used=True))
    assert view is not None and bytes(view) == b"cture" and not content.closed


def test_a_worker_has_bounded_memory() -> None:
    async def run() -> Any:
        async with open_body_file_for_workers() as file:
            file.write(b"{}")
            return await BodyWorkers(1).run("a", take_memory, file)

    with pytest.raises(ValidationFailed) as refused:
        asyncio.run(run())
    assert refused.value.problems[0].code == "too_large"
    assert "memory" in refused.value.problems[0].message


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ('"a":1,"a":2', "duplicate_key"),
        ('"a":' + "[" * 70 + "]" * 70, "json_too_deep"),
        ('"a":"\\u0000"', "invalid_string"),
        ('"a":9223372036854775808', "invalid_integer"),
    ],
)
@pytest.mark.parametrize("padding", [0, LARGE_BYTES])
def test_a_large_body_is_checked_as_a_small_one(
    service: Service, caller: Caller, member: str, code: str, padding: int
) -> None:
    session_id = caller.make_session()
    others = [json.dumps(event(title="x" * 60_000))] * (padding // 60_000 + 1)
    wrong = '{"type":"click","t_ms":1,"data":{' + member + "}}"
    body = '{"events":[' + ",".join([*others, wrong]) + "]}"
    answer = caller.post_raw(f"/v1/sessions/{session_id}/events", body)
    assert answer.status_code in (400, 422)
    assert [problem["code"] for problem in answer.json()["errors"]] == [code]
    assert caller.get(f"/v1/sessions/{session_id}").json()["event_count"] == 0


@pytest.mark.parametrize(
    ("ids", "most"),
    [
        pytest.param(b",".join([b"1"] * 130_000), "120000 values", id="values"),
        pytest.param(b",".join([b"[[]]"] * 25_000), "40000 lists and objects", id="lists"),
        pytest.param(b",".join([b'{"a":{}}'] * 25_000), "40000 lists and objects", id="objects"),
    ],
)
def test_a_json_body_of_many_values_is_refused(caller: Caller, ids: bytes, most: str) -> None:
    body = b'{"ids":[' + ids + b"]}" + b" " * LARGE_BYTES
    refused = caller.post_raw("/v1/sessions:batch_stop", body)
    assert_problem(refused, 422, "validation_failed")
    (problem,) = refused.json()["errors"]
    assert problem["code"] == "too_large" and most in problem["message"]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("[" + ",".join(["[" * 55 + "]" * 55] * 100) + "]", id="nested lists"),
        pytest.param("[" + ",".join(["{}"] * 2_000) + "]", id="empty objects"),
        pytest.param("{" + ",".join(f'"{n}":1' for n in range(6_000)) + "}", id="keys"),
        pytest.param("[" + ",".join([f"0.{'7' * 150}"] * 200) + "]", id="long numbers"),
    ],
)
def test_a_small_body_that_takes_long_to_read_is_costly_and_read_as_others(
    caller: Caller, value: str
) -> None:
    session_id = caller.make_session()
    body = '{"events":[{"type":"click","t_ms":1,"data":{"a":' + value + "}}]}"
    assert len(body) < LARGE_BYTES and is_costly_body(body.encode())
    assert caller.post_raw(f"/v1/sessions/{session_id}/events", body).status_code == 202
    (stored,) = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    assert stored["data"] == {"a": json.loads(value)}
    twice = body.replace('"t_ms":1', '"t_ms":1,"t_ms":2')
    answer = caller.post_raw(f"/v1/sessions/{session_id}/events", twice)
    assert answer.json()["errors"][0]["code"] == "duplicate_key"


def test_a_batch_of_many_plain_events_is_not_costly() -> None:
    item = {
        "type": "ui.click",
        "t_ms": 10**12,
        "id": "evt_01m8cgjmjgvxc6maed0vwm009v",
        "target": {"role": "button", "name": "Save", "box": [1.5, 2.5, 3.5, 4.5]},
        "data": {f"key {n}": n / 7 for n in range(10)},
    }
    assert not is_costly_body(json.dumps({"events": [item] * 100}).encode())


def test_a_costly_upload_of_frames_is_read_as_others(caller: Caller) -> None:
    session_id = caller.make_session()
    rectangles = [[n % 9, 2, 3, 4] for n in range(2_000)]
    for count in (2_000, 10):
        sent = frame(count, masked_rects=rectangles[:count])
        assert is_costly_body(json.dumps(sent).encode()) == (count == 2_000)
        assert caller.add_frames(session_id, sent).status_code == 202
    shown = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]
    assert [item["masked_rects"] for item in shown] == [rectangles[:10], rectangles]


def test_of_very_many_unknown_members_the_first_are_named(caller: Caller) -> None:
    members = {f"member_{n}": n for n in range(3_000)}
    answer = caller.post("/v1/sessions", {"workflow": "checkout", **members})
    assert_problem(answer, 422, "validation_failed")
    assert [item["pointer"] for item in answer.json()["errors"]] == [f"/member_{n}" for n in range(100)]


def test_members_of_a_costly_body_are_checked_in_the_worker_process() -> None:
    async def run() -> None:
        async with open_body_file_for_workers() as file:
            members = {f"member_{n}": n for n in range(9_000)}
            file.write(json.dumps({"workflow": "checkout", **members}).encode())
            await BodyWorkers(1).run("a", check_json_body_file, file, SessionCreate)

    with pytest.raises(ValidationFailed) as refused:
        asyncio.run(run())
    assert [problem.pointer for problem in refused.value.problems] == [f"/member_{n}" for n in range(100)]


def test_a_large_json_body_of_another_address_is_checked_too(caller: Caller) -> None:
    padded = b'{"workflow":"checkout"' + b" " * LARGE_BYTES + b"}"
    assert caller.post_raw("/v1/sessions", padded).status_code == 201
    twice = b'{"workflow":"checkout","workflow":"b"' + b" " * LARGE_BYTES + b"}"
    assert caller.post_raw("/v1/sessions", twice).json()["errors"][0]["code"] == "duplicate_key"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions:batch_stop", {"ids": [1] * 4_900}),
        ("/v1/sessions:batch_stop", {"ids": [1] * 990}),
        ("/v1/replays", {"inputs": dict.fromkeys(map(str, range(4_900)), 1)}),
    ],
)
def test_many_wrong_values_are_refused_in_little_time(
    caller: Caller, path: str, body: dict[str, Any]
) -> None:
    # Others wait for the event loop of this process: 4,900 wrong values took 50 to 100 ms of it.
    assert_problem(caller.post(path, body), 422, "validation_failed")  # starts the worker process
    began = time.process_time()
    for _ in range(10):
        answer = caller.post(path, body)
    assert time.process_time() - began < 0.4
    assert len(answer.json()["errors"]) == 100
