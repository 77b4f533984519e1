"""Copies of stored objects into a backup, several at a time; unchanged objects are not read again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from recorder.governance.backup.backup_manifest import BackupFileEntry, Store
from recorder.governance.backup.backup_store import PART_BYTES, BackupStore
from recorder.storage.blobs import Blobs, StoredObject

#: Files that are copied at a time; each takes one part of memory.
_AT_ONCE = 4
_BATCH = 1_000

#: Called with the bytes that were handled, and with those among them that were copied.
OnProgress = Callable[[int, int], object]


def copy_stored_objects(
    archive: BackupStore,
    blobs: Blobs,
    store: Store,
    objects: Iterable[StoredObject],
    *,
    known: Mapping[tuple[str, str], BackupFileEntry],
    on_progress: OnProgress,
) -> Iterator[BackupFileEntry | None]:
    """Yield the entry of each object, or None for one that was removed in between.

    Args:
        archive: where copies go.
        blobs: store of the objects.
        store: name of the store in the backup.
        objects: objects to copy.
        known: entries that were copied before; an object of the same size and version is not read again.
        on_progress: called after each object.

    Raises:
        Unavailable: if a store does not answer.
    """
    copy = partial(_copy_object_into_backup, archive, blobs, store, known=known, on_progress=on_progress)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="backup") as pool:
        batch: list[StoredObject] = []
        for stored in objects:
            batch.append(stored)
            if len(batch) == _BATCH:
                yield from pool.map(copy, batch)
                batch.clear()
        yield from pool.map(copy, batch)


def _copy_object_into_backup(
    archive: BackupStore,
    blobs: Blobs,
    store: Store,
    stored: StoredObject,
    *,
    known: Mapping[tuple[str, str], BackupFileEntry],
    on_progress: OnProgress,
) -> BackupFileEntry | None:
    before = known.get((store, stored.key))
    if (
        before is not None
        and (before.size, before.modified) == (stored.size, stored.modified)
        and archive.has_parts(before.parts)
    ):
        on_progress(stored.size, 0)
        return before
    parts = []
    for offset in range(0, stored.size, PART_BYTES):
        length = min(PART_BYTES, stored.size - offset)
        try:
            data = blobs.get(stored.key, offset, length)
        except KeyError:
            return None
        if len(data) != length:
            return None  # it was replaced by a shorter one
        parts.append(archive.put_part(data))
    on_progress(stored.size, stored.size)
    return BackupFileEntry(store, stored.key, stored.size, stored.modified, parts)
