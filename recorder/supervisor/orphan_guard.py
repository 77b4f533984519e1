"""Guard process of a service: it ends the process groups of the children once its parent is gone.

It runs as a file with the standard library alone, which costs a tenth of importing the package.
"""

import os
import signal
import sys
import time

_GRACE_S = 8.0


def main() -> None:
    """Read process groups from stdin (`+123` watch, `-123` forget); at its end, stop the watched groups."""
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    until = time.monotonic() + _GRACE_S
    alive = {group for group in groups if _signal_process_group(group, signal.SIGTERM)}
    while alive and time.monotonic() < until:
        time.sleep(0.1)
        alive = {group for group in alive if _signal_process_group(group, 0)}
    for group in alive:
        _signal_process_group(group, signal.SIGKILL)


def _signal_process_group(group: int, number: int) -> bool:
    """Send a signal to a group; return whether it has a process left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
