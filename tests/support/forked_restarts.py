"""Restarts of a program that is killed, as children of one process that has imported it."""

import os
import sys
from collections.abc import Callable


def live_in_turns(live: Callable[[str], None]) -> None:
    """Start a life for each line of stdin, once the life before it has ended, until there is no more.

    The process id of each is written to stdout.

    Args:
        live: called with the line, without its end, in a child that ends with the call.
    """
    life = 0
    for line in sys.stdin:
        if life:
            os.waitpid(life, 0)
        life = os.fork()
        if not life:
            live(line.strip())
            os._exit(0)
        os.write(1, b"%d\n" % life)
    if life:
        os.waitpid(life, 0)
