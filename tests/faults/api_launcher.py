"""The API started again and again: one process has imported it, each life is a child that serves.

`python -m tests.faults.launcher UVICORN-OPTIONS…` reads lines: each starts a life, once the one before it has
ended, and its process id is written to stdout. An import takes seconds; three hundred of them, a quarter of
an hour.
"""

import os
import sys

import uvicorn.main

import api.app  # what takes the time
import api.gate.slow_clients  # noqa: F401


def main() -> None:
    """Start a life for each line, until there is no more."""
    life = 0
    for _ in sys.stdin:
        if life:
            os.waitpid(life, 0)
        life = os.fork()
        if not life:
            uvicorn.main.main(sys.argv[1:], standalone_mode=False)
            os._exit(0)
        print(life, flush=True)
    if life:
        os.waitpid(life, 0)


if __name__ == "__main__":
    main()
