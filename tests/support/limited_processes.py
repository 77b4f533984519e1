"""Process for tests of limits: it answers with the message, waits, or ends."""

import os
import time

from recorder.limited_process import serve_limited_process


def serve(memory_bytes: int) -> None:
    """Answer with the message in capitals; `end` ends the process, `wait` takes a minute, `work` goes on."""
    serve_limited_process(_answer, memory_bytes)


def _answer(message: bytes) -> bytes:
    if message == b"end":
        os._exit(1)
    if message == b"wait":
        time.sleep(60)
    while message == b"work":
        pass
    return message.upper()
