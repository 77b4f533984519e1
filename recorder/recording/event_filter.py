"""Filter of a session's events by type and time. Contract §2 (added reads)."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

#: `(t_ms, id)` of an event; with an empty id it stands before every event of that time.
Position = tuple[int, str]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Events that a reader wants: of some types, within a range of time."""

    #: Empty for every type.
    types: frozenset[str] = frozenset()
    #: First time that is wanted, and the first one after it that is not.
    from_t_ms: int | None = None
    to_t_ms: int | None = None

    def start(self, after: Position | None) -> Position | None:
        """Return the position that all wanted events behind `after` follow; None if that is every event."""
        if self.from_t_ms is None:
            return after
        begin = (self.from_t_ms, "")
        return begin if after is None else max(after, begin)

    def end(self, bound: Position | None = None) -> Position | None:
        """Return the earlier of `bound` and the end of the range; None where there is neither."""
        if self.to_t_ms is None:
            return bound
        end = (self.to_t_ms, "")
        return end if bound is None else min(bound, end)

    def cut(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, bool]:
        """Return the rows of an ordered batch before the end of the range, and whether it was reached."""
        if self.to_t_ms is None:
            return batch, False
        inside = pc.sum(pc.less(batch["t_ms"], self.to_t_ms)).as_py() or 0
        return batch.slice(0, inside), inside < batch.num_rows

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that are of a wanted type."""
        if not self.types:
            return batch
        return batch.filter(pc.is_in(batch["type"], pa.array(sorted(self.types), pa.string())))


EVERY_EVENT: Final = EventFilter()
