"""Rules of supervision: when a process counts as silent, and how long to wait before it is started again."""

import threading
import time
from collections.abc import Callable

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
#: After so long without trouble the next pause is the first one again.
STEADY_AFTER_S = 300.0
# A start takes longer than an answer: Dagster imports for up to twenty seconds on a busy machine.
_GRACE = 3.0
# The supervisor may have been stopped itself, or have had no processor: a silence is one that was asked into.
_ASKED_AT_LEAST = 2

Clock = Callable[[], float]


class Liveness:
    """Answers of one process: since when it has been silent, life by life."""

    def __init__(self, *, silence_s: float, now: Clock = time.monotonic) -> None:
        """Take the limit.

        Args:
            silence_s: seconds without an answer after which the process is silent; three times as many
                between its start and its first answer.
            now: a clock that only rises.
        """
        self._silence_s = silence_s
        self._now = now
        self._lock = threading.Lock()
        #: Number of the life; an answer that was asked for in an earlier one does not count.
        self.life = 0
        self._began = now()
        self._first: float | None = None
        self._last: float | None = None
        self._unanswered = 0

    def begin(self) -> None:
        """Begin a new life: the process was just started."""
        with self._lock:
            self.life += 1
            self._began, self._first, self._last, self._unanswered = self._now(), None, None, 0

    def note(self, has_answered: bool, *, life: int) -> bool:
        """Take the result of one question; returns whether it is the first answer of this life."""
        with self._lock:
            if life != self.life:
                return False
            if not has_answered:
                self._unanswered += 1
                return False
            is_first = self._first is None
            self._last, self._unanswered = self._now(), 0
            if self._first is None:
                self._first = self._last
            return is_first

    def excuse(self) -> None:
        """Let the silence begin again now: another process keeps this one from answering."""
        with self._lock:
            if self._last is not None:
                self._last = self._now()
            else:
                self._began = self._now()
            self._unanswered = 0

    @property
    def is_answering(self) -> bool:
        """Return whether the last question was answered."""
        return self._last is not None and self._unanswered == 0

    @property
    def is_silent(self) -> bool:
        """Return whether the process has not answered for too long although it was asked."""
        with self._lock:
            limit = self._silence_s if self._last is not None else _GRACE * self._silence_s
            return self._now() - self._last_sign() > limit and self._unanswered >= _ASKED_AT_LEAST

    @property
    def silent_s(self) -> float:
        """Seconds since the last answer, or since the start where none came."""
        return self._now() - self._last_sign()

    @property
    def healthy_s(self) -> float:
        """Seconds from the first answer of this life to the last."""
        return 0.0 if self._first is None or self._last is None else self._last - self._first

    def _last_sign(self) -> float:
        return self._began if self._last is None else self._last


class RestartPauses:
    """Growing pauses before a process is started again: 1 s, doubling to 60 s."""

    def __init__(self) -> None:
        self._restarts = 0

    def next(self, *, healthy_s: float) -> float:
        """Return the seconds to wait now.

        Args:
            healthy_s: how long the process had answered before; five minutes begin the pauses anew.
        """
        self._restarts = 1 if healthy_s >= STEADY_AFTER_S else self._restarts + 1
        return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._restarts - 1, 10)))
