"""Merge of sorted batches into one order, with a batch of each overlapping source in memory. Design §3."""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from recorder.storage.lake_files import read_lake_row_key


@dataclass
class SortedSource:
    """Sorted batches that are opened when needed."""

    #: Key that is not above the first row's key; it may be a prefix of it.
    lower_bound: tuple[Any, ...]
    open: Callable[[], Iterator[pa.RecordBatch]]


def merge_sorted_batches(
    sources: Iterable[SortedSource], order: Sequence[str]
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of sorted sources in one order.

    A source is opened once all rows before it were yielded: sources that do not overlap are read one after
    the other. Memory holds a batch of each overlapping source.
    """
    waiting = sorted(sources, key=lambda source: source.lower_bound)
    waiting.reverse()
    active: list[_MergeCursor] = []
    while waiting or active:
        while waiting and (not active or waiting[-1].lower_bound <= min(cursor.last for cursor in active)):
            cursor = _MergeCursor(waiting.pop().open(), order)
            if cursor.advance():
                active.append(cursor)
        if not active:
            continue
        border = min(cursor.last for cursor in active)
        parts = [part for cursor in active if (part := cursor.take(border)).num_rows]
        if len(parts) == 1:
            yield parts[0]
        else:
            rows = pa.Table.from_batches(parts).sort_by([(name, "ascending") for name in order])
            yield from rows.combine_chunks().to_batches()
        active = [cursor for cursor in active if cursor.batch.num_rows or cursor.advance()]


class _MergeCursor:
    """Position in a sorted source: its current batch, and the key of that batch's last row."""

    def __init__(self, batches: Iterator[pa.RecordBatch], order: Sequence[str]) -> None:
        self._batches = batches
        self._order = order
        self.batch: pa.RecordBatch
        self.last: tuple[Any, ...]

    def advance(self) -> bool:
        """Move to the next batch with rows; return whether there is one."""
        for batch in self._batches:
            if batch.num_rows:
                self.batch, self.last = batch, read_lake_row_key(batch, batch.num_rows - 1, self._order)
                return True
        return False

    def take(self, border: tuple[Any, ...]) -> pa.RecordBatch:
        """Remove the rows up to and including the border from the current batch, and return them."""
        batch = self.batch
        count = batch.num_rows
        if border < self.last:
            count = bisect_right(
                range(count), border, key=lambda row: read_lake_row_key(batch, row, self._order)
            )
        self.batch = batch.slice(count)
        return batch.slice(0, count)
