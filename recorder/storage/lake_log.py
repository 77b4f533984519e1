"""Delta log of a lake table in a local folder: repair after power cuts, synced entries, checkpoints.

A commit is durable when its log entry, all entries before it and their folder are synced. Entries that a
power cut emptied or cut short were never reported as committed; they are not read as versions.
"""

import fcntl
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
from deltalake import DeltaTable

from recorder.errors import Unavailable
from recorder.ids import new_id
from recorder.storage.durable_files import make_durable_folder, sync_path_to_disk

log = logging.getLogger("recorder.lake")

_ENTRY = re.compile(r"(\d{20})\.json")
CHECKPOINT_NAME = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
#: Member of a commit's entry with the number of its actions: it shows an entry that was cut after a line.
ACTIONS_MEMBER = "recorderActions"
#: Folder in which a checkpoint is written, beside the log.
_CHECKPOINT_FOLDER = "_checkpoint-"
#: Attempts to find no process at work on a checkpoint, and the pause between two of them.
_LOCK_ATTEMPTS, _LOCK_PAUSE_S = 20, 0.05


class LocalLog:
    """Log of a table in a folder: finds and repairs damaged entries, syncs entries, writes checkpoints."""

    def __init__(self, table: Path, *, checkpoint_every: int) -> None:
        self.table = table
        self._checkpoint_every = checkpoint_every
        self._folder = table / "_delta_log"
        self._checkpoint_lock = self._folder / "_checkpoint.lock"
        self._lock = threading.Lock()
        #: Newest version up to which every entry is known to be complete; None before the first check.
        self._complete_version: int | None = None
        self._synced: int | None = None
        self._checkpoint: int | None = None

    def make_folder(self) -> None:
        """Create the folder of the log."""
        make_durable_folder(self._folder)

    def find_damage(self) -> int | None:
        """Return the first version whose entry is empty, cut short or missing; None if all are complete.

        Entries are created complete, by a link: a power cut damaged an entry that is not complete.
        """
        with self._lock:
            if (
                self._complete_version is not None
                and not self._make_entry_path(self._complete_version).exists()
            ):
                self._complete_version = self._synced = None
            newest = None
            if self._complete_version is None:
                entries, checkpoint = self._list_versions()
                if not entries and checkpoint < 0:
                    return None
                self._complete_version, newest = checkpoint, max(entries, default=checkpoint)
            while True:
                try:
                    data = self._make_entry_path(self._complete_version + 1).read_bytes()
                except (FileNotFoundError, NotADirectoryError):
                    if newest is None or newest <= self._complete_version:
                        return None
                    data = b""
                if not _is_complete_entry(data):
                    version = self._complete_version + 1
                    self._complete_version = None
                    return version
                self._complete_version += 1

    def repair(self) -> None:
        """Rename damaged entries and those after them, which were not reported as committed either."""
        if self.find_damage() is None:
            return
        with _lock_lake_log(self._folder / "_repair.lock"):
            damaged = self.find_damage()
            if damaged is None:
                return
            entries, _ = self._list_versions()
            # From the newest on, so that a repair that is killed leaves no entry after a gap.
            for version in sorted((entry for entry in entries if entry >= damaged), reverse=True):
                entry = self._make_entry_path(version)
                entry.rename(entry.with_name(f"{entry.name}.damaged-{new_id('req')}"))
                log.warning("set the damaged lake log entry %s aside; it was never acknowledged", entry)
            sync_path_to_disk(self._folder)
            with self._lock:
                self._complete_version = self._synced = None

    def sync(self) -> int:
        """Make the newest version durable: its entry, those before it, and the folder; return the version."""
        self.find_damage()
        with self._lock:
            known = self._synced if self._synced is not None else self._list_versions()[1]
            newest = self._complete_version if self._complete_version is not None else known
            for version in range(known + 1, newest + 1):
                try:
                    sync_path_to_disk(self._make_entry_path(version))
                except FileNotFoundError:
                    # A checkpoint that another process wrote since replaces it.
                    continue
            sync_path_to_disk(self._folder)
            self._synced = max(known, newest)
            return newest

    def write_checkpoint(self, version: int, *, is_due: bool = False) -> None:
        """Write a checkpoint of a durable version if the last one is old; delete entries that are older.

        It is written to another folder and renamed when it is synced, so it is complete or absent.

        Args:
            version: the version.
            is_due: write it however young the last one is.
        """
        every = 1 if is_due else self._checkpoint_every
        if self._checkpoint is None or version >= self._checkpoint + every:
            self._checkpoint = self._list_versions()[1]
        if version < self._checkpoint + every:
            return
        with (
            _lock_lake_log(self._checkpoint_lock, fcntl.LOCK_SH),
            tempfile.TemporaryDirectory(prefix=_CHECKPOINT_FOLDER, dir=self.table) as aside,
        ):
            copy = Path(aside) / "_delta_log"
            copy.mkdir()
            newest = self._checkpoint
            for path in list(self._folder.iterdir()):
                entry, checkpoint = _ENTRY.fullmatch(path.name), CHECKPOINT_NAME.fullmatch(path.name)
                is_needed = (entry and newest < int(entry[1]) <= version) or (
                    checkpoint and int(checkpoint[1]) == newest
                )
                if is_needed:
                    os.link(path, copy / path.name)
            DeltaTable(aside, version=version).create_checkpoint()
            written = [path for path in copy.iterdir() if path.stat().st_nlink == 1]
            # The hint last: it must not name a checkpoint that is not durable.
            for path in sorted(written, key=lambda path: path.name == "_last_checkpoint"):
                sync_path_to_disk(path)
                path.rename(self._folder / path.name)
                sync_path_to_disk(self._folder)
        self._checkpoint = version
        DeltaTable(self.table).cleanup_metadata()

    def delete_unfinished_checkpoints(self) -> None:
        """Delete what killed processes left of checkpoints: copies of entries, which name deleted rows.

        Raises:
            Unavailable: if other processes write checkpoints all the time.
        """
        for attempt in range(_LOCK_ATTEMPTS):
            if attempt:
                time.sleep(_LOCK_PAUSE_S)
            with (
                suppress(BlockingIOError),
                _lock_lake_log(self._checkpoint_lock, fcntl.LOCK_EX | fcntl.LOCK_NB),
            ):
                for folder in self.table.glob(f"{_CHECKPOINT_FOLDER}*"):
                    shutil.rmtree(folder)
                return
        raise Unavailable("the log of a lake table")

    def _make_entry_path(self, version: int) -> Path:
        return self._folder / f"{version:020}.json"

    def _list_versions(self) -> tuple[set[int], int]:
        """Return the versions that have entries, and the newest checkpoint's version (-1 if none)."""
        entries, checkpoint = set(), -1
        try:
            names = [path.name for path in self._folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return set(), -1
        for name in names:
            if match := _ENTRY.fullmatch(name):
                entries.add(int(match[1]))
            elif match := CHECKPOINT_NAME.fullmatch(name):
                checkpoint = max(checkpoint, int(match[1]))
        return entries, checkpoint


def _is_complete_entry(data: bytes) -> bool:
    """Return whether an entry of the Delta log holds all actions that its commit announced."""
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
def _lock_lake_log(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, kind)
        yield
