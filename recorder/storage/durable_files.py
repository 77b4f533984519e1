"""Local files: private to their user, synced to disk together with their folders."""

import os
import threading
from itertools import takewhile
from pathlib import Path

# Folders whose entries in their parent folders this process has synced.
_synced: set[Path] = set()
_lock = threading.Lock()


def keep_files_private() -> None:
    """Restrict new files and folders of this process and its children to their user."""
    os.umask(0o077)


def sync_path_to_disk(path: str | Path) -> None:
    """Write a file's bytes, or a folder's entries, from the page cache to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_probe_file(folder: str | Path) -> None:
    """Check that a folder takes files: write one and delete it; a missing folder is created.

    Raises:
        OSError: if it does not.
    """
    probe = Path(folder) / ".health"
    probe.parent.mkdir(parents=True, exist_ok=True)
    probe.write_bytes(b"ok")
    # Another process may probe the folder at the same time.
    probe.unlink(missing_ok=True)


def make_durable_folder(folder: Path) -> None:
    """Create a folder and those above it, and sync their entries.

    A folder that exists may have been created by another process that has not synced it yet: each process
    syncs the entries of every folder above its files once.
    """
    absolute = folder.absolute()
    chain = [absolute, *absolute.parents]
    missing = set(takewhile(lambda parent: not parent.exists(), chain))
    folder.mkdir(parents=True, exist_ok=True)
    with _lock:
        for parent in chain[:-1]:
            if parent in _synced and parent not in missing:
                return
            try:
                sync_path_to_disk(parent.parent)
            except PermissionError:
                # This user cannot have written to a folder that it may not read.
                return
            _synced.add(parent)
