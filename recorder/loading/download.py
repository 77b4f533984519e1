"""Download of a whole dataset into a folder, which may hold another version of it. Contract §5."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from recorder.datasets.errors import ManifestUnreadable, UnlistedFiles
from recorder.datasets.formats import CARD, MANIFEST
from recorder.datasets.manifest import Manifest, Shard, format_manifest, parse_manifest
from recorder.datasets.sources import DatasetSource, FolderSource
from recorder.datasets.unlisted_files import find_unlisted_files
from recorder.loading.cache import Cache

#: Manifest of a download until it is complete: the next download removes what this one fetched.
UNFINISHED_MANIFEST = ".unfinished-manifest.json"


def download(
    source: DatasetSource,
    document: dict[str, Any],
    shards: list[Shard],
    folder: Path,
    on_progress: Callable[[int, int], None],
) -> None:
    """Fetch the card and the files that a folder lacks, then the manifest; an interrupted download continues.

    Files that another manifest in the folder lists are removed first, so that no tool reads the rows of two
    datasets.

    Args:
        source: source of the dataset.
        document: all members of its manifest.
        shards: its files.
        folder: folder that becomes a dataset of its own.
        on_progress: called with the bytes fetched so far and the bytes in all.

    Raises:
        UnlistedFiles: if the folder has other files that tools would read with the dataset.
        FileDamaged, FileGone, AddressExpired, DatasetChanged: as `Cache.fetch`.
    """
    if source.folder is not None and source.folder.resolve() == folder.resolve():
        return
    folder.mkdir(parents=True, exist_ok=True)
    manifest = format_manifest(document)
    # First: the signed address of a manifest may expire during a long download, and while the card is read
    # another process may complete this dataset in the folder.
    card = source.read_card()
    others = _read_other_manifests(folder, manifest)
    _require_no_unlisted_files(folder, document, shards, others)
    done, total = 0, sum(shard.size_bytes for shard in shards)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as parts:
        _remove_other_datasets(folder, others, kept={shard.path for shard in shards})
        _write_file(Path(parts), folder / UNFINISHED_MANIFEST, manifest)
        if card is not None:
            (folder / CARD).write_bytes(card)
        for shard in shards:
            path = folder / shard.path
            if not _has_cached_bytes(path, shard):
                path.parent.mkdir(parents=True, exist_ok=True)
                fetched = Cache(parts).fetch(source, shard)
                if fetched.is_relative_to(parts):
                    fetched.replace(path)
                else:
                    shutil.copyfile(fetched, path)
            done += shard.size_bytes
            on_progress(done, total)
        _write_file(Path(parts), folder / MANIFEST, manifest)
    (folder / UNFINISHED_MANIFEST).unlink(missing_ok=True)


class _OtherManifest(NamedTuple):
    """Manifest of another dataset or version, complete or not, and its bytes."""

    path: Path
    text: bytes
    content: Manifest


def _read_other_manifests(folder: Path, manifest: bytes) -> list[_OtherManifest]:
    """Return the manifests of other datasets and versions in a folder."""
    others = []
    for path in (folder / MANIFEST, folder / UNFINISHED_MANIFEST):
        # Processes that train together may download at once: another one may remove it.
        with suppress(ManifestUnreadable, FileNotFoundError):
            # Only a plain file: reading a pipe would wait.
            if path.is_file() and (text := path.read_bytes()) != manifest:
                others.append(_OtherManifest(path, text, parse_manifest(text)))
    return others


def _require_no_unlisted_files(
    folder: Path, document: dict[str, Any], shards: list[Shard], others: list[_OtherManifest]
) -> None:
    listed = [*shards, *(shard for other in others for shard in other.content.shards)]
    unlisted = find_unlisted_files(FolderSource(folder), document["format"], listed)
    if unlisted:
        raise UnlistedFiles(str(folder), unlisted)


def _remove_other_datasets(folder: Path, others: list[_OtherManifest], *, kept: set[str]) -> None:
    """Remove the files of other manifests, then these: if a kill ends it, the next download repeats it."""
    root = folder.resolve()
    for other in others:
        for shard in other.content.shards:
            path = folder / shard.path
            # A folder that is a link may lead elsewhere.
            if shard.path not in kept and path.is_file() and path.parent.resolve().is_relative_to(root):
                path.unlink(missing_ok=True)
                with suppress(OSError):
                    path.parent.rmdir()
        (folder / CARD).unlink(missing_ok=True)
        # Another process may have replaced it by the manifest of this dataset, which is complete then.
        with suppress(FileNotFoundError):
            if other.path.read_bytes() == other.text:
                other.path.unlink()


def _write_file(parts: Path, path: Path, data: bytes) -> None:
    """Write a file that appears under its name in one step."""
    (parts / path.name).write_bytes(data)
    (parts / path.name).replace(path)


def _has_cached_bytes(path: Path, shard: Shard) -> bool:
    if not path.is_file() or path.stat().st_size != shard.size_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == shard.sha256
