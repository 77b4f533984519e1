"""Watch over the memory of a browser: its processes are ended beyond a limit. Decision 0045.

Chromium reserves far more addresses than it uses, so the kernel's limit for one process is a coarse one, and
it starts a process for each site.
"""

import os
import resource
import signal
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_PAGE_BYTES = resource.getpagesize()
_EVERY_S = 0.5


class MemoryWatch:
    """Thread that adds up the memory of all processes below this one, and ends them if it is too much."""

    def __init__(self, most_bytes: int, *, every_s: float = _EVERY_S) -> None:
        self._most_bytes, self._every_s = most_bytes, every_s
        #: Whether the processes were ended.
        self.is_exceeded = False
        self._thread = threading.Thread(target=self._watch_memory, name="memory-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def describe(self) -> str:
        """Return the sentence that says what was exceeded."""
        return f"The pages of the replay used more than {self._most_bytes // 2**20:,} MiB of memory."

    def _watch_memory(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._every_s):
            processes = list_descendants(os.getpid())
            if sum(map(read_watched_process_memory, processes)) > self._most_bytes:
                self.is_exceeded = True
                for process in processes:
                    with suppress(OSError):
                        os.kill(process, signal.SIGKILL)


def list_descendants(ancestor: int) -> list[int]:
    """Return the ids of the processes that a process started, and of those that they started."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                # The name of a program, in parentheses, may hold spaces and parentheses.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                children[int(fields[1])].append(int(folder.name))
    processes, waiting = [], [ancestor]
    while waiting:
        below = children.pop(waiting.pop(), [])
        processes += below
        waiting += below
    return processes


def read_watched_process_memory(process: int) -> int:
    """Return the memory that a process shares with no file; 0 once it is gone."""
    with suppress(OSError, IndexError, ValueError):
        _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
        return max(0, int(resident) - int(shared)) * _PAGE_BYTES
    return 0
