"""Requests that wait for a writer or a store leave the worker threads to others. Contract §1.

On SQLite all writers wait for one lock, and the one that has it needs a thread to continue: if those that
wait took all threads, nothing would go on.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from sqlmodel import select

from api.fair_slots import DATABASE_SLOTS, WORK_SLOTS, WORKER_THREADS, FairSlots
from recorder.models.operations import AuditHeadRow
from recorder.storage.blobs import Blobs
from recorder.storage.fair_lock import FairLock
from tests.support.databases import create_database, create_file
from tests.support.factories import Caller, Service, event, frame, running_app
from tests.support.statements import before_each_statement
from tests.support.two_click_sessions import sealed_run
from tests.support.waiting import wait_for


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Yield a service on SQLite."""
    create_file(tmp_path / "data")
    with running_app(tmp_path / "data") as started:
        yield started


def count_busy_threads(service: Service) -> int:
    """Return how many of the default worker threads work or wait."""
    portal = service.client.portal
    assert portal is not None
    return portal.call(lambda: int(anyio.to_thread.current_default_thread_limiter().borrowed_tokens))


def require_threads_free_while_locked(
    service: Service, requests: list[Callable[[], Any]], is_under_way: Callable[[], bool], most: int
) -> set[int]:
    """Send requests while another writer has the lock; return the statuses that they get after it."""
    other = service.make_caller()
    with ThreadPoolExecutor(len(requests)) as threads:
        with service.runtime.database.write_lock:
            sent = [threads.submit(request) for request in requests]
            wait_for(is_under_way)
            wait_for(lambda: count_busy_threads(service) <= most)
            assert other.get("/v1/quota").status_code == 200
        statuses = {request.result().status_code for request in sent}
    assert other.post("/v1/sessions", {"workflow": "checkout"}).status_code == 201
    return statuses


@pytest.mark.parametrize("hard", ["", "?hard=true"], ids=["soft", "hard"])
def test_deletes_that_wait_for_a_writer_leave_threads_to_it(service: Service, hard: str) -> None:
    caller = service.make_caller()
    paths = [f"/v1/sessions/{caller.make_session()}{hard}" for _ in range(WORKER_THREADS + 10)]
    slots: FairSlots = (
        service.app.state.work_slots["hard delete"] if hard else service.app.state.database_slots
    )
    most = WORK_SLOTS["hard delete"] if hard else DATABASE_SLOTS
    statuses = require_threads_free_while_locked(
        service,
        [lambda path=path: caller.delete(path) for path in paths],
        lambda: slots.count_waiting() >= len(paths) - most,
        most,
    )
    assert statuses == {204}


def test_a_batch_of_events_is_the_next_writer(service: Service) -> None:
    caller = service.make_caller()
    session_id = caller.make_session()
    lock = service.runtime.database.write_lock
    assert isinstance(lock, FairLock)
    order: list[str] = []
    writer = service.app.state.ingest

    def note(statement: str) -> None:
        if statement.startswith("INSERT INTO sessions "):
            order.append("session")

    def note_ingest(statement: str) -> None:
        if statement.startswith("BEGIN"):
            order.append("events")

    writer._connection.set_trace_callback(note_ingest)
    with ThreadPoolExecutor(6) as threads, before_each_statement(note):
        with lock:
            sent = [threads.submit(caller.post, "/v1/sessions", {"workflow": "checkout"}) for _ in range(5)]
            wait_for(lambda: lock.count_waiting() == 5)
            sent.append(threads.submit(caller.add_events, session_id, event(1)))
            wait_for(lambda: lock.count_waiting() == 6)
        assert {request.result().status_code for request in sent} == {201, 202}
    writer._connection.set_trace_callback(None)
    assert order == ["events", *["session"] * 5]


def test_denied_requests_that_wait_for_a_writer_leave_threads_to_it(service: Service) -> None:
    workspace_id = service.make_caller().key.workspace_id
    readers = [service.make_caller(workspace_id=workspace_id, scope="read") for _ in range(30)]
    addresses = ["/v1/sessions", "/v1/exports", "/v1/replays", "/v1/webhooks"]
    requests = [
        lambda reader=reader, address=address: reader.post(address, {})
        for reader in readers
        for address in addresses
    ]
    assert len(requests) > WORKER_THREADS
    begun = threading.Semaphore(0)

    def send(request: Callable[[], Any]) -> Any:
        begun.release()
        return request()

    statuses = require_threads_free_while_locked(
        service,
        [lambda request=request: send(request) for request in requests],
        lambda: all(begun.acquire(timeout=30) for _ in requests),
        1,  # while another one is identified
    )
    assert statuses == {403}


def test_denied_requests_of_a_workspace_delay_none_of_others(postgres: str, tmp_path: Path) -> None:
    with running_app(tmp_path / "data", create_database(postgres)) as service:
        workspaces = [service.make_caller().key.workspace_id for _ in range(2)]
        flooding, other = (service.make_caller(workspace_id=each, scope="read") for each in workspaces)
        assert flooding.get("/v1/audit").status_code == 403
        began = threading.Event()

        def note(statement: str) -> None:
            if statement.startswith("SELECT audit_heads."):
                began.set()

        addresses = ["/v1/sessions", "/v1/exports", "/v1/replays", "/v1/webhooks"]
        with ThreadPoolExecutor(len(addresses) + 1) as threads:
            # The entries of the workspace wait for the end of its chain.
            with service.runtime.database.transaction(write=True) as db:
                head = select(AuditHeadRow.number).filter_by(workspace_id=workspaces[0])
                db.exec(head.with_for_update()).one()
                with before_each_statement(note):
                    sent = [threads.submit(flooding.post, address, {}) for address in addresses]
                    assert began.wait(30)
                denied = threads.submit(other.post, "/v1/sessions", {})
                assert denied.result(timeout=30).status_code == 403
                assert not any(request.done() for request in sent)
            assert {request.result().status_code for request in sent} == {403}


def test_checks_of_a_store_that_does_not_answer_take_no_threads(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    ping = Blobs.ping

    def wait(blobs: Blobs) -> None:
        began.set()
        assert go_on.wait(30)
        ping(blobs)

    monkeypatch.setattr(Blobs, "ping", wait)
    with ThreadPoolExecutor(20) as threads:
        sent = [threads.submit(service.client.get, "/readyz") for _ in range(20)]
        try:
            assert began.wait(30)
            assert count_busy_threads(service) == 0
            assert service.make_caller().get("/v1/quota").status_code == 200
        finally:
            go_on.set()
        assert {request.result().status_code for request in sent} == {200}


def test_pictures_of_a_slow_store_hold_no_slot_of_the_database(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = [service.make_caller() for _ in range(5)]
    paths = {reader: _add_picture(reader) for reader in readers}
    other = service.make_caller()
    began, go_on, get = threading.Semaphore(0), threading.Event(), Blobs.get

    def wait(blobs: Blobs, *arguments: Any) -> bytes:
        began.release()
        assert go_on.wait(30)
        return get(blobs, *arguments)

    monkeypatch.setattr(Blobs, "get", wait)
    with ThreadPoolExecutor(50) as threads:
        sent = [threads.submit(reader.get, paths[reader]) for reader in readers for _ in range(10)]
        try:
            assert all(began.acquire(timeout=30) for _ in range(WORK_SLOTS["snapshot"] - 1))
            assert other.post("/v1/sessions", {"workflow": "checkout"}).status_code == 201
        finally:
            go_on.set()
        assert {request.result().status_code for request in sent} == {200}


def _add_picture(caller: Caller) -> str:
    session_id = caller.make_session()
    assert caller.add_frames(session_id, frame(1, id="frm_one")).status_code == 202
    return f"/v1/sessions/{session_id}/frames/frm_one/image"


@pytest.mark.parametrize(("path", "member"), [("/v1/replays", "until"), ("/v1/recoveries", "recovery_point")])
def test_look_ups_in_sessions_wait_for_slots_of_their_own(service: Service, path: str, member: str) -> None:
    caller = service.make_caller()
    session_id = sealed_run(caller)
    [event_id, _] = [item["id"] for item in caller.get(f"/v1/sessions/{session_id}/events").json()["data"]]
    named = {"event_id": event_id} | ({} if member == "until" else {"session_id": session_id})
    portal = service.client.portal
    assert portal is not None
    slots: FairSlots = service.app.state.work_slots["tag anchor"]
    owners = ["a", "a", "b", "c"]
    assert len(owners) == WORK_SLOTS["tag anchor"]
    for owner in owners:
        portal.call(slots.acquire, owner)
    with ThreadPoolExecutor(1) as threads:
        body = {"session_id": session_id, "sandbox": "dry"}
        sent = threads.submit(caller.post, path, {**body, member: named})
        try:
            wait_for(lambda: slots.count_waiting() == 1, seconds=20)
            assert count_busy_threads(service) == 0
            # A request that names no place looks nothing up.
            unknown = caller.post(path, {**body, "session_id": f"ses_{0:026}"})
            assert unknown.status_code == 404
        finally:
            for owner in owners:
                portal.call(slots.release, owner)
        # The session did not fail, so that a recovery is refused after the look-up.
        assert sent.result().status_code == (202 if member == "until" else 422), sent.result().text
