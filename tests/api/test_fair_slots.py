"""Slots of transactions and slow work: shares of owners, turns, and what becomes of requests that go away."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import anyio.to_thread
import pytest
from starlette.testclient import TestClient

from api.fair_slots import DATABASE_SLOTS, WORK_SLOTS, FairSlots
from recorder.access import quota
from recorder.datasets.formats import CARD
from recorder.exports.destinations.base import PinnedFile
from recorder.exports.requests import export_operations
from recorder.exports.results import diff, hosted_files
from recorder.models.export import ExportRow
from recorder.recording.frames import CheckedUpload
from recorder.settings import Settings
from tests.support.factories import Caller, Service, frame
from tests.support.http_exports import export
from tests.support.sealed_sessions import Recording, seal


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's work to its end."""
    asyncio.run(work())


async def settle() -> None:
    """Let all tasks run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


class Owners:
    """Requests of owners: which of them run, in the order in which they began."""

    def __init__(self, slots: FairSlots) -> None:
        self.slots = slots
        self.begun: list[str] = []
        self.ends: dict[str, list[asyncio.Event]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, owner: str, count: int = 1) -> list["asyncio.Task[None]"]:
        """Begin so many requests of an owner."""
        tasks = [asyncio.create_task(self._hold(owner)) for _ in range(count)]
        self.tasks += tasks
        await settle()
        return tasks

    async def end(self, owner: str, count: int = 1) -> None:
        """End so many running requests of an owner."""
        for _ in range(count):
            self.ends[owner].pop(0).set()
        await settle()

    def running(self, owner: str) -> int:
        """Return the number of an owner's requests that have a slot."""
        return len(self.ends.get(owner, []))

    async def _hold(self, owner: str) -> None:
        await self.slots.acquire(owner)
        self.begun.append(owner)
        done = asyncio.Event()
        self.ends.setdefault(owner, []).append(done)
        try:
            await done.wait()
        finally:
            if done in self.ends[owner]:
                self.ends[owner].remove(done)
            self.slots.release(owner)


def test_an_owner_may_hold_as_many_slots_as_it_leaves_free() -> None:
    async def work() -> None:
        owners = Owners(FairSlots(20))
        await owners.ask("a", 30)
        assert (owners.running("a"), owners.slots.count_waiting()) == (10, 20)
        await owners.ask("b", 30)
        assert owners.running("b") == 5
        await owners.end("a", 5)
        assert (owners.running("a"), owners.running("b")) == (7, 7)
        for task in owners.tasks:
            task.cancel()

    run(work)


def test_owners_that_all_want_more_leave_a_slot_to_another() -> None:
    async def work() -> None:
        owners = Owners(FairSlots(16))
        for owner in "abcde":
            await owners.ask(owner, 20)
        assert [owners.running(owner) for owner in "abcde"] == [8, 4, 2, 1, 1]
        for task in owners.tasks:
            task.cancel()

    run(work)


def test_owners_that_wait_take_turns() -> None:
    async def work() -> None:
        owners = Owners(FairSlots(2))
        for owner, count in (("x", 1), ("y", 1), ("b", 3), ("c", 3), ("d", 3)):
            await owners.ask(owner, count)
        del owners.begun[:]
        for owner in ("x", "y", "b", "c", "d"):
            await owners.end(owner)
        assert owners.begun == ["b", "c", "d", "b", "c"]
        for task in owners.tasks:
            task.cancel()

    run(work)


def test_a_request_that_goes_away_takes_no_slot_with_it() -> None:
    async def work() -> None:
        owners = Owners(FairSlots(2))
        await owners.ask("a")
        await owners.ask("b")
        gone, given = await owners.ask("c", 2)
        gone.cancel()
        await settle()
        assert owners.slots.count_waiting() == 1
        owners.ends["a"].pop(0).set()
        await asyncio.sleep(0)
        given.cancel()  # at about the moment at which it is given the slot
        await owners.end("b")
        await owners.ask("d")
        await owners.ask("e")
        assert (owners.running("d"), owners.running("e"), owners.slots.count_waiting()) == (1, 1, 0)

    run(work)


def test_a_slot_that_was_given_to_a_cancelled_request_goes_on() -> None:
    async def work() -> None:
        slots = FairSlots(1)
        await slots.acquire("a")
        first, second = (asyncio.create_task(slots.acquire(owner)) for owner in ("b", "c"))
        await settle()
        slots.release("a")  # gives the slot to the first, which has not run since
        first.cancel()
        await asyncio.wait([first, second], timeout=5)
        assert first.cancelled() and second.done() and not second.cancelled()

    run(work)


def test_a_request_that_is_cancelled_before_its_turn_is_passed_over() -> None:
    async def work() -> None:
        slots = FairSlots(1)
        await slots.acquire("a")
        first, second = (asyncio.create_task(slots.acquire(owner)) for owner in ("b", "c"))
        await settle()
        first.cancel()
        slots.release("a")  # before the first has seen that it was cancelled
        await asyncio.wait([first, second], timeout=5)
        assert second.done() and not second.cancelled() and slots.count_waiting() == 0

    run(work)


@contextmanager
def held_reads(monkeypatch: pytest.MonkeyPatch, workspace_id: str) -> Iterator[threading.Semaphore]:
    """Hold the quota reads of one workspace until the block ends; the semaphore counts those that began."""
    began, go_on, read = threading.Semaphore(0), threading.Event(), quota.read_quota

    def hold(db: Any, tenant: Any) -> Any:
        if tenant.workspace_id == workspace_id:
            began.release()
            assert go_on.wait(30)
        return read(db, tenant)

    monkeypatch.setattr(quota, "read_quota", hold)
    try:
        yield began
    finally:
        go_on.set()


def test_slow_reads_of_one_workspace_leave_slots_to_another(
    service: Service, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = service.make_caller()
    slots: FairSlots = service.app.state.database_slots
    with ThreadPoolExecutor(32) as threads:
        with held_reads(monkeypatch, caller.key.workspace_id) as began:
            flood = [threads.submit(caller.get, "/v1/quota") for _ in range(32)]
            assert all(began.acquire(timeout=30) for _ in range(10))
            assert other.get("/v1/quota").status_code == 200
            assert not began.acquire(blocking=False)
        assert {request.result().status_code for request in flood} == {200}
    assert slots.count_waiting() == 0


def test_slow_probes_of_one_workspace_leave_slots_to_another(
    service: Service, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = service.make_caller()
    began, go_on, probe = threading.Semaphore(0), threading.Event(), export_operations.probe_draft_destination

    def hold(draft: Any, settings: Any) -> None:
        if draft.workspace_id == caller.key.workspace_id:
            began.release()
            assert go_on.wait(30)
        probe(draft, settings)

    monkeypatch.setattr(export_operations, "probe_draft_destination", hold)
    for each in (caller, other):
        each.make_session(workflow="checkout")
    body = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    with ThreadPoolExecutor(20) as threads:
        flood = [threads.submit(caller.post, "/v1/exports", body) for _ in range(20)]
        try:
            assert all(began.acquire(timeout=30) for _ in range(4))
            assert other.post("/v1/exports", body).status_code == 202
            assert not began.acquire(blocking=False)
        finally:
            go_on.set()
        assert {request.result().status_code for request in flood} == {202}
    assert service.app.state.work_slots["destination probe"].count_waiting() == 0


def make_recorders(service: Service) -> list[Caller]:
    """Return callers of two workspaces that each have a sealed session."""
    callers = [service.make_caller() for _ in range(2)]
    for each in callers:
        seal(service.runtime, [Recording()], workspace_id=each.key.workspace_id)
    return callers


def test_slow_downloads_of_one_workspace_leave_slots_to_another(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, other = make_recorders(service)
    addresses = {each: f"/v1/exports/{export(each)['id']}/files/{CARD}" for each in (caller, other)}
    began, go_on, open_file = threading.Semaphore(0), threading.Event(), hosted_files.open_hosted_file

    def read_slowly(start: int, end: int) -> Iterator[bytes]:
        began.release()
        assert go_on.wait(30)
        yield bytes(end - start)

    def open_slow_file(row: ExportRow, settings: Settings, path: str) -> hosted_files.HostedFile:
        file = open_file(row, settings, path)
        if row.workspace_id != caller.key.workspace_id:
            return file
        return replace(file, pinned=PinnedFile(file.size_bytes, read_slowly))

    monkeypatch.setattr(hosted_files, "open_hosted_file", open_slow_file)
    with ThreadPoolExecutor(20) as threads:
        flood = [threads.submit(caller.get, addresses[caller]) for _ in range(20)]
        try:
            assert all(began.acquire(timeout=30) for _ in range(4))
            assert other.get(addresses[other]).status_code == 200
            assert not began.acquire(blocking=False)
        finally:
            go_on.set()
        assert {request.result().status_code for request in flood} == {200}
    assert service.app.state.work_slots["hosted file"].count_waiting() == 0


def test_slow_frame_uploads_of_one_workspace_leave_threads_to_another(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, other = (service.make_caller() for _ in range(2))
    sessions = {each: each.make_session() for each in (caller, other)}
    began, go_on, store = threading.Semaphore(0), threading.Event(), CheckedUpload.store

    def store_slowly(upload: CheckedUpload, *args: Any) -> Any:
        if upload.caller.workspace_id == caller.key.workspace_id:
            began.release()
            assert go_on.wait(30)
        return store(upload, *args)

    monkeypatch.setattr(CheckedUpload, "store", store_slowly)
    with ThreadPoolExecutor(60) as threads:
        flood = [threads.submit(caller.add_frames, sessions[caller], frame(n)) for n in range(60)]
        try:
            assert all(began.acquire(timeout=30) for _ in range(8))
            assert other.get("/v1/quota").status_code == 200
            assert other.add_frames(sessions[other], frame(1)).status_code == 202
            assert not began.acquire(blocking=False)
        finally:
            go_on.set()
        assert {request.result().status_code for request in flood} == {202}


def test_all_slots_together_leave_worker_threads_free(service: Service) -> None:
    slots = DATABASE_SLOTS + sum(WORK_SLOTS.values())
    portal = service.client.portal
    assert portal is not None
    threads = portal.call(lambda: anyio.to_thread.current_default_thread_limiter().total_tokens)
    assert threads >= slots + 16


def test_pages_of_a_cached_comparison_do_not_wait_for_another_comparison(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, other = make_recorders(service)
    addresses = {}
    for each in (caller, other):
        ids = [export(each)["id"] for _ in range(2)]
        addresses[each] = f"/v1/exports/{ids[1]}/diff?against={ids[0]}"
    assert other.get(addresses[other]).status_code == 200
    began, go_on, read_plan = threading.Semaphore(0), threading.Event(), diff.read_stored_export_plan

    def read_slowly(*args: Any, **options: Any) -> Any:
        began.release()
        assert go_on.wait(30)
        return read_plan(*args, **options)

    monkeypatch.setattr(diff, "read_stored_export_plan", read_slowly)
    with ThreadPoolExecutor(8) as threads:
        flood = [threads.submit(caller.get, addresses[caller]) for _ in range(8)]
        try:
            assert began.acquire(timeout=30)
            assert other.get(addresses[other]).status_code == 200
            assert not began.acquire(blocking=False)
        finally:
            go_on.set()
        assert {request.result().status_code for request in flood} == {200}


def make_client(service: Service, address: str) -> TestClient:
    """Return a client with another address, in the event loop of the service."""
    client = TestClient(service.app, client=(address, 50000))
    client.portal = service.client.portal
    return client


def test_clients_of_one_ipv6_network_share_slots(owner: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, quick = (export(owner) for _ in range(2))
    began, go_on, open_export = threading.Semaphore(0), threading.Event(), hosted_files.open_signed_export

    def open_slowly(db: Any, settings: Any, export_id: str, path: str, **signature: Any) -> ExportRow:
        if export_id == slow["id"]:
            began.release()
            assert go_on.wait(30)
        return open_export(db, settings, export_id, path, **signature)

    monkeypatch.setattr(hosted_files, "open_signed_export", open_slowly)
    near = [make_client(owner.service, f"2001:db8:0:1::{host}") for host in range(1, 21)]
    far = make_client(owner.service, "2001:db8:0:2::1")
    with ThreadPoolExecutor(20) as threads:
        flood = [threads.submit(client.get, slow["manifest_url"]) for client in near]
        try:
            assert all(began.acquire(timeout=30) for _ in range(10))
            assert far.get(quick["manifest_url"]).status_code == 200
            assert not began.acquire(blocking=False)
        finally:
            go_on.set()
        assert {request.result().status_code for request in flood} == {200}
