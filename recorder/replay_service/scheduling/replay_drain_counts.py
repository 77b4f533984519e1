"""Counts of what a replay drain run ended."""

from collections import Counter
from dataclasses import dataclass, field

from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow


@dataclass
class ReplayDrainCounts:
    """Counts of the replays and recoveries that a run ended."""

    statuses: Counter[str] = field(default_factory=Counter)
    #: Divergences by kind.
    divergences: Counter[str] = field(default_factory=Counter)
    #: Ended recoveries by status, failed ones by reason.
    recoveries: Counter[str] = field(default_factory=Counter)
    #: Replays by tenth of their least similarity: 0 to 9.
    similarities: Counter[int] = field(default_factory=Counter)
    #: Replay that diverged with the least similarity.
    worst_id: str | None = None
    _worst_similarity: float = 1.0

    def count(self, row: ReplayRow) -> None:
        """Count a replay that ended."""
        self.statuses[row.status] += 1
        if row.divergence is not None:
            self.divergences[row.divergence["kind"]] += 1
            similarity = row.divergence["similarity"]
            similarity = 1.0 if similarity is None else similarity
            if self.worst_id is None or similarity < self._worst_similarity:
                self.worst_id, self._worst_similarity = row.id, similarity
        least = None if row.summary is None else row.summary["min_similarity"]
        if least is not None:
            self.similarities[min(9, int(least * 10))] += 1

    def count_recovery(self, row: RecoveryRow | None) -> None:
        """Count a recovery, if it ended."""
        if row is not None:
            self.recoveries[row.reason or row.status] += 1
