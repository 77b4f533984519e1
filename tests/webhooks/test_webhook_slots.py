"""Slots of a worker, shared among webhooks: a slow receiver does not delay others."""

import heapq

from hypothesis import given
from hypothesis import strategies as st

from recorder.webhooks.delivery_scheduling import QUICK_MS, DeliverySlots, WebhookQueue

SLOTS = 16
A, B, C = (
    WebhookQueue(f"whk_{name}", f"wsp_{name}", due_ms) for name, due_ms in (("a", 1), ("b", 2), ("c", 3))
)


def begin(slots: DeliverySlots, queue: WebhookQueue, count: int = 1) -> None:
    """Let attempts of a queue begin."""
    for _ in range(count):
        slots.begin(queue)


def settle(
    slots: DeliverySlots, queue: WebhookQueue, *, is_success: bool, duration_ms: int = 5, times: int = 1
) -> None:
    """Let attempts of a queue run from begin to end."""
    for _ in range(times):
        slots.begin(queue)
        slots.end(queue, is_success=is_success, duration_ms=duration_ms)


def test_webhooks_take_turns_and_the_longest_waiting_comes_first() -> None:
    assert DeliverySlots(SLOTS).allot([C, B, A], most=4, now_ms=9) == {"whk_a": 2, "whk_b": 1, "whk_c": 1}


def test_a_new_webhook_begins_with_a_few() -> None:
    assert DeliverySlots(SLOTS).allot([A], most=32, now_ms=9) == {"whk_a": 4}


def test_quick_successes_let_a_webhook_have_more_up_to_a_quarter_of_the_slots() -> None:
    slots = DeliverySlots(32)
    settle(slots, A, is_success=True, times=2)
    assert slots.allot([A], most=32, now_ms=9) == {"whk_a": 6}
    settle(slots, A, is_success=True, times=50)
    assert slots.allot([A], most=32, now_ms=9) == {"whk_a": 8}


def test_a_receiver_that_times_out_is_soon_left_with_one() -> None:
    slots = DeliverySlots(SLOTS)
    settle(slots, A, is_success=True, times=50)
    settle(slots, A, is_success=False, duration_ms=10_000, times=3)
    assert slots.allot([A], most=32, now_ms=9) == {"whk_a": 1}


def test_slow_successes_earn_nothing() -> None:
    slots = DeliverySlots(SLOTS)
    settle(slots, A, is_success=True, duration_ms=QUICK_MS + 1, times=20)
    assert slots.allot([A], most=32, now_ms=9) == {"whk_a": 4}


def test_what_is_under_way_counts() -> None:
    slots = DeliverySlots(SLOTS)
    begin(slots, A, 3)
    assert (slots.free, slots.allot([A, B], most=32, now_ms=9)) == (13, {"whk_a": 1, "whk_b": 4})


def test_what_is_under_way_counts_for_the_workspace() -> None:
    slots = DeliverySlots(SLOTS)
    for n in range(SLOTS // 2):
        begin(slots, WebhookQueue(f"whk_{n}", "wsp_greedy", due_ms=n))
    more = WebhookQueue("whk_more", "wsp_greedy", due_ms=1)
    assert slots.allot([more, B], most=32, now_ms=9) == {"whk_b": 4}


def test_a_workspace_with_many_slow_webhooks_never_holds_more_than_half() -> None:
    slots = DeliverySlots(SLOTS)
    of_one = [WebhookQueue(f"whk_{n}", "wsp_greedy", due_ms=n) for n in range(100)]
    given_out = slots.allot([*of_one, WebhookQueue("whk_other", "wsp_other", 1_000)], most=32, now_ms=2_000)
    assert sum(given_out.values()) - given_out["whk_other"] == SLOTS // 2
    assert given_out["whk_other"] == 4


def test_many_webhooks_that_fail_at_once_leave_other_workspaces_their_turns() -> None:
    slots = DeliverySlots(256)
    flood = [WebhookQueue(f"whk_{n}", "wsp_flood", due_ms=n) for n in range(100)]
    late = WebhookQueue("whk_late", "wsp_late", due_ms=1_000)
    for _ in range(10):
        for webhook_id in slots.allot(flood, most=32, now_ms=2_000):
            settle(slots, WebhookQueue(webhook_id, "wsp_flood", 0), is_success=False)
    given_out = slots.allot([*flood, late], most=8, now_ms=2_000)
    assert (given_out["whk_late"], sum(given_out.values())) == (4, 8)


def test_many_webhooks_that_fail_at_once_leave_others_of_their_workspace_a_turn() -> None:
    slots = DeliverySlots(256)
    queues = [WebhookQueue(f"whk_{n}", "wsp_flood", due_ms=n) for n in range(100)]
    seen: set[str] = set()
    for _ in range(4):
        for webhook_id in slots.allot(queues, most=32, now_ms=2_000):
            settle(slots, WebhookQueue(webhook_id, "wsp_flood", 0), is_success=False)
            seen.add(webhook_id)
    assert len(seen) == 100


def test_a_workspace_that_had_no_room_repays_nothing() -> None:
    slots = DeliverySlots(SLOTS)
    slow = [WebhookQueue(f"whk_{n}", "wsp_slow", due_ms=0) for n in range(SLOTS // 2)]
    for queue in slow:
        slots.begin(queue)
    for _ in range(20):
        slots.allot([*slow, A], most=4, now_ms=9)
        settle(slots, A, is_success=True)
    for queue in slow:
        slots.end(queue, is_success=True, duration_ms=5)
    given_out = slots.allot([*slow, A], most=4, now_ms=9)
    assert given_out["whk_a"] == 2


def count_quick_deliveries(slow_workspaces: int, *, seconds: int = 50) -> int:
    """Return the deliveries of a quick workspace in the last ten seconds of a simulation.

    Each slow workspace has forty webhooks whose receivers time out; all have attempts that are due.
    """
    slots, turn_ms = DeliverySlots(64), 20
    quick = [WebhookQueue(f"whk_quick_{n}", "wsp_quick", 0) for n in range(4)]
    slow = [
        WebhookQueue(f"whk_{owner}_{n}", f"wsp_{owner}", 0)
        for owner in range(slow_workspaces)
        for n in range(40)
    ]
    by_id = {queue.webhook_id: queue for queue in (*quick, *slow)}
    ends: list[tuple[int, int, WebhookQueue]] = []
    begun = delivered = 0
    for now_ms in range(0, seconds * 1_000, turn_ms):
        while ends and ends[0][0] <= now_ms:
            queue = heapq.heappop(ends)[2]
            is_quick = queue.workspace_id == "wsp_quick"
            slots.end(queue, is_success=is_quick, duration_ms=40 if is_quick else 10_000)
            delivered += is_quick and now_ms > (seconds - 10) * 1_000
        for webhook_id, count in slots.allot([*slow, *quick], most=32, now_ms=now_ms).items():
            queue = by_id[webhook_id]
            for _ in range(count):
                slots.begin(queue)
                begun += 1
                ms = 40 if queue.workspace_id == "wsp_quick" else 10_000
                heapq.heappush(ends, (now_ms + ms, begun, queue))
    return delivered


def test_workspaces_whose_webhooks_time_out_leave_a_quick_one_its_slots() -> None:
    assert count_quick_deliveries(4) > count_quick_deliveries(0) / 3


def test_an_attempt_costs_its_workspace_the_time_that_it_took() -> None:
    slots = DeliverySlots(SLOTS)
    slots.allot([A, B], most=2, now_ms=9)
    settle(slots, A, is_success=True, duration_ms=QUICK_MS)
    settle(slots, B, is_success=True, duration_ms=QUICK_MS // 5)
    assert slots.allot([A, B], most=4, now_ms=9) == {"whk_b": 4}


def test_a_quarter_of_the_slots_is_kept_for_webhooks_that_are_not_slow() -> None:
    slots = DeliverySlots(SLOTS)
    slow = [WebhookQueue(f"whk_{n}", f"wsp_{n % 4}", due_ms=0) for n in range(SLOTS)]
    for queue in slow:
        settle(slots, queue, is_success=True, duration_ms=QUICK_MS + 1)
    settle(slots, A, is_success=True, duration_ms=QUICK_MS)
    for webhook_id, count in slots.allot(slow, most=SLOTS, now_ms=9).items():
        begin(slots, next(queue for queue in slow if queue.webhook_id == webhook_id), count)
    assert slots.free == SLOTS // 4
    assert slots.allot([*slow, A], most=SLOTS, now_ms=9) == {"whk_a": 4}
    # A new webhook could be slow: until its first attempt has ended, it has one of these slots.
    assert slots.allot([*slow, B], most=SLOTS, now_ms=9) == {"whk_b": 1}


def test_a_lane_with_nothing_to_give_takes_no_turn_for_a_while() -> None:
    slots = DeliverySlots(SLOTS)
    slots.rest("whk_a", 100)
    assert slots.allot([A, B], most=1, now_ms=99) == {"whk_b": 1}
    assert slots.allot([A, B], most=1, now_ms=100) == {"whk_a": 1}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 99)), max_size=20),
    st.integers(0, 40),
)
def test_no_more_is_given_than_asked_for_and_free(waiting: list[tuple[int, int, int]], most: int) -> None:
    slots = DeliverySlots(SLOTS)
    begin(slots, A, 5)
    unique = {f"whk_{n}": WebhookQueue(f"whk_{n}", f"wsp_{owner}", due_ms) for n, owner, due_ms in waiting}
    given_out = slots.allot(list(unique.values()), most=most, now_ms=100)
    assert sum(given_out.values()) <= min(most, slots.free)
    assert all(0 < count <= SLOTS // 4 for count in given_out.values())
