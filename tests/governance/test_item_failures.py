"""Loops that go on past an item that fails: what they raise, and when. Contract §7."""

import pytest

from recorder.errors import Unavailable
from recorder.governance.item_failures import ItemFailures, ItemsFailed
from recorder.storage.leases import LeaseLost


def fail(failures: ItemFailures, error: Exception) -> None:
    """Work on an item that fails."""
    with failures.collect("one"):
        raise error


def test_the_end_of_a_loop_says_how_many_items_failed_and_the_first_error() -> None:
    failures, first = ItemFailures("exports"), Unavailable("The store")
    fail(failures, first)
    fail(failures, ValueError("a row"))
    with failures.collect("a whole one"):
        pass
    with pytest.raises(ItemsFailed, match=r"^Failed exports: 2\. The first error: The store does") as raised:
        failures.raise_at_end()
    assert raised.value.__cause__ is first and "not tried" not in str(raised.value)


def test_a_loop_without_failures_raises_nothing() -> None:
    failures = ItemFailures("exports", longest_s=0.0)
    with failures.collect("one"):
        pass
    failures.raise_at_end()


def test_messages_of_libraries_are_not_reported() -> None:
    failures = ItemFailures("exports")
    fail(failures, ValueError("a row"))
    with pytest.raises(ItemsFailed, match="ValueError; see the log") as raised:
        failures.raise_at_end()
    assert "a row" not in str(raised.value)


def test_items_that_fail_for_long_end_the_loop() -> None:
    failures = ItemFailures("exports", longest_s=0.0)
    with pytest.raises(ItemsFailed, match="Items after the last of them were not tried"):
        fail(failures, Unavailable("The store"))


def test_a_lost_lease_ends_the_loop_at_once() -> None:
    failures = ItemFailures("exports")
    with pytest.raises(LeaseLost):
        fail(failures, LeaseLost())
