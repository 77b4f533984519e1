"""Due times of attempts, under a clock that is a number. Spec §6.3, contract §6."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.webhooks.delivery_scheduling import JITTER, MAX_ATTEMPTS, WAITS_S, DeliverySchedule

MINUTE, HOUR = 60, 3_600


def test_the_waits_are_those_of_the_specification() -> None:
    assert WAITS_S == (5, 30, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 6 * HOUR, 12 * HOUR)
    assert (MAX_ATTEMPTS, JITTER) == (7, 0.1)


def test_a_delivery_that_always_fails_is_attempted_seven_times() -> None:
    now_ms, begun = 0, [0]
    while (due_ms := DeliverySchedule().next_due_ms(len(begun), failed_ms=now_ms, share=0)) is not None:
        now_ms = due_ms
        begun.append(now_ms)
    waits = [(later - earlier) / 1000 for earlier, later in pairwise(begun)]
    assert waits == [5, 30, 300, 1_800, 7_200, 21_600]


def test_twelve_hours_are_for_the_eighth_attempt_that_an_operator_may_allow() -> None:
    longer = DeliverySchedule(max_attempts=8)
    assert longer.next_due_ms(7, failed_ms=0, share=0) == 12 * HOUR * 1000
    assert longer.next_due_ms(8, failed_ms=0, share=0) is None


@given(attempt=st.integers(1, 6), failed_ms=st.integers(0, 2**45), share=st.floats(0, 1))
def test_jitter_lengthens_a_wait_by_a_tenth_at_most(attempt: int, failed_ms: int, share: float) -> None:
    wait_ms = WAITS_S[attempt - 1] * 1000
    due_ms = DeliverySchedule().next_due_ms(attempt, failed_ms=failed_ms, share=share)
    assert due_ms is not None
    assert wait_ms <= due_ms - failed_ms <= wait_ms * 1.1


@pytest.mark.parametrize("attempts", [0, 9])
def test_there_is_no_schedule_without_its_waits(attempts: int) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        DeliverySchedule(max_attempts=attempts)
