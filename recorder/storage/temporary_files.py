"""Temporary files of a deployment: private folders below `tmp` in its data folder.

They may hold recorded content, so a killed process must not leave them in a folder of the system: the next
start of the service removes them.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recorder import clock
from recorder.errors import Conflict

#: Age in seconds from which a file of a command counts as left by a killed one.
_LEFT_S = 86_400
#: Begin of the names of folders in `tmp` in which backups keep a copy of the database.
BACKUP_PREFIX = "backup-"


class CannotRemove(Conflict):
    """Temporary files of an earlier service cannot be removed."""

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(
            f"Cannot remove the temporary files of an earlier service in {folder} ({error.strerror}). Remove "
            "them, or start the service as the user that owns the data folder."
        )


def get_service_temporary_folder(data_dir: Path) -> Path:
    """Return the folder for temporary files of the service's processes."""
    return data_dir / "tmp" / "service"


def empty_temporary_folders(data_dir: Path) -> None:
    """Remove what killed processes left, and create the service's folder; the caller holds the data folder.

    Files of commands and of backups stay for a day: one of them may be at work.

    Raises:
        CannotRemove: if files are left that this user may not remove.
    """
    folder = get_service_temporary_folder(data_dir)
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700, parents=True)
        files = _get_command_temporary_folder(data_dir).glob("*")
        for path in (*files, *folder.parent.glob(f"{BACKUP_PREFIX}*")):
            with suppress(FileNotFoundError):  # of a command that has ended since it was listed
                if path.stat().st_mtime < clock.now().timestamp() - _LEFT_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        raise CannotRemove(folder.parent, error) from error


@contextmanager
def private_temporary_files(data_dir: Path) -> Iterator[None]:
    """Let a command that opens the deployment create its temporary files in the data folder."""
    before = tempfile.tempdir
    folder = _get_command_temporary_folder(data_dir)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.tempdir = str(folder)
    except OSError:
        pass  # a user who only reads the data folder keeps the system's folder
    try:
        yield
    finally:
        tempfile.tempdir = before


def _get_command_temporary_folder(data_dir: Path) -> Path:
    return data_dir / "tmp" / "commands"
