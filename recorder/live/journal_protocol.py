"""Protocol of a live replay's journal: writes before and after each step, and the result. Spec §4.6."""

from dataclasses import dataclass
from typing import Literal, Protocol

from recorder.replays.replay_results import Decision, Divergence, ReplayError, ReplaySummary, StepResult

LiveStatus = Literal["completed", "diverged", "failed"]


class StepJournal(Protocol):
    """Store of what a live replay does; every method raises an error if the replay must end."""

    def begin(self, step: int) -> None:
        """Note that a step begins."""

    def check(self) -> None:
        """Check that the replay may go on."""

    def intend(self, result: StepResult) -> None:
        """Note an action before it is sent, as one that may have arrived."""

    def store(self, result: StepResult) -> None:
        """Note what became of a step."""

    def wait_for_decision(self, step: int, divergence: Divergence | None) -> Decision | None:
        """Wait for a person's decision; None if none comes in time."""


class TimeSpent(Exception):
    """The replay took longer than its policy allows."""


@dataclass(frozen=True)
class LiveResult:
    """Result of a live replay."""

    status: LiveStatus
    divergence: Divergence | None
    summary: ReplaySummary
    error: ReplayError | None = None
