"""Scheduling of deliveries: fair shares of webhooks, and waits between attempts. Spec §6.3, contract §6.

Pure computation without a database. A slow receiver does not delay the deliveries of other webhooks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

#: A success within this time allows its webhook one more attempt under way.
QUICK_MS = 1_000
_FIRST_ALLOWANCE = 4
#: Most webhooks with a stored allowance; after that all begin at the first allowance again.
_CACHED = 10_000


@dataclass(frozen=True)
class WebhookQueue:
    """A webhook with attempts that are due."""

    webhook_id: str
    workspace_id: str
    #: When its oldest attempt was due.
    due_ms: int


class ScheduledForWebhook(Protocol):
    """Attempt or queue of a webhook."""

    @property
    def webhook_id(self) -> str: ...

    @property
    def workspace_id(self) -> str: ...


class DeliverySlots:
    """Slots of a worker, shared among webhooks.

    A webhook's allowance grows by one with each quick success and halves with each failure, so one that
    times out soon holds a single slot. It never exceeds a quarter of the slots, and a workspace with all of
    its webhooks never holds more than half of them.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._of_one_webhook = max(1, slots // 4)
        self._of_one_workspace = max(1, slots // 2)
        self._allowed: dict[str, int] = {}
        self._resting: dict[str, int] = {}
        self._of_webhook: Counter[str] = Counter()
        self._of_workspace: Counter[str] = Counter()

    @property
    def free(self) -> int:
        """Slots without an attempt."""
        return self._slots - self._of_webhook.total()

    def allot(self, queues: Sequence[WebhookQueue], *, most: int, now_ms: int) -> dict[str, int]:
        """Return the attempts that each webhook may begin now: one each in turn, the longest waiting first.

        Args:
            queues: webhooks with due attempts.
            most: attempts to begin in all; fewer where fewer slots are free.
            now_ms: the present instant.
        """
        left = min(most, self.free)
        given: Counter[str] = Counter()
        of_workspace = Counter(self._of_workspace)
        awake = (queue for queue in queues if self._resting.get(queue.webhook_id, 0) <= now_ms)
        waiting = sorted(awake, key=lambda queue: queue.due_ms)
        while left and waiting:
            served = []
            for queue in waiting:
                if left and self._has_room(queue, given, of_workspace):
                    given[queue.webhook_id] += 1
                    of_workspace[queue.workspace_id] += 1
                    left -= 1
                    served.append(queue)
            waiting = served
        return dict(given)

    def rest(self, webhook_id: str, until_ms: int) -> None:
        """Skip a queue until a time: it had no attempt to claim, and must not use the share of others."""
        _limit_scheduling_cache(self._resting)
        self._resting[webhook_id] = until_ms

    def begin(self, attempt: ScheduledForWebhook) -> None:
        """Count an attempt that begins."""
        self._of_webhook[attempt.webhook_id] += 1
        self._of_workspace[attempt.workspace_id] += 1

    def end(self, attempt: ScheduledForWebhook, *, is_success: bool, duration_ms: int) -> None:
        """Count an attempt that ended, and adapt the allowance of its webhook."""
        webhook_id = attempt.webhook_id
        for counts, name in ((self._of_webhook, webhook_id), (self._of_workspace, attempt.workspace_id)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
        _limit_scheduling_cache(self._allowed)
        allowed = self._allowed.get(webhook_id, _FIRST_ALLOWANCE)
        if not is_success:
            self._allowed[webhook_id] = max(1, allowed // 2)
        elif duration_ms <= QUICK_MS:
            self._allowed[webhook_id] = min(self._of_one_webhook, allowed + 1)

    def _has_room(self, queue: WebhookQueue, given: Counter[str], of_workspace: Counter[str]) -> bool:
        allowed = min(self._of_one_webhook, self._allowed.get(queue.webhook_id, _FIRST_ALLOWANCE))
        busy = self._of_webhook[queue.webhook_id] + given[queue.webhook_id]
        return busy < allowed and of_workspace[queue.workspace_id] < self._of_one_workspace


def _limit_scheduling_cache(memory: dict[str, int]) -> None:
    if len(memory) >= _CACHED:
        memory.clear()


#: Waits after the first, second, … failed attempt: 5 s, 30 s, 5 min, 30 min, 2 h, 6 h, 12 h.
WAITS_S: tuple[float, ...] = (5, 30, 300, 1_800, 7_200, 21_600, 43_200)
MAX_ATTEMPTS = 7
#: Most by which a wait is lengthened, so that attempts that failed together do not return together.
JITTER = 0.1


@dataclass(frozen=True)
class DeliverySchedule:
    """Most attempts of a delivery, and the waits between them.

    The schedule is stored in the database, because waits last hours and survive restarts; stamina, which the
    other retries use, waits inside one call.
    """

    waits_s: tuple[float, ...] = WAITS_S
    max_attempts: int = MAX_ATTEMPTS

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= len(self.waits_s) + 1:
            raise ValueError(f"There are waits for 1 to {len(self.waits_s) + 1} attempts.")

    def next_due_ms(self, attempt: int, *, failed_ms: int, share: float) -> int | None:
        """Return when the attempt after a failed one is due; None after the last.

        Args:
            attempt: number of the failed attempt, from 1.
            failed_ms: instant of the failure.
            share: of the jitter, 0 to 1; the caller draws it.
        """
        if attempt >= self.max_attempts:
            return None
        wait_ms = self.waits_s[attempt - 1] * 1000
        return failed_ms + round(wait_ms * (1 + JITTER * share))
