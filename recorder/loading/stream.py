"""Rows for training: shared out among ranks and workers, shuffled, resumed to the row.

The line of an epoch (`order.py`) fixes the sequence, so a place in it is all the state there is: no buffer is
saved and nothing is drawn again (docs/decisions/0026-resume.md).
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from typing import Any

from recorder.digest import sha256_of
from recorder.loading.errors import StateRefused
from recorder.loading.order import Stretch, cuts, file_order, window_order
from recorder.loading.rows import Files, Row
from recorder.loading.state import Position, after_batches

WINDOW = 4096


class RowStream:
    """An iterable over the rows of one kind: all of them once an epoch, those of this rank."""

    def __init__(
        self,
        files: Files,
        *,
        columns: list[str] | None = None,
        transform: Callable[[Row], Any] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        window: int = WINDOW,
        rank: int = 0,
        world_size: int = 1,
        drop_uneven: bool = False,
    ) -> None:
        """A stream over some files.

        Args:
            columns: the members a row shall have; None for all.
            transform: what is made of each row, such as a decoded picture.
            shuffle: lay the files in another order each epoch, and shuffle rows within windows.
            window: rows that are held and shuffled together.
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
        whole = Stretch(0, rows - rows % world_size if drop_uneven else rows)
        self._stretch = whole.part(rank, world_size)
        self._stream = sha256_of(
            [files.identity, shuffle and seed, shuffle and window, world_size, drop_uneven]
        )
        # A list, so that the form for PyTorch can put memory here that its workers share.
        self._epoch: Any = [0]
        self._start = self._place = Position()

    def __len__(self) -> int:
        """Rows of this rank in an epoch."""
        return self._stretch.length

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration goes over."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; a loaded position counts for its own epoch alone."""
        self._epoch[0] = epoch

    def __iter__(self) -> Iterator[Any]:
        """The rows of this worker, on from the loaded position.

        Raises:
            StateRefused: if the position was saved with another number of workers.
        """
        number, workers = self._worker()
        position = self._resumed()
        if position.consumed and position.workers != workers:
            raise StateRefused(
                f"The state was saved with {position.workers} workers, here are {workers}: use as many again."
            )
        worker = (number + position.next_worker) % workers
        done = position.consumed.get(worker, 0)
        for row in self._rows(self._stretch.part(worker, workers), position.epoch, done):
            done += 1
            # Before the row is handed out: whoever asks then has it.
            self._place = Position(position.epoch, {worker: done}, workers, position.next_worker)
            yield row if self._transform is None else self._transform(row)
        self._start = Position()

    def state_dict(self) -> dict[str, Any]:
        """The place of the iteration in this process: after the last row that it handed out."""
        place = self._place if self._place.epoch == self.epoch else Position(self.epoch)
        return place.to_json(self._stream)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place when the next iteration begins.

        Raises:
            StateRefused: if it is of another sequence of rows.
        """
        self._start = self._place = Position.from_json(state, self._stream)
        self.set_epoch(self._start.epoch)

    def state_after(
        self, batches: int, *, batch_size: int | None, num_workers: int = 0, drop_last: bool = False
    ) -> dict[str, Any]:
        """The place after so many batches of a plain PyTorch DataLoader, whose workers read ahead.

        Args:
            batches: how many came out of the DataLoader since its iteration began.
            batch_size, num_workers, drop_last: the DataLoader's own.

        Raises:
            StateRefused: if the epoch has not so many batches.
        """
        workers = max(1, num_workers)
        lengths = [self._stretch.part(worker, workers).length for worker in range(workers)]
        place = after_batches(
            self._resumed(), lengths, batches, batch_size=batch_size or 1, drop_last=drop_last
        )
        return place.to_json(self._stream)

    def _worker(self) -> tuple[int, int]:
        """Number of this worker, and how many share the rank's rows."""
        return 0, 1

    def _resumed(self) -> Position:
        return self._start if self._start.epoch == self.epoch else Position(self.epoch)

    def _rows(self, stretch: Stretch, epoch: int, done: int) -> Iterator[Row]:
        """The rows of a stretch without the first `done` of its sequence."""
        if not self._shuffle:
            yield from self._read(Stretch(stretch.start + done, stretch.stop), epoch)
            return
        first = done // self._window
        rest = Stretch(stretch.start + first * self._window, stretch.stop)
        rows, skip = self._read(rest, epoch), done % self._window
        for start in count(rest.start, self._window):
            block = list(islice(rows, self._window))
            if not block:
                return
            for index in window_order(len(block), seed=self._seed, epoch=epoch, start=start)[skip:]:
                yield block[index]
            skip = 0

    def _read(self, stretch: Stretch, epoch: int) -> Iterator[Row]:
        files = self._files
        order = file_order(len(files.rows), seed=self._seed, epoch=epoch, shuffle=self._shuffle)
        for file, start, stop in cuts(files.rows, order, stretch):
            yield from islice(files.read(file, start, self._columns), stop - start)
