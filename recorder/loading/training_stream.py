"""Rows for training: divided among ranks and workers, shuffled, resumed at any row.

An epoch puts all files in one sequence, shuffled or not. Ranks cut that sequence into equal stretches, and
the workers of a rank cut its range again: every row is read exactly once, however many readers there are.
The sequence is fixed by numbers of rows alone, so a position in it is the whole state: no buffer is saved
(docs/decisions/0026-resume.md).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from recorder.datasets.errors import StateRefused
from recorder.hashing import compute_sha256
from recorder.loading.row_reader import DatasetRow, RowFiles

#: Default number of rows that are shuffled together.
WINDOW = 4096
_VERSION = 1


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


@dataclass(frozen=True)
class TrainingState:
    """Position of the readers in an epoch, which a training run saves."""

    epoch: int = 0
    #: Rows that each worker of this rank has yielded, by its number; the others none.
    consumed: dict[int, int] = field(default_factory=dict)
    workers: int = 1
    #: The worker whose turn is next: the first worker of the next loader continues its part.
    next_worker: int = 0

    def to_json(self, stream: str) -> dict[str, Any]:
        """Return the saved form.

        Args:
            stream: digest of everything that fixes the sequence.
        """
        return {
            "version": _VERSION,
            "stream": stream,
            "epoch": self.epoch,
            "consumed": {str(worker): rows for worker, rows in self.consumed.items()},
            "workers": self.workers,
            "next_worker": self.next_worker,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any], stream: str) -> "TrainingState":
        """Return the position of a saved form.

        Raises:
            StateRefused: if it belongs to another sequence.
        """
        try:
            version, digest = state["version"], state["stream"]
            consumed = {int(worker): int(rows) for worker, rows in state["consumed"].items()}
            position = cls(int(state["epoch"]), consumed, int(state["workers"]), int(state["next_worker"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateRefused("This is not a state that state_dict() returned.") from error
        if version != _VERSION or digest != stream:
            raise StateRefused(
                "The state belongs to another sequence of rows: make the stream with the same dataset, kind, "
                "split, shuffle, seed, window, drop_uneven and world size as when it was saved."
            )
        return position


def advance_training_state(
    position: TrainingState, lengths: list[int], batches: int, *, batch_size: int, drop_last: bool
) -> TrainingState:
    """Return the position of a DataLoader's readers after more batches.

    A DataLoader takes a batch from each worker in turn and skips workers that have no rows left.

    Args:
        position: position before the batches.
        lengths: number of rows of each worker in the epoch.
        batches: number of batches that the DataLoader returned.
        batch_size: its number of rows in a batch.
        drop_last: whether it drops a last batch that is shorter.

    Raises:
        StateRefused: if the epoch has fewer batches.
    """
    consumed = {worker: position.consumed.get(worker, 0) for worker in range(len(lengths))}
    turn = position.next_worker
    for _ in range(batches):
        for step in range(len(lengths)):
            worker = (turn + step) % len(lengths)
            left = lengths[worker] - consumed[worker]
            if left >= batch_size or (left > 0 and not drop_last):
                consumed[worker] += min(batch_size, left)
                turn = (worker + 1) % len(lengths)
                break
        else:
            raise StateRefused(f"The epoch does not have {batches} more batches of {batch_size}.")
    return TrainingState(position.epoch, consumed, len(lengths), turn)


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
        # A list, so that the form for PyTorch can put memory here that its workers share.
        self._epoch: Any = [0]
        self._start = self._position = TrainingState()

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
        """Yield the rows of this worker, from the loaded position on.

        Raises:
            StateRefused: if the position was saved with another number of workers.
        """
        number, workers = self._find_worker_and_count()
        position = self._start_position()
        if position.consumed and position.workers != workers:
            raise StateRefused(
                f"The state was saved with {position.workers} workers, here are {workers}: use as many again."
            )
        worker = (number + position.next_worker) % workers
        done = position.consumed.get(worker, 0)
        for row in self._read_rows(self._stretch.part(worker, workers), position.epoch, done):
            done += 1
            # Before the row is yielded: a state taken afterwards includes it.
            self._position = TrainingState(position.epoch, {worker: done}, workers, position.next_worker)
            yield row if self._transform is None else self._transform(row)
        self._start = TrainingState()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration in this process: after the last row that it yielded."""
        position = self._position if self._position.epoch == self.epoch else TrainingState(self.epoch)
        return position.to_json(self._stream)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position with the next iteration.

        Raises:
            StateRefused: if it belongs to another sequence of rows.
        """
        self._start = self._position = TrainingState.from_json(state, self._stream)
        self.set_epoch(self._start.epoch)

    def state_after(
        self, batches: int, *, batch_size: int | None, num_workers: int = 0, drop_last: bool = False
    ) -> dict[str, Any]:
        """Return the position after some batches of a plain PyTorch DataLoader, whose workers read ahead.

        Args:
            batches: number of batches that the DataLoader returned since its iteration began.
            batch_size: the DataLoader's own.
            num_workers: the DataLoader's own.
            drop_last: the DataLoader's own.

        Raises:
            StateRefused: if the epoch has fewer batches.
        """
        workers = max(1, num_workers)
        lengths = [self._stretch.part(worker, workers).length for worker in range(workers)]
        position = advance_training_state(
            self._start_position(), lengths, batches, batch_size=batch_size or 1, drop_last=drop_last
        )
        return position.to_json(self._stream)

    def _find_worker_and_count(self) -> tuple[int, int]:
        """Return the number of this worker, and the number of workers that share the rank's rows."""
        return 0, 1

    def _start_position(self) -> TrainingState:
        return self._start if self._start.epoch == self.epoch else TrainingState(self.epoch)

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
        files = self._files
        order = order_files(len(files.rows), seed=self._seed, epoch=epoch, shuffle=self._shuffle)
        for file, start, stop in cut_training_files(files.rows, order, row_range):
            yield from islice(files.read(file, start, self._columns), stop - start)
