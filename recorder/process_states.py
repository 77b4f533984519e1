"""States of processes of this machine, as the kernel shows them."""

import os
from pathlib import Path


def is_process_running(process_id: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _read_process_state(process_id) != "Z"


def is_process_stopped(process_id: int) -> bool:
    """Return whether a process is stopped by a signal, as far as the system shows it."""
    return _read_process_state(process_id) == "T"


def _read_process_state(process_id: int) -> str:
    """Return the letter of a process's state; an empty text where there is no `/proc`."""
    try:
        # The name in parentheses may hold anything, also parentheses.
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return ""
