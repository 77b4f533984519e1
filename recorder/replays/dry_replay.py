"""Dry replays: a session replayed against snapshots and graph, without touching anything. Spec §4.6."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from recorder.replays.budget import Budget, BudgetExceeded
from recorder.replays.consequences import list_consequential
from recorder.replays.recorded_pages import TARGETED_TYPES, RecordedPages
from recorder.replays.recorded_session import (
    InvalidRecording,
    RecordedSession,
    RecordedStep,
    find_recorded_input_name,
    list_recorded_steps,
)
from recorder.replays.replay_comparisons import ComparedGraph, GraphComparison, SessionComparison
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.replay_range import EventPosition
from recorder.replays.replay_results import (
    Decision,
    Divergence,
    DryResult,
    DryStatus,
    ReplayError,
    ReplayKind,
    ReplaySummary,
    StepResult,
    summarize_steps,
)
from recorder.replays.step_checks import StepCheck, check_first_step, check_step
from recorder.replays.target_resolution import resolve_target

#: Visits for a whole replay: a share of its own, and one for each step.
_VISITS, _STEP_VISITS = 2_000_000, 5_000
NO_ACTION = "The recording has no action in the range to replay."
#: Steps of a replay; a longer session is replayed in parts.
MOST_STEPS = 5_000
#: Steps that count for the replayability of a recording, the first ones.
_SCORED_STEPS = 1_000


@dataclass(frozen=True)
class ReplayStart:
    """A position in another session, before an event, from which a replay goes on."""

    recording: RecordedSession
    position: EventPosition


def replay_dry(
    recording: RecordedSession,
    *,
    mode: ReplayKind,
    anchor: EventPosition | None,
    until: EventPosition | None,
    policy: ReplayPolicy,
    input_names: frozenset[str],
    against: RecordedSession | ComparedGraph | None = None,
    start: ReplayStart | None = None,
    decisions: Mapping[int, Decision] | None = None,
) -> DryResult:
    """Replay a session against snapshots and graph: same arguments, same result.

    Args:
        recording: the session whose actions are replayed.
        mode: `guided` stops before consequential steps and at divergences, until there is a decision.
        anchor: the first event; None for that of the session.
        until: the last event; None for that of the session.
        policy: thresholds, and what to do at a divergence.
        input_names: names of the given inputs; what a live replay would lack is named in the summary.
        against: another session, on whose snapshots the actions are done, or a graph; None for the
            recording itself.
        start: where the replay begins, if that is in another session; its page must be like the recorded
            one, and have the element of the first step.
        decisions: by number of the step.
    """
    steps = list_recorded_steps(recording)
    budget = Budget(_VISITS + _STEP_VISITS * min(len(steps), MOST_STEPS))
    chosen = [step for step in steps if _is_dry_step_between(step, anchor, until)]
    try:
        if not chosen:
            raise InvalidRecording(NO_ACTION)
        if len(chosen) > MOST_STEPS:
            text = f"A replay has at most {MOST_STEPS:,} steps; choose fewer with anchor and until."
            raise InvalidRecording(text)
        run = _DryReplaySteps(recording, chosen, mode, policy, against, start, decisions or {}, budget)
        result = run.run(is_partial=anchor is not None)
    except (InvalidRecording, BudgetExceeded) as error:
        message = str(error) or "The selectors of the recording match too many elements to be resolved."
        return DryResult("failed", (), None, ReplaySummary(), ReplayError("invalid_recording", message))
    needed = {find_recorded_input_name(step.event) for step in chosen} - {None} - input_names
    missing = tuple(sorted(name for name in needed if name is not None))
    return replace(result, summary=replace(result.summary, missing_inputs=missing))


def compute_replayability(
    recording: RecordedSession,
    *,
    anchor: EventPosition | None = None,
    until: EventPosition | None = None,
    whole: Budget | None = None,
) -> float | None:
    """Return the share of steps whose target one element alone matches; None without snapshots or steps.

    Steps that act on no element count as resolvable; those without a usable snapshot do not.

    Args:
        recording: the session.
        anchor: first event that counts; None for that of the session.
        until: last event that counts; None for that of the session.
        whole: budget of several recordings.
    """
    steps = [step for step in list_recorded_steps(recording) if _is_dry_step_between(step, anchor, until)][
        :_SCORED_STEPS
    ]
    pages = RecordedPages(recording, Budget(_VISITS + _STEP_VISITS * len(steps), whole))
    resolvable = 0
    has_snapshot = False
    for step in steps:
        target = step.event.get("target")
        try:
            page = pages.read_page(step.before)
            has_snapshot = has_snapshot or page is not None
            if target:
                resolvable += page is not None and resolve_target(page, target, pages.budget).is_found
            else:
                resolvable += step.event["type"] not in TARGETED_TYPES
        except InvalidRecording:
            has_snapshot = True
        except BudgetExceeded:
            break
    return round(resolvable / len(steps), 6) if steps and has_snapshot else None


@dataclass
class _DryReplaySteps:
    recording: RecordedSession
    steps: Sequence[RecordedStep]
    mode: ReplayKind
    policy: ReplayPolicy
    against: RecordedSession | ComparedGraph | None
    start: ReplayStart | None
    decisions: Mapping[int, Decision]
    budget: Budget
    results: list[StepResult] = field(default_factory=list)
    first_divergence: Divergence | None = None
    has_page: bool = False
    walk: SessionComparison | GraphComparison | None = None

    def run(self, *, is_partial: bool) -> DryResult:
        """Check step after step until the end, a divergence, or a step that needs a decision."""
        pages = RecordedPages(self.recording, self.budget)
        self.walk = self._make_comparison(pages, is_partial)
        consequential = list_consequential(self.recording) if self.mode == "guided" else frozenset()
        for step in self.steps:
            decision = self.decisions.get(step.step)
            if decision is not None and decision.action == "abort":
                return self._make_result("failed", error=ReplayError("cancelled", "The replay was aborted."))
            # Only the first divergence is reported, so only that one needs suggestions.
            policy = self.policy if self.first_divergence is None else replace(self.policy, heal="off")
            unreached = self._check_start(step, pages)
            check = unreached or check_step(step, pages, self.walk, policy, decision)
            self.has_page = self.has_page or check.has_page
            if decision is not None and decision.action == "skip":
                self._add_step_result(step, replace(check, outcome="skipped", divergence=None))
                continue
            is_guided = self.mode == "guided"
            asks = is_guided and (step.event["id"] in consequential or check.divergence is not None)
            asks = asks or (check.divergence is not None and self.policy.on_divergence == "ask")
            if asks and (decision is None or check.is_refused):
                self.first_divergence = check.divergence or self.first_divergence
                return self._make_result("awaiting", awaiting=step.step)
            divergence = check.divergence
            if divergence is None or (decision is not None and decision.action == "act"):
                self._add_step_result(step, check if divergence is None else check.accept())
                continue
            self.first_divergence = self.first_divergence or divergence
            # From a page other than the recorded one no step is skipped: nothing of it would be verified.
            if self.policy.on_divergence == "skip" and unreached is None:
                self._add_step_result(step, replace(check, outcome="skipped"))
                continue
            self._add_step_result(step, replace(check, outcome="diverged"))
            return self._make_result("diverged")
        return self._make_result("completed")

    def _check_start(self, step: RecordedStep, pages: RecordedPages) -> StepCheck | None:
        """Return the divergence of the first step from the page on which the replay begins, if any."""
        if self.start is None or step is not self.steps[0]:
            return None
        walk = SessionComparison(self.start.recording, self.policy, self.budget)
        walk.begin_before(self.start.position)
        return check_first_step(step, pages, walk, self.policy)

    def _make_comparison(
        self, pages: RecordedPages, is_partial: bool
    ) -> SessionComparison | GraphComparison | None:
        if isinstance(self.against, ComparedGraph):
            return GraphComparison(self.against, self.policy)
        if self.against is None:
            return None
        walk = SessionComparison(self.against, self.policy, self.budget)
        if is_partial:
            before = pages.get_frame(self.steps[0].before)
            walk.begin_at(before.state_tokens if before else ())
        return walk

    def _add_step_result(self, step: RecordedStep, check: StepCheck) -> None:
        self.results.append(
            StepResult(
                step=step.step,
                event_id=step.event["id"],
                outcome=check.outcome,
                similarity=check.similarity,
                locator=check.locator,
                frame_id=check.frame_id,
            )
        )

    def _make_result(
        self,
        status: DryStatus,
        *,
        error: ReplayError | None = None,
        awaiting: int | None = None,
    ) -> DryResult:
        summary = summarize_steps(self.results, evidence=self._find_evidence())
        return DryResult(status, tuple(self.results), self.first_divergence, summary, error, awaiting)

    def _find_evidence(self) -> Literal["dom", "graph", "events"] | None:
        """Return the best evidence that a step was compared with; None if there was none."""
        if self.has_page:
            return "dom"
        if self.walk is None or not self.walk.has_compared:
            return None
        return "graph" if isinstance(self.walk, GraphComparison) else "events"


def _is_dry_step_between(
    step: RecordedStep, anchor: EventPosition | None, until: EventPosition | None
) -> bool:
    position = EventPosition(step.event["t_ms"], step.event["id"])
    return (anchor is None or position >= anchor) and (until is None or position <= until)
