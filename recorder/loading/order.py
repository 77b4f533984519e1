"""Which rows a reader gets in an epoch, and in which order: arithmetic on numbers of rows alone.

An epoch lays all files end to end, shuffled or not. Ranks cut that line into equal stretches, and the workers
of a rank cut its stretch again; so every row is read exactly once however many readers there are, and fewer
files than readers do no harm.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Stretch(NamedTuple):
    """Places on the line of an epoch, from `start` up to, not including, `stop`."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """How many rows it holds."""
        return self.stop - self.start

    def part(self, index: int, of: int) -> "Stretch":
        """One of `of` parts whose lengths differ by one row at most."""
        return Stretch(self.start + self.length * index // of, self.start + self.length * (index + 1) // of)


class Cut(NamedTuple):
    """Rows of one file, from `start` up to, not including, `stop`."""

    file: int
    start: int
    stop: int


def file_order(files: int, *, seed: int, epoch: int, shuffle: bool) -> list[int]:
    """The files of an epoch, one after the other; the same on every rank."""
    if not shuffle:
        return list(range(files))
    return [int(file) for file in np.random.default_rng((seed, epoch)).permutation(files)]


def cuts(rows: list[int], order: list[int], stretch: Stretch) -> Iterator[Cut]:
    """What a stretch of the line comes to in files.

    Args:
        rows: how many rows each file has.
    """
    begin = 0
    for file in order:
        start, stop = max(stretch.start - begin, 0), min(stretch.stop - begin, rows[file])
        if start < stop:
            yield Cut(file, start, stop)
        begin += rows[file]


def window_order(length: int, *, seed: int, epoch: int, start: int) -> list[int]:
    """How the rows of a window are shuffled; a function of the window's place, so that it can be made again.

    Args:
        start: where the window starts on the line.
    """
    return [int(row) for row in np.random.default_rng((seed, epoch, start, 1)).permutation(length)]
