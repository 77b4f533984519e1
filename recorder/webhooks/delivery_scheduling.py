"""Scheduling of deliveries: fair shares of webhooks, and waits between attempts. Spec §6.3, contract §6.

Pure computation without a database. A slow receiver does not delay the deliveries of other webhooks.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from recorder.fair_scheduling import LeastCostScheduler, compute_workspace_share

#: A success within this time allows its webhook one more attempt under way. A webhook whose last attempt took
#: longer is slow.
QUICK_MS = 1_000
#: Duration of an attempt that costs its workspace as much as to begin one.
_COST_MS = 100
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
    """Slots of a worker, shared among webhooks. Workspaces take turns, and the webhooks of each.

    A webhook's allowance grows by one with each quick success and halves with each failure, so one that
    times out soon holds a single slot. It never exceeds a quarter of the slots, and a workspace with all of
    its webhooks never holds more than half of them. Slow webhooks, and the attempts of new ones beside
    their first, hold at most three quarters together.
    A workspace's turns depend on the duration of its attempts: the slots are what workspaces share.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._of_one_webhook = max(1, slots // 4)
        self._of_one_workspace = compute_workspace_share(slots)
        self._of_slow_webhooks = slots - slots // 4
        self._allowed: dict[str, int] = {}
        #: Durations of the last attempts.
        self._last_ms: dict[str, int] = {}
        self._resting: dict[str, int] = {}
        self._of_webhook: Counter[str] = Counter()
        self._of_workspace: Counter[str] = Counter()
        #: Attempts that the workspaces began, and their durations.
        self._scheduler = LeastCostScheduler[str]()
        #: Number of the last attempt that was allotted to a webhook.
        self._last_turn: dict[str, int] = {}
        self._turn = 0

    @property
    def free(self) -> int:
        """Slots without an attempt."""
        return self._slots - self._of_webhook.total()

    def allot(self, queues: Sequence[WebhookQueue], *, most: int, now_ms: int) -> dict[str, int]:
        """Return the attempts that each webhook may begin now.

        The workspace whose attempts cost least is next, with the webhook whose last turn was longest ago;
        of equal ones the longest waiting.

        Args:
            queues: webhooks with due attempts.
            most: attempts to begin in all; fewer where fewer slots are free.
            now_ms: the present instant.
        """
        left = min(most, self.free)
        given: Counter[str] = Counter()
        of_workspace = Counter(self._of_workspace)
        of_slow = sum(self._count_slow(*of_webhook) for of_webhook in self._of_webhook.items())
        awake = (queue for queue in queues if self._resting.get(queue.webhook_id, 0) <= now_ms)
        queues_of: defaultdict[str, deque[WebhookQueue]] = defaultdict(deque)
        for queue in sorted(
            awake, key=lambda queue: (self._last_turn.get(queue.webhook_id, 0), queue.due_ms)
        ):
            if self._has_room(queue, given, of_workspace):
                queues_of[queue.workspace_id].append(queue)
        self._scheduler.set_waiting(queues_of)
        waiting = {workspace_id: queues_of[workspace_id] for workspace_id in self._scheduler.sort_waiting()}
        while left and (workspace_id := self._scheduler.find_next(waiting)) is not None:
            queue = waiting[workspace_id].popleft()
            busy = self._of_webhook[queue.webhook_id] + given[queue.webhook_id]
            is_slow = self._count_slow(queue.webhook_id, busy + 1) > self._count_slow(queue.webhook_id, busy)
            has_slot = not is_slow or of_slow < self._of_slow_webhooks
            if has_slot and self._has_room(queue, given, of_workspace):
                self._count_turn(queue)
                of_slow += is_slow
                given[queue.webhook_id] += 1
                of_workspace[workspace_id] += 1
                left -= 1
                waiting[workspace_id].append(queue)
            if not waiting[workspace_id]:
                del waiting[workspace_id]
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
        """Release the slot of an ended attempt, charge its time to the workspace, and adapt the allowance."""
        webhook_id = attempt.webhook_id
        self._scheduler.add_cost(attempt.workspace_id, duration_ms / _COST_MS)
        _limit_scheduling_cache(self._last_ms)
        self._last_ms[webhook_id] = duration_ms
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

    def _count_turn(self, queue: WebhookQueue) -> None:
        """Note that a webhook got a turn, and charge it to the workspace."""
        _limit_scheduling_cache(self._last_turn)
        self._turn += 1
        self._last_turn[queue.webhook_id] = self._turn
        self._scheduler.add_cost(queue.workspace_id, 1)

    def _has_room(self, queue: WebhookQueue, given: Counter[str], of_workspace: Counter[str]) -> bool:
        """Return whether a webhook may have one more attempt under way, and its workspace too."""
        allowed = min(self._of_one_webhook, self._allowed.get(queue.webhook_id, _FIRST_ALLOWANCE))
        busy = self._of_webhook[queue.webhook_id] + given[queue.webhook_id]
        return busy < allowed and of_workspace[queue.workspace_id] < self._of_one_workspace

    def _count_slow(self, webhook_id: str, count: int) -> int:
        """Return the slow ones of a webhook's attempts under way; of a new webhook all but one are slow."""
        last_ms = self._last_ms.get(webhook_id)
        if last_ms is None:
            return max(0, count - 1)
        return count if last_ms > QUICK_MS else 0


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
