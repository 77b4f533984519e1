"""Snapshots of a recording in the stores: those that are near each other are read with one request."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from recorder.storage.blobs import Blobs

#: Longer parts of an object are not read whole: a replay may need few of their snapshots.
_MOST_PART_BYTES = 256 * 1024
#: Bytes that are kept; beyond them snapshots are read one by one.
_MOST_KEPT_BYTES = 16 * 1024 * 1024


class SnapshotLocation(NamedTuple):
    """Object and bytes of a snapshot."""

    key: str
    offset: int
    length: int | None


class StoredSnapshots:
    """Reader of the packed snapshots of one recording."""

    def __init__(self, blobs: Blobs, locations: Iterable[SnapshotLocation]) -> None:
        self._blobs = blobs
        #: Bytes of objects from their first to their last snapshot, by key.
        self._parts: dict[str, tuple[int, int]] = {}
        self._kept: dict[str, bytes] = {}
        ranges: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for snapshot in locations:
            if snapshot.length is not None:
                ranges[snapshot.key].append((snapshot.offset, snapshot.offset + snapshot.length))
        left = _MOST_KEPT_BYTES
        for key, given in ranges.items():
            begin, end = min(given)[0], max(end for _, end in given)
            if len(given) > 1 and end - begin <= min(_MOST_PART_BYTES, left):
                self._parts[key] = begin, end
                left -= end - begin

    def read(self, snapshot: SnapshotLocation) -> bytes:
        """Return the bytes of a snapshot.

        Raises:
            KeyError: if the object is gone.
            Unavailable: if the store does not answer.
        """
        part = self._parts.get(snapshot.key)
        if part is None or snapshot.length is None:
            return self._blobs.get(snapshot.key, snapshot.offset, snapshot.length)
        begin, end = part
        if snapshot.key not in self._kept:
            self._kept[snapshot.key] = self._blobs.get(snapshot.key, begin, end - begin)
        return self._kept[snapshot.key][snapshot.offset - begin : snapshot.offset - begin + snapshot.length]
