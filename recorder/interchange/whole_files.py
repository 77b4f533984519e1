"""Files that appear once they are whole."""

import fcntl
import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from recorder import clock

#: Age in seconds from which a part counts as left by a killed writer where files cannot be locked.
_LEFT_S = 86_400


@contextmanager
def replace_file_at_end(path: Path) -> Iterator[Path]:
    """Yield the path of a part, which becomes the file at the end of the block; an error removes it.

    The part has a name of its own, so that two writers of one file each write a whole one. It is locked
    while it is written: parts of the same file whose writers were killed are removed.

    Args:
        path: the file. The block writes the part without replacing it.
    """
    prefix = f".part-{hashlib.sha256(path.name.encode()).hexdigest()[:16]}-"
    _remove_left_parts(path.parent, prefix)
    part, locked = _create_locked_part(path.parent, prefix)
    with locked:
        try:
            yield part
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _create_locked_part(folder: Path, prefix: str) -> tuple[Path, BinaryIO]:
    """Return a new part and the open file that holds its lock."""
    while True:
        part = folder / f"{prefix}{secrets.token_hex(8)}"
        locked = part.open("xb")
        with suppress(OSError):  # some network folders have no locks
            fcntl.flock(locked, fcntl.LOCK_EX)
        if part.exists():
            return part, locked
        locked.close()  # another writer found it before it was locked, and removed it


def _remove_left_parts(folder: Path, prefix: str) -> None:
    """Remove the parts of a file whose writers were killed."""
    for part in folder.glob(f"{prefix}*"):
        with suppress(OSError), part.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:
                if part.stat().st_mtime > clock.unix_seconds() - _LEFT_S:
                    continue
            part.unlink()
