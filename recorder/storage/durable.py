"""Syncs of files and folders, so that what was written survives a power cut."""

import os
import threading
from pathlib import Path

# Folders whose entries in the folders above were synced by this process.
_synced: set[str] = set()
_lock = threading.Lock()


def sync_path(path: str | Path) -> None:
    """Write a file's bytes, or a folder's entries, from the page cache to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, root: Path) -> None:
    """Create a folder below a root, and sync its entry and those of all folders up to the root.

    A folder that exists may have been created by another process that did not sync it yet: each process
    syncs the entries of every folder once.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with _lock:
        changed = [folder, *folder.parents]
        for one in changed:
            key = os.fspath(one)
            if is_new or key not in _synced:
                sync_path(one.parent)
                _synced.add(key)
            if one == root:
                return
