"""Turns of the lock of SQLite's writers: first come, first served, and a preferred caller. Design §2."""

import signal
import threading
from contextlib import AbstractContextManager
from typing import Any

import pytest

from recorder.storage.fair_lock import FairLock
from tests.support.waiting import wait_for


class Interrupted(Exception):
    """Raised by a signal handler."""


def let_wait(
    lock: FairLock, turn: AbstractContextManager[Any], name: str, order: list[str]
) -> threading.Thread:
    """Start a thread that notes its name once it has the lock; return when it waits."""

    def take() -> None:
        with turn:
            order.append(name)

    before = lock.count_waiting()
    thread = threading.Thread(target=take)
    thread.start()
    wait_for(lambda: lock.count_waiting() == before + 1)
    return thread


def test_threads_have_the_lock_in_the_order_of_their_arrival() -> None:
    lock, order = FairLock(), []  # type: FairLock, list[str]
    with lock:
        threads = [let_wait(lock, lock, name, order) for name in "abcdefgh"]
    for thread in threads:
        thread.join(20)
    assert "".join(order) == "abcdefgh" and lock.count_waiting() == 0


def test_a_preferred_caller_waits_for_one_other_and_lets_one_other_in_between() -> None:
    lock, order = FairLock(), []  # type: FairLock, list[str]
    with lock:
        threads = [let_wait(lock, lock, name, order) for name in "abc"]
        threads += [let_wait(lock, lock.preferred, name, order) for name in "123"]
    for thread in threads:
        thread.join(20)
    assert "".join(order) == "1a2b3c"
    with lock.preferred:
        threads = [let_wait(lock, lock.preferred, name, order) for name in "45"]
        threads.append(let_wait(lock, lock, "d", order))
    for thread in threads:
        thread.join(20)
    assert "".join(order[6:]) == "d45"


def test_another_thread_may_release_it() -> None:
    lock, order = FairLock(), []  # type: FairLock, list[str]
    lock.acquire()
    waiting = let_wait(lock, lock, "a", order)
    other = threading.Thread(target=lock.release)
    other.start()
    for thread in (other, waiting):
        thread.join(20)
    assert order == ["a"]
    with lock:
        assert lock.count_waiting() == 0


def test_a_thread_that_is_interrupted_while_it_waits_leaves_the_queue() -> None:
    lock, main = FairLock(), threading.get_ident()

    def interrupt(*_: object) -> None:
        raise Interrupted

    def send_signal() -> None:
        wait_for(lambda: lock.count_waiting() == 1)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        lock.acquire()
        sender = threading.Thread(target=send_signal)
        sender.start()
        with pytest.raises(Interrupted), lock:
            pass
        sender.join(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert lock.count_waiting() == 0
    lock.release()
    with lock:
        pass
