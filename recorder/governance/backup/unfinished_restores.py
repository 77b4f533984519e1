"""Folders of restores beside the wanted data folder: locked while one is at work, left where it was killed.

They hold a copy of the deployment's data, with sessions that were deleted or erased after the backup.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recorder.governance.backup.errors import RestoreBusy
from recorder.ids import new_id


def name_staged_folder(data: Path) -> Path:
    """Return a new path beside a data folder, for what is restored to it."""
    return data.with_name(f"{_make_staged_folder_prefix(data)}{new_id('req').partition('_')[2]}")


@contextmanager
def hold_staged_folder(staged: Path, data: Path) -> Iterator[None]:
    """Create the folder of a restore, and lock it until the restore has ended or is killed.

    Args:
        staged: the folder, of `name_staged_folder`.
        data: the data folder that is restored; what killed restores to it left is removed.

    Raises:
        RestoreBusy: if another restore to the data folder is at work.
    """
    with _locked_folder(data.parent):
        for left in list_unfinished_restores(data):
            shutil.rmtree(left, ignore_errors=True)
        others = _list_staged_folders(data)
        if others:
            raise RestoreBusy(data, others[0])
        staged.mkdir(mode=0o700)
        descriptor = _lock_folder(staged)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder: of two restores that begin at once, one sees the locked folder of the other."""
    descriptor = None
    with suppress(OSError):  # a folder that this user may not read
        descriptor = _lock_folder(folder)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock_folder(folder: Path) -> int:
    """Wait for the lock of a folder; return the descriptor that holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    with suppress(OSError):  # some network folders take no locks: what is left there is only named
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def list_unfinished_restores(data: Path) -> list[Path]:
    """Return the folders that restores to a data folder left and that none is at work on."""
    return [path for path in _list_staged_folders(data) if not _is_held(path)]


def _list_staged_folders(data: Path) -> list[Path]:
    try:
        beside = list(data.parent.iterdir())
    except OSError:  # a folder that this user may not list
        return []
    return sorted(
        path for path in beside if path.name.startswith(_make_staged_folder_prefix(data)) and path.is_dir()
    )


def _make_staged_folder_prefix(data: Path) -> str:
    return f".{data.name}.restoring-"


def _is_held(staged: Path) -> bool:
    """Return whether a restore is at work on a folder; also where that cannot be known."""
    try:
        descriptor = os.open(staged, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
