"""Report of a purge run: numbers and bytes of the purges that it finished. Contract §7."""

from collections import Counter
from dataclasses import dataclass, field

from recorder.models.governance import PurgeRow


@dataclass
class DueStepReport:
    """Counts of the purges that a run finished."""

    sessions: int = 0
    events: int = 0
    frames: int = 0
    event_bytes: int = 0
    frame_bytes: int = 0
    #: Finished purges by workspace and cause.
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Bytes by workspace and cause.
    sizes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Steps that failed and are tried again by a later run.
    failed_steps: int = 0

    def count(self, purge: PurgeRow) -> None:
        """Count a finished purge."""
        self.sessions += 1
        self.events += purge.events
        self.frames += purge.frames
        self.event_bytes += purge.event_bytes
        self.frame_bytes += purge.frame_bytes
        self.causes[purge.workspace_id, purge.cause] += 1
        self.sizes[purge.workspace_id, purge.cause] += purge.event_bytes + purge.frame_bytes

    def list_rows(self) -> list[dict[str, str | int]]:
        """Return one row for each workspace and cause."""
        return [
            {"workspace_id": owner, "kind": cause, "count": count, "bytes": self.sizes[owner, cause]}
            for (owner, cause), count in sorted(self.causes.items())
        ]
