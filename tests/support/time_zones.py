"""A local time zone that is not UTC, in which reading a time without its zone shows."""

import time
from collections.abc import Iterator

import pytest


@pytest.fixture
def far_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the clocks of this process to a zone 5:45 hours ahead of UTC."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        yield
    time.tzset()
