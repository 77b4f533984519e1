"""Results of a replay: steps, divergence and summary, the same for both sandboxes. Spec §4.6."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

ReplayKind = Literal["full", "partial", "guided"]
StepOutcome = Literal["matched", "relabelled", "healed", "skipped", "diverged"]
DivergenceKind = Literal[
    "target_missing",
    "target_ambiguous",
    "target_changed",
    "state_mismatch",
    "http_error",
    "unexpected_dialog",
    "unexpected_navigation",
    "edge_unseen",
    "anchor_unreachable",
    "egress_blocked",
    "action_failed",
]
DryStatus = Literal["completed", "diverged", "failed", "awaiting"]
#: Whether the action reached the page for certain.
ActionDelivery = Literal["confirmed", "uncertain"]


@dataclass(frozen=True, slots=True)
class DivergenceSide:
    """An element, or the state around it, as expected or observed; None where it is unknown."""

    role: str | None = None
    name: str | None = None
    state: str | None = None
    url: str | None = None
    #: Node of the graph that a replay is compared with; `name` is then its label without texts of sessions,
    #: which may leave the graph before the replay goes.
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An element that resembles the one acted on, with its score from 0 to 1."""

    selector: str
    score: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The point at which the world no longer matches the recording."""

    step: int
    event_id: str
    kind: DivergenceKind
    acted: bool
    expected: DivergenceSide
    observed: DivergenceSide
    similarity: float | None = None
    #: `(role, name)` pairs that the expected state has and the observed one lacks.
    missing: tuple[tuple[str, str], ...] = ()
    unexpected: tuple[tuple[str, str], ...] = ()
    candidates: tuple[Suggestion, ...] = ()
    frame_id: str | None = None
    #: Frame of another session with which a dry replay compared.
    observed_frame_id: str | None = None
    #: Frame of the recorded run that shows the page of a live replay.
    live_frame_id: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one step; `locator` is the best selector that voted for the element."""

    step: int
    event_id: str
    outcome: StepOutcome
    similarity: float | None = None
    locator: str | None = None
    frame_id: str | None = None
    delivery: ActionDelivery = "confirmed"
    #: Duration; None in the dry sandbox.
    ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """Counts of the steps' outcomes."""

    matched: int = 0
    relabelled: int = 0
    healed: int = 0
    skipped: int = 0
    min_similarity: float | None = None
    #: What the replay compared: snapshots, edges of the graph, or events of two sessions; None if nothing.
    evidence: Literal["dom", "graph", "events"] | None = None
    #: Names of inputs that a live replay of these steps needs and was not given.
    missing_inputs: tuple[str, ...] = ()
    #: Requests that the live sandbox refused.
    blocked_requests: int = 0


def summarize_steps(results: Sequence[StepResult], **members: Any) -> ReplaySummary:
    """Return the summary of the results of steps.

    Args:
        results: results of the steps.
        members: members of the summary beside the counts and the similarity.
    """
    outcomes = [result.outcome for result in results]
    known = [result.similarity for result in results if result.similarity is not None]
    return ReplaySummary(
        matched=outcomes.count("matched"),
        relabelled=outcomes.count("relabelled"),
        healed=outcomes.count("healed"),
        skipped=outcomes.count("skipped"),
        min_similarity=min(known, default=None),
        **members,
    )


@dataclass(frozen=True, slots=True)
class ReplayError:
    """Why a replay could not run or was ended."""

    type: Literal["invalid_recording", "cancelled", "input_missing", "sandbox", "timeout"]
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's decision at a step of a guided replay."""

    action: Literal["act", "skip", "retarget", "abort"]
    #: For `retarget`: a selector that must match one element alone.
    selector: str | None = None


@dataclass(frozen=True, slots=True)
class DryResult:
    """Result of a dry replay."""

    status: DryStatus
    steps: tuple[StepResult, ...]
    divergence: Divergence | None
    summary: ReplaySummary
    error: ReplayError | None = None
    #: Number of the step that waits for a decision.
    awaiting_step: int | None = None
