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
    """Sample ten times a second while the block runs."""
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


def read_cpu_seconds(service: Service) -> dict[str, float]:
    """Return the processor time of each process of the service, and of what it started."""
    names = {child.pid: child.command.name for child in service.children}
    parents = _parents()
    values: dict[str, float] = {}
    for pid in parents:
        if _is_below(pid, parents, names):
            name = names.get(pid, f"below {names[_root_of(pid, parents, names)]}, {pid}")
            values[name] = _cpu_seconds(pid)
    return values


def _root_of(pid: int, parents: dict[int, int], roots: dict[int, str]) -> int:
    while pid not in roots:
        pid = parents[pid]
    return pid


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _parents() -> dict[int, int]:
    """Return the parent of every process of this machine."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it has ended meanwhile
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
