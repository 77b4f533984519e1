"""Simulated power cuts: a journal of writes and syncs, and what of a folder is left after a cut."""

import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.databases import part_is_missing

_SOURCE = Path(__file__).with_name("power_cut.c")


def build_recorder(folder: Path) -> Path:
    """Compile the library that records writes and syncs; skip the test where no compiler is installed."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        part_is_missing("No C compiler is installed to build the recorder of syncs with; install gcc.")
    library = folder / "power_cut.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"], check=True
    )
    return library


@dataclass
class State:
    """Files and folder entries that are durable, according to a journal."""

    #: Synced bytes by inode.
    synced: dict[int, int] = field(default_factory=dict)
    #: Inodes written since their last sync.
    dirty: set[int] = field(default_factory=set)
    #: Paths whose folder was not synced since they appeared.
    pending: set[str] = field(default_factory=set)

    def apply(self, line: str) -> None:
        """Take one line of the journal into account."""
        kind, _, rest = line.partition(" ")
        match kind:
            case "N":
                self.synced[int(rest)] = 0
                self.dirty.add(int(rest))
            case "W":
                self.dirty.add(int(rest))
            case "S":
                inode, size = map(int, rest.split())
                self.synced[inode] = size
                self.dirty.discard(inode)
            case "E":
                self.pending.add(rest)
            case "D":
                self.pending = {path for path in self.pending if os.path.dirname(path) != rest}  # noqa: PTH120


@dataclass
class Disk:
    """A folder whose writes and syncs are recorded."""

    root: Path
    journal: Path
    library: Path
    #: Sizes of the files that were there before: they are durable.
    existing: dict[int, int] = field(default_factory=dict)

    @classmethod
    def watch(cls, root: Path, aside: Path) -> "Disk":
        """Prepare a folder, with the files that it holds, to be written to under the recorder."""
        existing = {path.stat().st_ino: path.stat().st_size for path in root.rglob("*") if path.is_file()}
        return cls(root.resolve(), aside / "journal", build_recorder(aside), existing)

    def environment(self) -> dict[str, str]:
        """Return the variables with which a process writes under the recorder."""
        return {
            "LD_PRELOAD": str(self.library),
            "POWER_CUT_ROOT": str(self.root),
            "POWER_CUT_JOURNAL": str(self.journal),
        }

    def lines(self) -> list[str]:
        """Return the journal."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def state(self) -> State:
        """Return what is durable now."""
        state = State(dict(self.existing))
        for line in self.lines():
            state.apply(line)
        return state

    def cut(self, target: Path, choose: random.Random | None) -> list[str]:
        """Copy the folder as it is after a power cut; return the paths that the cut changed.

        Args:
            choose: decides what is lost of what is not durable; None loses all of it.
        """
        state, changed = self.state(), []
        shutil.copytree(self.root, target, symlinks=True)
        for path in sorted(self.root.rglob("*"), reverse=True):
            copy = target / path.relative_to(self.root)
            if str(path) in state.pending and (choose is None or choose.random() < 0.5):
                changed.append(str(path))
                if copy.is_dir():
                    shutil.rmtree(copy)
                else:
                    copy.unlink(missing_ok=True)
                continue
            status = path.stat()
            durable = state.synced.get(status.st_ino)
            if not path.is_file() or durable is None or not copy.exists():
                continue
            size = copy.stat().st_size
            if size > durable or (status.st_ino in state.dirty and durable < size):
                left = durable if choose is None else choose.choice([durable, choose.randint(durable, size)])
                os.truncate(copy, left)
                changed.append(str(path))
        return changed


class Frozen:
    """Process that is suspended while its folder is copied."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __enter__(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self._process.pid}/stat")
        deadline = time.monotonic() + 10
        while stat.read_text().rpartition(")")[2].split()[0] not in "TZ" and time.monotonic() < deadline:
            time.sleep(0.001)
        # Calls into the kernel that were under way come to their end.
        time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGCONT)
