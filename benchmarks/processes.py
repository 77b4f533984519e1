"""Memory and processor time of each process of a service, read from /proc while they run."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.dagster_runs import list_runs, process_ids
from recorder.supervisor import Service

_EVERY_S = 0.1
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


class MemoryWatch:
    """Sampler of the service's processes, of all that they start, and of further ones."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._names = {child.pid: child.command.name for child in service.children}
        self._peaks: dict[int, float] = {}

    def add(self, name: str, pid: int) -> None:
        """Watch one more process."""
        self._names[pid] = name

    def look(self) -> None:
        """Note the peaks so far: the kernel keeps them, so one sample before a process ends is enough."""
        parents = _parents()
        for pid in parents:
            if _is_below(pid, parents, self._names.copy()):
                self._peaks[pid] = max(self._peaks.get(pid, 0.0), _peak_mb(pid))

    def peaks_mb(self) -> dict[str, float]:
        """Return the highest peak of each kind of process, in MB; Dagster's runs by their job."""
        names = dict(self._names)
        if self._service.dagster_url is not None:
            with self._service.open_dagster() as dagster:
                for run in list_runs(dagster):
                    names.update(dict.fromkeys(process_ids(dagster, run), f"run of {run.job}"))
        values: dict[str, float] = {}
        for pid, peak in self._peaks.items():
            if pid in names:
                values[names[pid]] = max(values.get(names[pid], 0.0), peak)
        return values


@contextmanager
def watched_memory(service: Service) -> Iterator[MemoryWatch]:
    """Measure memory ten times a second while the block runs."""
    watch = MemoryWatch(service)
    is_over = threading.Event()

    def look_again() -> None:
        while not is_over.wait(_EVERY_S):
            watch.look()

    thread = threading.Thread(target=look_again, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        thread.join()


def read_cpu_seconds(root: int) -> dict[str, float]:
    """Return the processor time of a process and of all that it started, ended processes included.

    Each child of the root is listed together with its descendants. The kernel adds the time of an ended
    process to the one that started it.
    """
    parents = _parents()
    values: dict[str, float] = {}
    for pid in parents:
        if _is_below(pid, parents, {root: ""}):
            branch = pid if pid == root else _child_of(root, pid, parents)
            name = f"{_read_command(branch)}, {branch}"
            values[name] = values.get(name, 0.0) + _cpu_seconds(pid)
    return values


def _child_of(root: int, pid: int, parents: dict[int, int]) -> int:
    """Return the child of the root that a process descends from, or the process itself."""
    while parents[pid] != root:
        pid = parents[pid]
    return pid


def _read_command(pid: int) -> str:
    """Return the words of a command that say what it is."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:  # it has ended
        return "ended"
    return " ".join([Path(word).name for word in words[1:] if not word.startswith("-")][:2])


def _cpu_seconds(pid: int) -> float:
    """Return the time of a process and of its ended children, whose parent has waited for them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _parents() -> dict[int, int]:
    """Return the parent of every process of this machine."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def _is_below(pid: int, parents: dict[int, int], roots: dict[int, str]) -> bool:
    """Return whether a process is one of these or was started by one of them."""
    while pid in parents and pid not in roots:
        pid = parents[pid]
    return pid in roots


def _peak_mb(pid: int) -> float:
    try:
        match = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(match[1]) / 1024 if match else 0.0
