"""Waiting for a condition, for a limited time."""

import time
from collections.abc import Callable
from typing import Any

_PAUSE_S = 0.01


def wait_for(condition: Callable[[], Any], *, seconds: float = 60) -> Any:
    """Wait until a condition holds, and return its value.

    Args:
        condition: called again and again until its value is true.
        seconds: time after which the test fails.
    """
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, f"The condition did not hold within {seconds:g} seconds."
        time.sleep(_PAUSE_S)
    return value
