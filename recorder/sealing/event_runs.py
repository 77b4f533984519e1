"""Sorted runs of a large session's events: an external merge sort with one object a run. Design §3.

Batches may overlap in time as their client likes. Each is decoded once, into the run of its portion; the
merge of the runs reads each chunk of a run once. So the work grows with the events, not with the overlap.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import zstandard

from recorder.recording.batch_items import EventOrderKey, HotItem
from recorder.storage.blobs import Blobs

#: The merge holds one chunk of each run.
_CHUNK_EVENTS = 2_000
_CHUNK_BYTES = 256 * 1024

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[HotItem])


class EventRunChunk(NamedTuple):
    """Part of a run: its bytes in the object, and the position of its first event."""

    offset: int
    length: int
    first: EventOrderKey


class EventRun(NamedTuple):
    """Events of some batches in total order, stored as one object of compressed chunks."""

    key: str
    chunks: list[EventRunChunk]
    last: EventOrderKey


def write_event_run(
    blobs: Blobs,
    key: str,
    items: Sequence[HotItem],
    *,
    chunk_events: int = _CHUNK_EVENTS,
    chunk_bytes: int = _CHUNK_BYTES,
) -> EventRun:
    """Sort events, of which there is at least one, and store them.

    Args:
        blobs: the store of the runs.
        key: key of the object.
        items: the events.
        chunk_events: most events of a chunk.
        chunk_bytes: most bytes of a chunk that holds several events.

    Raises:
        Unavailable: if the store refuses or does not answer.
    """
    compressor = zstandard.ZstdCompressor(level=1)
    ordered = sorted(items)
    packed: list[bytes] = []
    chunks: list[EventRunChunk] = []
    offset = 0
    for part in _cut_event_chunks(ordered, chunk_events, chunk_bytes):
        packed.append(compressor.compress(_encoder.encode(part)))
        chunks.append(EventRunChunk(offset, len(packed[-1]), part[0][:3]))
        offset += len(packed[-1])
    blobs.put_parts(key, packed)
    return EventRun(key, chunks, ordered[-1][:3])


def require_event_runs(blobs: Blobs, runs: Sequence[EventRun]) -> None:
    """Check that the object of each run is there.

    Raises:
        KeyError: if one is missing.
        Unavailable: if the store does not answer.
    """
    for run in runs:
        blobs.get(run.key, 0, 1)


def merge_event_runs(
    blobs: Blobs, runs: Sequence[EventRun], after: EventOrderKey | None
) -> Iterator[HotItem]:
    """Yield the events of all runs in total order.

    Args:
        blobs: the store of the runs.
        runs: the runs.
        after: the last event that is not wanted; None for all.

    Raises:
        KeyError: if an object of a run is missing.
        Unavailable: if the store does not answer.
    """
    # Runs that follow one another, as those of a client that sends in order, have one open chunk together.
    sequences: list[list[EventRun]] = []
    for run in sorted(runs, key=lambda run: run.chunks[0].first):
        sequence = next((chain for chain in sequences if chain[-1].last < run.chunks[0].first), None)
        if sequence is None:
            sequences.append([run])
        else:
            sequence.append(run)
    return heapq.merge(*(_read_run_sequence(blobs, sequence, after) for sequence in sequences))


def take_events_of_runs(
    merged: Iterator[HotItem], *, max_events: int, max_bytes: int
) -> tuple[list[HotItem], bool]:
    """Take the next events, at most so many or so many bytes, but always one.

    Returns:
        The events, and whether others may follow them.
    """
    items: list[HotItem] = []
    size = 0
    for item in merged:
        items.append(item)
        size += len(item[3])
        if len(items) >= max_events or size >= max_bytes:
            return items, True
    return items, False


def _read_run_sequence(
    blobs: Blobs, sequence: Sequence[EventRun], after: EventOrderKey | None
) -> Iterator[HotItem]:
    for run in sequence:
        if after is not None and run.last <= after:
            continue
        begin = 0 if after is None else bisect_right(run.chunks, after, key=lambda chunk: chunk.first) - 1
        for chunk in run.chunks[max(begin, 0) :]:
            packed = blobs.get(run.key, chunk.offset, chunk.length)
            items = _decoder.decode(zstandard.ZstdDecompressor().decompress(packed))
            if after is not None:
                items = items[bisect_right(items, after, key=lambda item: item[:3]) :]
            yield from items


def _cut_event_chunks(items: Sequence[HotItem], most: int, most_bytes: int) -> Iterator[Sequence[HotItem]]:
    begin = size = 0
    for end, item in enumerate(items):
        if end > begin and (end - begin == most or size + len(item[3]) > most_bytes):
            yield items[begin:end]
            begin, size = end, 0
        size += len(item[3])
    yield items[begin:]
