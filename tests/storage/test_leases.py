"""Leases: one owner at a time, a rising fence, nothing done under a lost one. Design §3."""

import threading
import time

import pytest
from sqlmodel import select

from recorder import clock
from recorder.models.operations import LeaseRow
from recorder.storage.database import Database
from recorder.storage.leases import (
    LONGEST_TTL_MS,
    HeldLease,
    Lease,
    LeaseKeeper,
    LeaseLost,
    hold_lease,
    is_lease_held,
    lease_for_block,
    make_unexpired_condition,
    release_lease,
    renew_lease,
    take_lease,
)
from tests.support.waiting import wait_for


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a lease that no other test takes."""
    return str(request.node.name)


def take(database: Database, name: str, owner: str, *, now_ms: int = 0) -> Lease | None:
    """Take a lease for 100 ms."""
    with database.transaction(write=True) as db:
        return take_lease(db, name, owner, now_ms=now_ms, ttl_ms=100)


def renew(database: Database, lease: Lease, *, now_ms: int) -> bool:
    """Renew it for another 100 ms."""
    with database.transaction(write=True) as db:
        return renew_lease(db, lease, now_ms=now_ms, ttl_ms=100)


def is_held(database: Database, name: str, *, now_ms: int) -> bool:
    """Return whether an owner holds the lease."""
    with database.transaction(write=False) as db:
        return is_lease_held(db, name, now_ms=now_ms)


def test_one_owner_holds_it_until_it_runs_out(database: Database, name: str) -> None:
    assert not is_held(database, name, now_ms=0)
    assert take(database, name, "a") == Lease(name, "a", 1)
    assert is_held(database, name, now_ms=99) and take(database, name, "b", now_ms=99) is None
    assert not is_held(database, name, now_ms=100)
    assert take(database, name, "b", now_ms=100) == Lease(name, "b", 2)


def test_renewing_puts_the_end_off(database: Database, name: str) -> None:
    lease = take(database, name, "a")
    assert lease and renew(database, lease, now_ms=90)
    assert take(database, name, "b", now_ms=150) is None
    assert take(database, name, "b", now_ms=190)


def test_who_lost_it_cannot_renew_it(database: Database, name: str) -> None:
    lost = take(database, name, "a")
    new = take(database, name, "b", now_ms=200)
    assert lost and new
    assert not renew(database, lost, now_ms=201)
    assert renew(database, new, now_ms=201)


def test_an_owner_that_takes_it_again_fences_its_former_self(database: Database, name: str) -> None:
    first = take(database, name, "a")
    second = take(database, name, "a", now_ms=1)
    assert first and second and second.fence == first.fence + 1
    assert not renew(database, first, now_ms=2)


def test_a_released_lease_is_free_at_once(database: Database, name: str) -> None:
    lease = take(database, name, "a")
    assert lease
    with database.transaction(write=True) as db:
        release_lease(db, lease)
    assert not is_held(database, name, now_ms=1)
    assert take(database, name, "b", now_ms=1)


def test_releasing_a_lost_lease_changes_nothing(database: Database, name: str) -> None:
    lost = take(database, name, "a")
    assert lost and take(database, name, "b", now_ms=200)
    with database.transaction(write=True) as db:
        release_lease(db, lost)
    assert is_held(database, name, now_ms=201)


@pytest.mark.parametrize("attempt", range(5))
def test_of_many_who_try_at_once_one_gets_it(database: Database, name: str, attempt: int) -> None:
    barrier = threading.Barrier(6)
    got: list[Lease | None] = []

    def run(owner: str) -> None:
        barrier.wait()
        got.append(take(database, name, owner))

    threads = [threading.Thread(target=run, args=(str(number),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 6 and sum(lease is not None for lease in got) == 1


def hold(database: Database, name: str, *, ttl_ms: int) -> HeldLease:
    """Hold a lease from now on."""
    with database.transaction(write=True) as db:
        held = hold_lease(db, name, "a", ttl_ms=ttl_ms)
    assert held is not None
    return held


def lose(database: Database, name: str) -> None:
    """Let another owner take a lease, as if it had run out."""
    with database.transaction(write=True) as db:
        assert take_lease(db, name, "b", now_ms=clock.now_ms() + 3_600_000, ttl_ms=60_000)


def test_nothing_is_committed_under_a_lost_lease(database: Database, name: str) -> None:
    held = hold(database, name, ttl_ms=60_000)
    lose(database, name)
    with pytest.raises(LeaseLost), held.transaction(database):
        pytest.fail("the block began without the lease")


def test_a_process_that_stood_still_takes_its_lease_for_lost_without_asking(
    database: Database, name: str
) -> None:
    held = hold(database, name, ttl_ms=60_000)
    held.renewed_s -= 61
    with pytest.raises(LeaseLost), held.transaction(database):
        pytest.fail("the block began after the lease ran out")


def test_a_transaction_that_is_rolled_back_renews_nothing(database: Database, name: str) -> None:
    held = hold(database, name, ttl_ms=60_000)
    held.renewed_s = before = held.renewed_s - 10
    with pytest.raises(ZeroDivisionError), held.transaction(database):
        raise ZeroDivisionError
    assert held.renewed_s == before
    with held.transaction(database):
        pass
    assert held.renewed_s > before


def test_the_keeper_renews_what_is_held_and_reports_what_is_lost(database: Database, name: str) -> None:
    kept, lost = hold(database, name, ttl_ms=60_000), hold(database, f"{name} 2", ttl_ms=60_000)
    lose(database, f"{name} 2")
    before = kept.renewed_s
    with LeaseKeeper(database, lambda: [kept, lost], every_s=0.01):
        wait_for(lambda: kept.renewed_s > before and lost.renewed_s < before)
    kept.require_time()
    with pytest.raises(LeaseLost):
        lost.require_time()


def test_the_keeper_goes_on_after_an_error(database: Database, name: str) -> None:
    held = hold(database, name, ttl_ms=60_000)
    before, errors = held.renewed_s, iter([OSError("the database is away")])

    def list_leases() -> list[HeldLease]:
        for error in errors:
            raise error
        return [held]

    with LeaseKeeper(database, list_leases, every_s=0.01):
        wait_for(lambda: held.renewed_s > before)


def test_of_two_renewals_the_later_one_counts(database: Database, name: str) -> None:
    held = hold(database, name, ttl_ms=60_000)
    now_s = time.monotonic()
    held.note_renewal(now_s)
    held.note_renewal(now_s - 61)
    held.require_time()


def test_the_keeper_leaves_a_released_lease_alone(database: Database, name: str) -> None:
    held = hold(database, name, ttl_ms=60_000)
    with database.transaction(write=True) as db:
        held.release(db)
    losses: list[HeldLease] = []
    with LeaseKeeper(database, lambda: [held], every_s=0.01, on_loss=losses.append):
        wait_for(lambda: len(losses) > 1)
    assert not is_held(database, name, now_ms=clock.now_ms())


def test_a_block_without_the_lease_gets_none_and_one_with_it_releases_it(
    database: Database, name: str
) -> None:
    with lease_for_block(database, name, "a", ttl_ms=60_000) as first:
        assert first is not None
        with lease_for_block(database, name, "b", ttl_ms=60_000) as second:
            assert second is None
        assert is_held(database, name, now_ms=clock.now_ms())
    assert not is_held(database, name, now_ms=clock.now_ms())


def test_a_lease_that_was_taken_before_the_clock_was_set_back_is_free(database: Database, name: str) -> None:
    now_ms, hour_ms = clock.now_ms(), 3_600_000
    with database.transaction(write=True) as db:
        earlier = take_lease(db, name, "killed", now_ms=now_ms + hour_ms, ttl_ms=60_000)
    assert earlier and not is_held(database, name, now_ms=now_ms)
    with database.transaction(write=False) as db:
        held = select(LeaseRow.name).where(LeaseRow.name == name, make_unexpired_condition(now_ms))
        assert db.exec(held).all() == []
    later = take(database, name, "next", now_ms=now_ms)
    assert later and later.fence == earlier.fence + 1
    assert not renew(database, earlier, now_ms=now_ms)


def test_the_longest_lease_is_held_to_its_end(database: Database, name: str) -> None:
    with database.transaction(write=True) as db:
        assert take_lease(db, name, "a", now_ms=0, ttl_ms=LONGEST_TTL_MS)
        with pytest.raises(ValueError, match="at most"):
            take_lease(db, name, "a", now_ms=0, ttl_ms=LONGEST_TTL_MS + 1)
    assert is_held(database, name, now_ms=0) and is_held(database, name, now_ms=LONGEST_TTL_MS - 1)
    with database.transaction(write=False) as db:
        held = select(LeaseRow.name).where(LeaseRow.name == name, make_unexpired_condition(0))
        assert db.exec(held).all() == [name]
