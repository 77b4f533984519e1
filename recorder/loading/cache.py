"""Fetched files, kept by the SHA-256 of their bytes: many processes may use one folder at once.

A file appears under its name in one step, whole and checked. Nothing is removed; the folder may be deleted
whenever nobody reads from it.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from recorder.loading.errors import FileDamaged
from recorder.loading.manifest import Shard


class Cache:
    """A folder of checked files."""

    def __init__(self, folder: str | Path | None = None) -> None:
        """Use `folder`, which is made when something is kept; by default one of the user's own cache."""
        self.folder = Path(folder) if folder is not None else _default_folder()

    def find(self, shard: Shard) -> Path | None:
        """The file, if it is there; its bytes were checked when it came in."""
        path = self._path(shard)
        try:
            return path if path.stat().st_size == shard.size_bytes else None
        except FileNotFoundError:
            return None

    def add(self, shard: Shard, chunks: Iterable[bytes]) -> Path:
        """Keep a file; two processes that fetch one at the same time both end with the same bytes.

        Raises:
            FileDamaged: if the bytes are not those of the manifest; nothing is kept then.
        """
        path = self._path(shard)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        digest, size = hashlib.sha256(), 0
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as file:
            try:
                for chunk in chunks:
                    size += len(chunk)
                    if size > shard.size_bytes:
                        break
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                if size != shard.size_bytes or digest.hexdigest() != shard.sha256:
                    raise FileDamaged(shard.path)
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
        return path

    def _path(self, shard: Shard) -> Path:
        return self.folder / shard.sha256[:2] / f"{shard.sha256}.{shard.ending}"


def _default_folder() -> Path:
    try:
        return Path.home() / ".cache" / "recorder"
    except RuntimeError:  # a user without a home, as containers have them
        return _own_folder(Path(tempfile.gettempdir()) / f"recorder-cache-{os.getuid()}")


def _own_folder(folder: Path) -> Path:
    """The folder, where nobody else may write in it: everybody shares what it lies in. Else a fresh one."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="recorder-cache-"))
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if is_own else Path(tempfile.mkdtemp(prefix="recorder-cache-"))
