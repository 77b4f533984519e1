"""How far a stream of rows was read, worker by worker: what a training run saves to go on from there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recorder.loading.errors import StateRefused

_VERSION = 1


@dataclass(frozen=True)
class Position:
    """A place in an epoch."""

    epoch: int = 0
    #: Rows that each worker of this rank has handed out, by its number; the others none.
    consumed: dict[int, int] = field(default_factory=dict)
    workers: int = 1
    #: The worker whose turn is next: its part is what the first worker of the next loader goes on with.
    next_worker: int = 0

    def to_json(self, stream: str) -> dict[str, Any]:
        """What is saved.

        Args:
            stream: digest of all that fixes the sequence.
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
    def from_json(cls, state: Mapping[str, Any], stream: str) -> "Position":
        """What was saved.

        Raises:
            StateRefused: if it is of another sequence.
        """
        try:
            version, found = state["version"], state["stream"]
            consumed = {int(worker): int(rows) for worker, rows in state["consumed"].items()}
            position = cls(int(state["epoch"]), consumed, int(state["workers"]), int(state["next_worker"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateRefused("This is not a state that state_dict() gave.") from error
        if version != _VERSION or found != stream:
            raise StateRefused(
                "The state belongs to another sequence of rows: make the stream with the same dataset, kind, "
                "split, shuffle, seed, window, drop_uneven and world size as when it was saved."
            )
        return position


def after_batches(
    position: Position, lengths: list[int], batches: int, *, batch_size: int, drop_last: bool
) -> Position:
    """Where a DataLoader's readers stand once it has handed out so many more batches.

    A DataLoader takes a batch from each worker in turn and passes over those that are through.

    Args:
        lengths: how many rows each worker has in the epoch.

    Raises:
        StateRefused: if there are not so many batches.
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
    return Position(position.epoch, consumed, len(lengths), turn)
