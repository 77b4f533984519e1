"""Lock of SQLite's writers, whose threads take turns. Design §2."""

import threading
from collections import deque
from contextlib import AbstractContextManager
from types import TracebackType


class FairLock(AbstractContextManager["FairLock"]):
    """Lock of threads, first come, first served; a thread may release what another one acquired.

    Attributes:
        preferred: the same lock for one that must wait for at most one other: it is the next after the
            holder, but not twice in succession while others wait.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_held = False
        self._was_preferred = False
        #: A lock for each thread that waits, which is released when its turn begins.
        self._waiting = deque[threading.Lock]()
        self._waiting_preferred = deque[threading.Lock]()
        self.preferred = _PreferredTurn(self)

    def __enter__(self) -> "FairLock":
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def count_waiting(self) -> int:
        """Return the number of threads that wait."""
        return len(self._waiting) + len(self._waiting_preferred)

    def acquire(self, *, is_preferred: bool = False) -> None:
        """Wait for the lock; call `release` at the end."""
        waiting = self._waiting_preferred if is_preferred else self._waiting
        with self._mutex:
            if not self._is_held:
                self._is_held, self._was_preferred = True, is_preferred
                return
            turn = threading.Lock()
            turn.acquire()
            waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:  # a signal, in the main thread
            with self._mutex:
                if turn in waiting:
                    waiting.remove(turn)
                else:
                    self._begin_next_turn()
            raise

    def release(self) -> None:
        """Pass the lock to the next thread, or free it if there is none."""
        with self._mutex:
            self._begin_next_turn()

    def _begin_next_turn(self) -> None:
        others_first = self._was_preferred and bool(self._waiting)
        self._was_preferred = bool(self._waiting_preferred) and not others_first
        waiting = self._waiting_preferred if self._was_preferred else self._waiting
        self._is_held = bool(waiting)
        if waiting:
            waiting.popleft().release()


class _PreferredTurn(AbstractContextManager[None]):
    """Context manager that holds a lock by its preferred turns."""

    def __init__(self, lock: FairLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire(is_preferred=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
