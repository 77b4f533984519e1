"""Delta log of a lake table in a local folder: repair after power cuts, synced entries, checkpoints.

A commit is durable when its log entry, all entries before it and their folder are synced. Entries that a
power cut emptied or cut short were never reported as committed; they are not read as versions.
"""

import fcntl
import logging
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
from deltalake import DeltaTable

from recorder.ids import new_id
from recorder.storage.durable_files import make_folder, sync_path

log = logging.getLogger("recorder.lake")

_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
_CHECKPOINT_EVERY = 100
#: Member of a commit's entry with the number of its actions: it shows an entry that was cut after a line.
ACTIONS_MEMBER = "recorderActions"


class LocalLog:
    """The log of a table in a folder: finds damaged entries, and syncs entries."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self._folder = table / "_delta_log"
        self._lock = threading.Lock()
        #: Newest version up to which every entry is known to be whole; None before the first look.
        self._whole: int | None = None
        self._synced: int | None = None
        self._checkpoint: int | None = None

    def make_folder(self) -> None:
        """Create the folder of the log."""
        make_folder(self._folder)

    def find_damage(self) -> int | None:
        """Return the first version whose entry is empty, cut short or missing; None if all are whole.

        Entries appear whole, by a link: one that is not whole was damaged by a power cut.
        """
        with self._lock:
            if self._whole is not None and not self._entry(self._whole).exists():
                self._whole = self._synced = None
            newest = None
            if self._whole is None:
                entries, checkpoint = self._list()
                if not entries and checkpoint < 0:
                    return None
                self._whole, newest = checkpoint, max(entries, default=checkpoint)
            while True:
                try:
                    data = self._entry(self._whole + 1).read_bytes()
                except (FileNotFoundError, NotADirectoryError):
                    if newest is None or newest <= self._whole:
                        return None
                    data = b""
                if not _is_whole(data):
                    version = self._whole + 1
                    self._whole = None
                    return version
                self._whole += 1

    def repair(self) -> None:
        """Set damaged entries aside, and those after them, which were not reported as committed either."""
        if self.find_damage() is None:
            return
        with _locked(self._folder / "_repair.lock"):
            damaged = self.find_damage()
            if damaged is None:
                return
            entries, _ = self._list()
            # From the newest on, so that a repair that is cut off leaves no entry behind a gap.
            for version in sorted((one for one in entries if one >= damaged), reverse=True):
                entry = self._entry(version)
                entry.rename(entry.with_name(f"{entry.name}.damaged-{new_id('req')}"))
                log.warning("set the damaged lake log entry %s aside; it was never acknowledged", entry)
            sync_path(self._folder)
            with self._lock:
                self._whole = self._synced = None

    def sync(self) -> int:
        """Make the newest version durable: its entry, those before it, and the folder; return the version."""
        self.find_damage()
        with self._lock:
            known = self._synced if self._synced is not None else self._list()[1]
            newest = self._whole if self._whole is not None else known
            for version in range(known + 1, newest + 1):
                try:
                    sync_path(self._entry(version))
                except FileNotFoundError:
                    # A checkpoint that another process wrote since replaces it.
                    continue
            sync_path(self._folder)
            self._synced = max(known, newest)
            return newest

    def write_checkpoint(self, version: int) -> None:
        """Write a checkpoint of a durable version if the last is old; drop entries that are older still.

        It is written aside and renamed when it is synced, so that it is there whole or not at all.
        """
        if self._checkpoint is None or version >= self._checkpoint + _CHECKPOINT_EVERY:
            self._checkpoint = self._list()[1]
        if version < self._checkpoint + _CHECKPOINT_EVERY:
            return
        with tempfile.TemporaryDirectory(prefix="_checkpoint-", dir=self.table) as aside:
            copy = Path(aside) / "_delta_log"
            copy.mkdir()
            newest = self._checkpoint
            for path in list(self._folder.iterdir()):
                entry, checkpoint = _ENTRY.fullmatch(path.name), _CHECKPOINT.fullmatch(path.name)
                is_needed = (entry and newest < int(entry[1]) <= version) or (
                    checkpoint and int(checkpoint[1]) == newest
                )
                if is_needed:
                    os.link(path, copy / path.name)
            DeltaTable(aside, version=version).create_checkpoint()
            written = [path for path in copy.iterdir() if path.stat().st_nlink == 1]
            # The hint last: it must not name a checkpoint that is not durable.
            for path in sorted(written, key=lambda path: path.name == "_last_checkpoint"):
                sync_path(path)
                path.rename(self._folder / path.name)
                sync_path(self._folder)
        self._checkpoint = version
        DeltaTable(self.table).cleanup_metadata()

    def _entry(self, version: int) -> Path:
        return self._folder / f"{version:020}.json"

    def _list(self) -> tuple[set[int], int]:
        """Return the versions that have entries, and the newest checkpoint's version (-1 if none)."""
        entries, checkpoint = set(), -1
        try:
            names = [path.name for path in self._folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return set(), -1
        for name in names:
            if match := _ENTRY.fullmatch(name):
                entries.add(int(match[1]))
            elif match := _CHECKPOINT.fullmatch(name):
                checkpoint = max(checkpoint, int(match[1]))
        return entries, checkpoint


def _is_whole(data: bytes) -> bool:
    try:
        actions = [orjson.loads(line) for line in data.splitlines()]
    except orjson.JSONDecodeError:
        return False
    members = [name for action in actions if isinstance(action, dict) for name in action]
    if not members or len(members) != len(actions):
        return False
    infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    if infos and infos[0].get("operation") == "CREATE TABLE":
        return {"protocol", "metaData"} <= set(members)
    expected = infos[0].get(ACTIONS_MEMBER) if infos else None
    return expected is None or len(actions) == expected + 1


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
