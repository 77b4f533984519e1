"""The guard of a service, a small process: once its parent is gone, it ends the groups it was told of.

Run as a file, with nothing but the standard library: it costs a tenth of what the package would.
"""

import os
import signal
import sys
import time

_GRACE_S = 8.0


def main() -> None:
    """Keep the list that stdin brings (`+123` watch, `-123` forget); once it ends, stop what is on it."""
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    until = time.monotonic() + _GRACE_S
    alive = {group for group in groups if _signal(group, signal.SIGTERM)}
    while alive and time.monotonic() < until:
        time.sleep(0.1)
        alive = {group for group in alive if _signal(group, 0)}
    for group in alive:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Whether the group has a process left that the signal reached."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
