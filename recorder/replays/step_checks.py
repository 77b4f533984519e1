"""Checks of one replayed step, dry or live: target, feasibility, states before and after. Spec §4.6."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from recorder.replays.budget import Budget, BudgetExceeded
from recorder.replays.css import UnusableSelector
from recorder.replays.dom import DomDocument, DomElement, find_dom_element_role
from recorder.replays.drop_targets import read_drop_target
from recorder.replays.page_states import compare_page_states, hash_page_state, list_state_differences
from recorder.replays.recorded_pages import TARGETED_TYPES, RecordedPages, find_page_obstacle
from recorder.replays.recorded_session import RecordedFrame, RecordedStep
from recorder.replays.replay_comparisons import QUIET_TYPES, GraphComparison, SessionComparison
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.replay_results import Decision, Divergence, DivergenceKind, DivergenceSide, StepOutcome
from recorder.replays.selectors import find_single_element_by_selector
from recorder.replays.target_resolution import RESOLVE_VISITS, Resolution, resolve_target, suggest_targets


@dataclass(frozen=True, slots=True)
class StepCheck:
    """Result of the check of one step; policy and person decide what follows a divergence."""

    outcome: StepOutcome
    similarity: float | None = None
    locator: str | None = None
    frame_id: str | None = None
    divergence: Divergence | None = None
    has_page: bool = False
    #: The decision cannot be carried out: the selector of a `retarget` matches no element alone.
    is_refused: bool = False

    def accept(self) -> "StepCheck":
        """Return the check of a step that a person lets pass in spite of its divergence."""
        is_other_label = self.divergence is not None and self.divergence.kind == "target_changed"
        return replace(self, outcome="relabelled" if is_other_label else "matched")


@dataclass(slots=True)
class StepScene:
    """The step with the page that it is done on."""

    step: RecordedStep
    recorded: RecordedFrame | None
    observed: RecordedFrame | None
    page: DomDocument | None
    similarity: float | None = None
    element: DomElement | None = None
    #: Element on which a drag ends.
    drop: DomElement | None = None
    #: Target that was looked for last; None for that of the event.
    wanted: Mapping[str, Any] | None = None
    locator: str | None = None
    outcome: StepOutcome = "matched"

    def diverge(
        self, kind: DivergenceKind, *, acted: bool = False, heal: bool = False, **members: Any
    ) -> StepCheck:
        """Return the check of a step at which the world differs; `members` replace its own."""
        event = self.step.event
        target = self.wanted or event.get("target") or {}
        expected = read_state_tokens(self.recorded)
        observed = read_state_tokens(self.observed)
        missing, unexpected = (
            list_state_differences(expected, observed) if expected and observed else ((), ())
        )
        divergence = Divergence(
            step=self.step.step,
            event_id=event["id"],
            kind=kind,
            acted=acted,
            expected=DivergenceSide(
                target.get("role"), target.get("name"), hash_page_state(expected), event.get("url")
            ),
            observed=self._describe_element(hash_page_state(observed)),
            similarity=self.similarity,
            missing=missing,
            unexpected=unexpected,
            candidates=suggest_targets(self.page, target) if heal and self.page is not None else (),
            frame_id=self.recorded.frame_id if self.recorded else None,
            observed_frame_id=(
                self.observed.frame_id if self.observed and self.observed is not self.recorded else None
            ),
        )
        return self.conclude(divergence=replace(divergence, **members))

    def conclude(self, **members: Any) -> StepCheck:
        """Return the check of a step as it is now."""
        return StepCheck(
            outcome=self.outcome,
            similarity=self.similarity,
            locator=self.locator,
            frame_id=self.recorded.frame_id if self.recorded else None,
            has_page=self.page is not None,
            **members,
        )

    def find_drop_problem(self, budget: Budget) -> DivergenceKind | None:
        """Find the element on which a drag ends, verified like its source; return why there is none, or None.

        A recording that names no such element is of a client that records sources alone.
        """
        wanted = read_drop_target(self.step.event)
        if wanted is None or self.page is None:
            return None
        resolution = resolve_target(self.page, wanted, budget)
        if resolution.finding == "relabelled":
            self.outcome = "relabelled"
        elif resolution.finding != "matched":
            self.wanted, self.element = wanted, resolution.element
            return resolution.finding
        self.drop = resolution.element
        return None

    def _describe_element(self, state: str | None) -> DivergenceSide:
        if self.element is None or self.page is None:
            return DivergenceSide(state=state)
        return DivergenceSide(find_dom_element_role(self.element), self.page.find_name(self.element), state)


def check_step(
    step: RecordedStep,
    pages: RecordedPages,
    walk: SessionComparison | GraphComparison | None,
    policy: ReplayPolicy,
    decision: Decision | None,
) -> StepCheck:
    """Check one step, and go on with the walk where the step can be done.

    Args:
        step: the step.
        pages: pages of the recording.
        walk: what the recording is compared with; None for itself.
        policy: the thresholds.
        decision: a person's, for this step.

    Raises:
        InvalidRecording, BudgetExceeded: if the recording cannot be read within the budget.
    """
    other = walk if isinstance(walk, SessionComparison) else None
    recorded = pages.get_frame(step.before)
    scene = StepScene(
        step,
        recorded,
        other.get_frame() if other else recorded,
        other.read_page() if other else pages.read_page(step.before),
    )
    if other is not None and not other.is_reached:
        return scene.diverge("anchor_unreachable")
    if isinstance(walk, GraphComparison):
        unseen = walk.find_unseen(step.event)
        walk.move(step.event)
        if unseen is not None:
            expected, observed = unseen
            return scene.diverge("edge_unseen", expected=expected, observed=observed)
    if other is not None and _differs_from_step_state(scene, policy, scene.recorded, scene.observed):
        return scene.diverge("state_mismatch")
    failed = _check_step_target(scene, pages.budget, policy, decision)
    if failed is not None:
        return failed
    if other is None:
        after = pages.get_frame(step.after)
        scene.similarity = 1.0 if after is not None and after.state_tokens else None
        return scene.conclude()
    return _compare_next_steps(scene, pages, other, policy)


def check_first_step(
    step: RecordedStep, pages: RecordedPages, start: SessionComparison, policy: ReplayPolicy
) -> StepCheck | None:
    """Check that the first step can be done on the page of the session where the replay begins.

    Returns:
        The divergence: that page is in another state, or lacks the element; None if the step can be done.
    """
    recorded = pages.get_frame(step.before)
    scene = StepScene(step, recorded, start.get_frame(), start.read_page())
    _differs_from_step_state(scene, policy, scene.recorded, scene.observed)
    if scene.similarity is not None and scene.similarity < policy.ok:
        return scene.diverge("anchor_unreachable")
    return _check_step_target(scene, pages.budget, policy, None)


def _check_step_target(
    scene: StepScene, budget: Budget, policy: ReplayPolicy, decision: Decision | None
) -> StepCheck | None:
    """Find the element to act on; return a check where it cannot be acted on."""
    event, page = scene.step.event, scene.page
    if page is None:
        return None
    heal = policy.heal == "suggest"
    target = event.get("target")
    if decision is not None and decision.action == "retarget":
        scene.element = find_retargeted_step_element(page, decision.selector, budget)
        if scene.element is None:
            return replace(scene.diverge("target_missing", heal=heal), is_refused=True)
        scene.outcome, scene.locator = "healed", decision.selector
    elif target:
        resolution: Resolution = resolve_target(page, target, budget)
        scene.element, scene.locator = resolution.element, resolution.locator
        if resolution.finding == "relabelled":
            scene.outcome = "relabelled"
        elif resolution.finding != "matched":
            return scene.diverge(resolution.finding, heal=heal)
    elif event["type"] in TARGETED_TYPES:
        return scene.diverge("target_missing")
    if scene.element is not None and find_page_obstacle(scene.element, event) is not None:
        return scene.diverge("action_failed")
    problem = scene.find_drop_problem(budget) if event["type"] == "drag" else None
    return None if problem is None else scene.diverge(problem, heal=heal)


def find_retargeted_step_element(
    page: DomDocument, selector: str | None, budget: Budget
) -> DomElement | None:
    """Return the element that a person's selector matches alone; None if there is no such element."""
    part = Budget(RESOLVE_VISITS, budget)
    try:
        return find_single_element_by_selector(page, selector, part) if selector else None
    except UnusableSelector:
        return None
    except BudgetExceeded:
        if part.left >= 0:
            raise
        return None


def _compare_next_steps(
    scene: StepScene, pages: RecordedPages, other: SessionComparison, policy: ReplayPolicy
) -> StepCheck:
    """Compare what both sessions do next, and where it leads."""
    if scene.step.event["type"] in QUIET_TYPES:
        return scene.conclude()
    if not other.does_same_next(scene.step.event, scene.element):
        event = other.get_next_event() or {}
        target = event.get("target") or {}
        observed = DivergenceSide(target.get("role"), target.get("name"), url=event.get("url"))
        return scene.diverge("edge_unseen", observed=observed)
    after, observed_after = pages.get_frame(scene.step.after), other.move()
    if _differs_from_step_state(scene, policy, after, observed_after):
        scene.recorded, scene.observed = after, observed_after
        return scene.diverge("state_mismatch", acted=True)
    return scene.conclude()


def _differs_from_step_state(
    scene: StepScene, policy: ReplayPolicy, expected: RecordedFrame | None, observed: RecordedFrame | None
) -> bool:
    """Return whether two states differ too much; the least similarity of the step is kept."""
    tokens, others = read_state_tokens(expected), read_state_tokens(observed)
    if not tokens or not others:
        return False
    similarity = compare_page_states(tokens, others)
    scene.similarity = similarity if scene.similarity is None else min(scene.similarity, similarity)
    return similarity < policy.diverged


def read_state_tokens(frame: RecordedFrame | None) -> tuple[str, ...]:
    """Return the state tokens of the page that a frame shows; empty without a frame or a snapshot."""
    return frame.state_tokens if frame is not None else ()
