"""The sessions of a workflow in order, as columns. Contract §4 (`seal_seq`), docs/drift.md.

Live checks take the order of sealing, which never changes, so what was judged once stays judged; a backtest
takes the order of starts. A recording of the past that is imported later keeps its position;
`fall_evidence.Trail` leaves it out of the counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recorder.memory.drift.drift_subjects import DriftSubjects
from recorder.memory.graph.arrays import Ints

DAY_MS = 86_400_000
#: Code of the actor of sessions that name none.
NO_ACTOR = -1


@dataclass(frozen=True, slots=True)
class History:
    """One row for each session; its position counts from 0."""

    seal_seq: Ints
    variant: Ints
    started_ms: Ints
    #: One number for each actor.
    actor: Ints
    subjects: DriftSubjects

    def __len__(self) -> int:
        return len(self.seal_seq)

    def after(self, seal_seq: int) -> int:
        """Return the position of the first session that was sealed later."""
        return int(np.searchsorted(self.seal_seq, seal_seq, side="right"))

    def at(self, seal_seq: int) -> int:
        """Return the position of the first session that was sealed with this number or later."""
        return int(np.searchsorted(self.seal_seq, seal_seq, side="left"))

    def counts(self, start: int, end: int) -> Ints:
        """Count, for each subject, the sessions from position `start` to before `end` that have it."""
        return self.subjects.count(
            np.bincount(self.variant[start:end], minlength=self.subjects.variant_count)
        )

    def has(self, subject: int, start: int, end: int) -> npt.NDArray[np.bool_]:
        """Return for each session from position `start` to before `end` whether it has a subject."""
        return self.subjects.variants_with(subject)[self.variant[start:end]]

    def has_any(self, subjects: Iterable[int], start: int, end: int) -> npt.NDArray[np.bool_]:
        """Return for each session from `start` to before `end` whether it has one of the subjects."""
        variants = np.zeros(self.subjects.variant_count, dtype=np.bool_)
        for subject in subjects:
            variants |= self.subjects.variants_with(subject)
        return variants[self.variant[start:end]]

    def sessions_with(self, subject: int, start: int, end: int) -> Ints:
        """Return the positions, from `start` to before `end`, of the sessions that have a subject."""
        return np.flatnonzero(self.has(subject, start, end)) + start

    def count_actors_and_days(self, positions: Ints) -> tuple[int, int]:
        """Return the number of actors of these sessions, and of UTC days on which they began."""
        return len(set(self.actor[positions].tolist())), len(
            set((self.started_ms[positions] // DAY_MS).tolist())
        )

    def count_until_mixed(self, positions: Ints) -> int:
        """Return how many of these sessions it takes to see two actors or days; all + 1 if none do.

        One actor's busy afternoon is no drift of the workflow, however many sessions it makes.
        """
        if not len(positions):
            return 1
        actors, days = self.actor[positions], self.started_ms[positions] // DAY_MS
        differs = (actors != actors[0]) | (days != days[0])
        return int(differs.argmax()) + 1 if differs.any() else len(positions) + 1
