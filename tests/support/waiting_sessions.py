"""Sessions that wait to be sealed."""

from typing import Any

from recorder.runtime import Runtime
from tests.support.recorded_sessions import open_desk

EVENTS_PER_SESSION = 2


def stop_sessions(runtime: Runtime, count: int = 1, **members: Any) -> list[str]:
    """Record and stop so many sessions of two events each; returns their ids."""
    with open_desk(runtime) as desk:
        return [desk.record(**members) for _ in range(count)]
