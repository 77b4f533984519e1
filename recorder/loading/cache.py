"""Cache of fetched files, named by the SHA-256 of their bytes. Contract §5.

Many processes may use one cache folder at once: a file appears under its name in one step, whole and checked.
Nothing is removed; the folder may be deleted while no process reads from it.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from recorder.datasets.errors import FileDamaged
from recorder.datasets.manifest import Shard
from recorder.datasets.sources import DatasetSource, local_source_path


class Cache:
    """A folder of checked files."""

    def __init__(self, folder: str | Path | None = None) -> None:
        """Use `folder`, which is created with the first file; by default one in the user's own cache."""
        self.folder = Path(folder) if folder is not None else _find_default_cache_folder()

    def fetch(self, source: DatasetSource, shard: Shard) -> Path:
        """Return the file itself where it is on this machine, else a checked copy.

        Raises:
            FileDamaged: if the bytes are not those of the manifest; of a file on this machine the size only.
            FileGone: if there is no such file.
            ManifestRefused: if a link or an address leads elsewhere.
            AddressExpired, DatasetChanged, ApiError, Unreachable: as `ServiceSource.read_file`.
        """
        if source.folder is None:
            return self.find(shard) or self.add(shard, source.read_file(shard))
        path = local_source_path(source.folder, shard.path)
        if path.stat().st_size != shard.size_bytes:
            raise FileDamaged(shard.path)
        return path

    def find(self, shard: Shard) -> Path | None:
        """Return the file, if the cache has it; its bytes were checked when it was added."""
        path = self._make_cached_path(shard)
        try:
            return path if path.stat().st_size == shard.size_bytes else None
        except FileNotFoundError:
            return None

    def add(self, shard: Shard, chunks: Iterable[bytes]) -> Path:
        """Keep a file; two processes that add one at the same time both end with the same bytes.

        Raises:
            FileDamaged: if the bytes are not those of the manifest; nothing is kept then.
        """
        path = self._make_cached_path(shard)
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

    def _make_cached_path(self, shard: Shard) -> Path:
        return self.folder / shard.sha256[:2] / f"{shard.sha256}.{shard.ending}"


def _find_default_cache_folder() -> Path:
    try:
        return Path.home() / ".cache" / "recorder"
    except RuntimeError:  # a user without a home, as in containers
        return _make_private_cache_folder(Path(tempfile.gettempdir()) / f"recorder-cache-{os.getuid()}")


def _make_private_cache_folder(folder: Path) -> Path:
    """Return the folder if no other user may write in it, else a fresh one; its parent is shared."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="recorder-cache-"))
    is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return folder if is_private else Path(tempfile.mkdtemp(prefix="recorder-cache-"))
