"""Rows for training: divided among ranks and workers, shuffled, resumed at any row.

An epoch puts all files in one sequence, shuffled or not. Ranks cut that sequence into equal stretches, and
the workers of a rank cut its range again: every row is read exactly once, however many readers there are.
The sequence is fixed by numbers of rows alone, so a position in it is the whole state: no buffer is saved
(docs/decisions/0026-resume.md).
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from recorder.hashing import compute_sha256
from recorder.loading.row_reader import DatasetRow, RowFiles
from recorder.loading.training_state import LoadedPosition, TrainingState, advance_training_state

#: Default number of rows that are shuffled together.
WINDOW = 4096


class RowRange(NamedTuple):
    """Rows of an epoch's sequence, from `start` up to, not including, `stop`."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def part(self, index: int, of: int) -> "RowRange":
        """Return one of `of` parts whose lengths differ by one row at most."""
        return RowRange(self.start + self.length * index // of, self.start + self.length * (index + 1) // of)


class FileRange(NamedTuple):
    """Rows of one file, from `start` up to, not including, `stop`."""

    file: int
    start: int
    stop: int


def order_files(files: int, *, seed: int, epoch: int, shuffle: bool) -> list[int]:
    """Return the order of the files in an epoch; the same on every rank."""
    if not shuffle:
        return list(range(files))
    return [int(file) for file in np.random.default_rng((seed, epoch)).permutation(files)]


def cut_training_files(rows: list[int], order: list[int], row_range: RowRange) -> Iterator[FileRange]:
    """Yield the rows of each file that a range covers.

    Args:
        rows: number of rows of each file.
        order: order of the files in the epoch.
        row_range: rows of the epoch's sequence.
    """
    begin = 0
    for file in order:
        start, stop = max(row_range.start - begin, 0), min(row_range.stop - begin, rows[file])
        if start < stop:
            yield FileRange(file, start, stop)
        begin += rows[file]


def order_window(length: int, *, seed: int, epoch: int, start: int) -> list[int]:
    """Return the order of the rows of a window; it depends on the window's start, so it can be repeated.

    Args:
        length: number of rows of the window.
        seed: seed of the shuffling.
        epoch: number of the epoch.
        start: first row of the window in the epoch's sequence.
    """
    return [int(row) for row in np.random.default_rng((seed, epoch, start, 1)).permutation(length)]


class RowStream:
    """An iterable over the rows of one kind: all of them once an epoch, those of this rank."""

    def __init__(
        self,
        files: RowFiles,
        *,
        columns: list[str] | None = None,
        transform: Callable[[DatasetRow], Any] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        window: int = WINDOW,
        rank: int = 0,
        world_size: int = 1,
        drop_uneven: bool = False,
    ) -> None:
        """Create a stream over some files.

        Args:
            files: files with the rows.
            columns: members that a row has; None for all.
            transform: function applied to each row, such as decoding a picture.
            shuffle: put the files in another order each epoch, and shuffle rows within windows.
            seed: seed of the shuffling.
            window: number of rows that are held and shuffled together.
            rank: number of this process among those that train together.
            world_size: number of these processes.
            drop_uneven: leave out the last rows of an epoch, fewer than there are ranks, so that every rank
                gets equally many.

        Raises:
            ValueError: if rank, world_size or window are out of range.
        """
        if not 0 <= rank < world_size or window < 1:
            raise ValueError("rank takes 0 up to, not including, world_size; window at least 1.")
        self._files = files
        self._columns, self._transform = columns, transform
        self._shuffle, self._seed, self._window = shuffle, seed, window
        rows = sum(files.rows)
        whole = RowRange(0, rows - rows % world_size if drop_uneven else rows)
        self._stretch = whole.part(rank, world_size)
        self._stream = compute_sha256(
            [files.identity, shuffle and seed, shuffle and window, world_size, drop_uneven]
        )
        self._epoch = self._allocate_shared_memory(1)
        self._position = TrainingState()
        self._loaded = LoadedPosition(self._position, self._allocate_shared_memory)

    def __len__(self) -> int:
        """Return the number of rows of this rank in an epoch."""
        return self._stretch.length

    @property
    def epoch(self) -> int:
        """Epoch of the next iteration."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; a loaded position applies to its own epoch only."""
        self._epoch[0] = epoch

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rows of this worker; the first one begins at the loaded position.

        Raises:
            StateRefused: if the position was saved with another number of workers.
        """
        number, workers, iteration = self._identify_worker()
        position = self._loaded.position
        if position.epoch != self.epoch or not self._loaded.begin(number, workers, iteration):
            position = TrainingState(self.epoch)
        self._position = position
        return self._iterate_worker_rows(position, (number + position.next_worker) % workers, workers)

    def _iterate_worker_rows(self, position: TrainingState, worker: int, workers: int) -> Iterator[Any]:
        done = position.consumed.get(worker, 0)
        for row in self._read_rows(self._stretch.part(worker, workers), position.epoch, done):
            done += 1
            # Before the row is yielded: a state taken afterwards includes it.
            self._position = TrainingState(position.epoch, {worker: done}, workers, position.next_worker)
            yield row if self._transform is None else self._transform(row)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration in this process: after the last row that it yielded."""
        position = self._position if self._position.epoch == self.epoch else TrainingState(self.epoch)
        return position.to_json(self._stream)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position with the next iteration; later ones read whole epochs again.

        Raises:
            StateRefused: if it belongs to another sequence of rows.
        """
        self._position = TrainingState.from_json(state, self._stream)
        self._loaded = LoadedPosition(self._position, self._allocate_shared_memory)
        self.set_epoch(self._position.epoch)

    def state_after(
        self, batches: int, *, batch_size: int | None, num_workers: int = 0, drop_last: bool = False
    ) -> dict[str, Any]:
        """Return the position after some batches of a plain PyTorch DataLoader, whose workers read ahead.

        Args:
            batches: number of batches that the DataLoader returned since its newest iteration began.
            batch_size: the DataLoader's own.
            num_workers: the DataLoader's own.
            drop_last: the DataLoader's own.

        Raises:
            StateRefused: if the epoch has fewer batches.
        """
        workers = max(1, num_workers)
        lengths = [self._stretch.part(worker, workers).length for worker in range(workers)]
        start = self._loaded.position
        if start.epoch != self.epoch or self._loaded.is_over:
            start = TrainingState(self.epoch)
        position = advance_training_state(
            start, lengths, batches, batch_size=batch_size or 1, drop_last=drop_last
        )
        return position.to_json(self._stream)

    def _identify_worker(self) -> tuple[int, int, int]:
        """Return the number of this worker, the number of workers, and one that their iteration has alone."""
        return 0, 1, 0

    def _allocate_shared_memory(self, length: int) -> Any:
        """Return zeros in memory that the processes of all workers share."""
        return [0] * length

    def _read_rows(self, row_range: RowRange, epoch: int, done: int) -> Iterator[DatasetRow]:
        """Yield the rows of a range without the first `done` of its sequence."""
        if not self._shuffle:
            yield from self._read_range(RowRange(row_range.start + done, row_range.stop), epoch)
            return
        first = done // self._window
        rest = RowRange(row_range.start + first * self._window, row_range.stop)
        rows, skip = self._read_range(rest, epoch), done % self._window
        for start in count(rest.start, self._window):
            block = list(islice(rows, self._window))
            if not block:
                return
            for index in order_window(len(block), seed=self._seed, epoch=epoch, start=start)[skip:]:
                yield block[index]
            skip = 0

    def _read_range(self, row_range: RowRange, epoch: int) -> Iterator[DatasetRow]:
        """Yield the rows in a range of the epoch's shuffled order of files."""
        files = self._files
        order = order_files(len(files.rows), seed=self._seed, epoch=epoch, shuffle=self._shuffle)
        for file, start, stop in cut_training_files(files.rows, order, row_range):
            yield from islice(files.read(file, start, self._columns), stop - start)
