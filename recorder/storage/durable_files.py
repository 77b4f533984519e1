"""Files that only their user reads, and that survive a power cut once they were written."""

import os
import threading
from itertools import takewhile
from pathlib import Path

# Folders whose entries in the folders above were synced by this process.
_synced: set[Path] = set()
_lock = threading.Lock()


def keep_files_private() -> None:
    """Let files and folders that this process and its children create be open to their user alone."""
    os.umask(0o077)


def sync_path(path: str | Path) -> None:
    """Write a file's bytes, or a folder's entries, from the page cache to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, and sync their entries.

    A folder that exists may have been created by another process that has not synced it yet: each process
    syncs the entries of every folder above its files once.
    """
    absolute = folder.absolute()
    chain = [absolute, *absolute.parents]
    missing = set(takewhile(lambda one: not one.exists(), chain))
    folder.mkdir(parents=True, exist_ok=True)
    with _lock:
        for one in chain[:-1]:
            if one in _synced and one not in missing:
                return
            try:
                sync_path(one.parent)
            except PermissionError:
                # A folder that may not be read was not written to by this user.
                return
            _synced.add(one)
