"""States of processes of this machine, as the kernel shows them."""

import os
import time
from pathlib import Path

#: Position of the start, in ticks since the machine was booted; the first field is the state.
_START_FIELD = 19


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


def measure_process_age(process_id: int) -> float | None:
    """Return the seconds since a process started, by a clock that is never set; None if they are unknown."""
    fields = _read_process_fields(process_id)
    if not fields:
        return None
    started_s = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def _read_process_state(process_id: int) -> str:
    """Return the letter of a process's state; an empty text where there is no `/proc`."""
    return next(iter(_read_process_fields(process_id)), "")


def _read_process_fields(process_id: int) -> list[str]:
    """Return the fields of a process's `stat`, from its state on; none where there is no `/proc`."""
    try:
        # The name in parentheses may hold anything, also parentheses.
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []
