"""Positions of readers in an epoch: saved, loaded, and advanced by the batches of a DataLoader."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recorder.datasets.errors import StateRefused

_VERSION = 1
_NO_ITERATION = -1
# Items of the shared memory of a loaded position; after them one for each worker.
_ITERATION, _IS_OVER, _WORKERS = 0, 1, 2


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


class LoadedPosition:
    """Position that a training run loaded, for the first iteration after that.

    A DataLoader copies the stream to new worker processes for each iteration. So the workers note in memory
    that they share with it which iteration begins at the position.
    """

    def __init__(self, position: TrainingState, allocate: Callable[[int], Any]) -> None:
        """Create a position that no iteration has used.

        Args:
            position: position to begin at.
            allocate: returns that many zeros in memory that the workers' processes share.
        """
        self.position = position
        self._memory = allocate(_WORKERS + position.workers)
        self._memory[_ITERATION] = _NO_ITERATION

    @property
    def is_over(self) -> bool:
        """True if a later iteration than that of the position has begun."""
        return bool(self._memory[_IS_OVER])

    def begin(self, worker: int, workers: int, iteration: int) -> bool:
        """Return whether a worker begins at the position, and note that its iteration has begun.

        Args:
            worker: number of the worker.
            workers: number of all workers.
            iteration: number of the iteration, the same for all its workers.

        Raises:
            StateRefused: if the position was saved with another number of workers.
        """
        if not self.position.consumed:
            return True  # the start of an epoch, for every iteration
        if int(self._memory[_ITERATION]) in (_NO_ITERATION, iteration):
            if self.position.workers != workers:
                raise StateRefused(
                    f"The state was saved with {self.position.workers} workers, here are {workers}: "
                    "use as many again."
                )
            # Workers that outlive an iteration keep its number.
            if not self._memory[_WORKERS + worker]:
                self._memory[_ITERATION], self._memory[_WORKERS + worker] = iteration, 1
                return True
        self._memory[_IS_OVER] = 1
        return False
