"""Slots of database transactions: shares of workspaces, turns, and what becomes of requests that go away."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from api.fair_slots import FairSlots
from recorder.access import quota
from recorder.exports.requests import queue
from tests.support.factories import Caller, Service


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
        """Number of an owner's requests that have a slot."""
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


def test_an_owner_alone_leaves_a_quarter_free() -> None:
    async def work() -> None:
        owners = Owners(FairSlots(20))
        await owners.ask("a", 30)
        assert (owners.running("a"), owners.slots.count_waiting()) == (15, 15)
        await owners.ask("b", 5)
        assert owners.running("b") == 5
        for task in owners.tasks:
            task.cancel()

    run(work)


def test_an_owner_has_at_most_half_while_others_wait() -> None:
    async def work() -> None:
        owners = Owners(FairSlots(20))
        await owners.ask("a", 40)
        await owners.ask("b", 40)
        assert (owners.running("a"), owners.running("b")) == (15, 5)
        await owners.end("a", 5)
        assert (owners.running("a"), owners.running("b")) == (10, 10)
        await owners.end("a")
        assert (owners.running("a"), owners.running("b")) == (10, 10)
        for task in owners.tasks:
            task.cancel()

    run(work)


def test_owners_that_wait_take_turns() -> None:
    async def work() -> None:
        owners = Owners(FairSlots(3))
        await owners.ask("a", 3)
        for owner, count in (("b", 3), ("c", 1), ("d", 2)):
            await owners.ask(owner, count)
        del owners.begun[:]
        await owners.end("a", 3)
        assert owners.begun == ["b", "c", "d"]
        await owners.end("c")
        assert owners.begun[3:] == ["b"]
        await owners.end("b")
        assert owners.begun[4:] == ["d"]

    run(work)


def test_a_request_that_goes_away_takes_no_slot_with_it() -> None:
    async def work() -> None:
        owners = Owners(FairSlots(2))
        await owners.ask("a", 2)
        gone, given = await owners.ask("b", 2)
        gone.cancel()
        await settle()
        assert owners.slots.count_waiting() == 1
        owners.ends["a"].pop(0).set()
        await asyncio.sleep(0)
        given.cancel()  # at about the moment at which it is given the slot
        await owners.end("a")
        await owners.ask("c", 2)
        assert (owners.running("c"), owners.slots.count_waiting()) == (2, 0)

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
            assert all(began.acquire(timeout=30) for _ in range(15))
            assert other.get("/v1/quota").status_code == 200
            assert not began.acquire(blocking=False)
        assert {request.result().status_code for request in flood} == {200}
    assert slots.count_waiting() == 0


def test_slow_probes_of_one_workspace_leave_slots_to_another(
    service: Service, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = service.make_caller()
    began, go_on, probe = threading.Semaphore(0), threading.Event(), queue.probe_draft_destination

    def hold(draft: Any, settings: Any) -> None:
        if draft.workspace_id == caller.key.workspace_id:
            began.release()
            assert go_on.wait(30)
        probe(draft, settings)

    monkeypatch.setattr(queue, "probe_draft_destination", hold)
    for each in (caller, other):
        each.make_session(workflow="checkout")
    body = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    with ThreadPoolExecutor(20) as threads:
        flood = [threads.submit(caller.post, "/v1/exports", body) for _ in range(20)]
        try:
            assert all(began.acquire(timeout=30) for _ in range(6))
            assert other.post("/v1/exports", body).status_code == 202
            assert not began.acquire(blocking=False)
        finally:
            go_on.set()
        assert {request.result().status_code for request in flood} == {202}
    assert service.app.state.work_slots["destination probe"].count_waiting() == 0
