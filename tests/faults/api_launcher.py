"""The API started again and again: one process has imported it, each life is a child that serves.

`python -m tests.faults.api_launcher UVICORN-OPTIONS…` reads lines: each starts a life, once the one before it
has ended, and its process id is written to stdout. An import takes seconds; three hundred of them, a quarter
of an hour.
"""

import sys

import uvicorn.main

import api.app  # what takes the time
import api.gate.slow_clients  # noqa: F401
from tests.support.forked_restarts import live_in_turns

if __name__ == "__main__":
    live_in_turns(lambda _: uvicorn.main.main(sys.argv[1:], standalone_mode=False))
