"""Targets of live replays on the page that the browser shows, verified before anything is sent. Spec §4.6."""

from recorder.live.action_messages import ON_ELEMENTS, PERFORMED
from recorder.replays.budget import Budget
from recorder.replays.dom import DomElement, find_dom_element_role
from recorder.replays.recorded_pages import find_page_obstacle
from recorder.replays.recorded_session import RecordedEvent
from recorder.replays.replay_results import Decision, Divergence, DivergenceKind
from recorder.replays.step_checks import StepScene, find_retargeted_step_element
from recorder.replays.target_resolution import resolve_target

#: Visits of nodes for one reading of a page, with the resolution of a target on it.
VISITS = 3_000_000
#: Problems in spite of which a person may let a step act on the element that was found.
_SURMOUNTABLE = frozenset(("target_changed", "target_ambiguous", "target_missing", "state_mismatch"))


def was_target_problem_shown(scene: StepScene, problem: DivergenceKind, shown: Divergence | None) -> bool:
    """Return whether a person who ordered an action saw this problem, with the same role and name."""
    if shown is None or shown.kind != problem or problem not in _SURMOUNTABLE:
        return False
    if scene.element is None or scene.page is None or scene.step.event["type"] == "drag":
        return False  # a drag acts on two elements, and a person saw one
    observed = (find_dom_element_role(scene.element), scene.page.find_name(scene.element))
    return observed == (shown.observed.role, shown.observed.name)


def resolve_step_target(scene: StepScene, decision: Decision | None) -> DivergenceKind | None:
    """Find the element to act on; return why it cannot be acted on, or None."""
    event, page = scene.step.event, scene.page
    if event["type"] not in PERFORMED:
        return "action_failed"
    if page is None:
        return "target_missing"
    target = event.get("target")
    budget = Budget(VISITS)
    if decision is not None and decision.action == "retarget":
        scene.element = find_retargeted_step_element(page, decision.selector, budget)
        if scene.element is None:
            return "target_missing"
        scene.outcome, scene.locator = "healed", decision.selector
    elif target and event["type"] != "scroll":
        resolution = resolve_target(page, target, budget)
        scene.element, scene.locator = resolution.element, resolution.locator
        if resolution.finding == "relabelled":
            scene.outcome = "relabelled"
        elif resolution.finding != "matched":
            return resolution.finding
    elif event["type"] in ON_ELEMENTS:
        return "target_missing"
    if scene.element is not None and find_page_obstacle(scene.element, event) is not None:
        return "action_failed"
    if event["type"] == "drag":
        problem: DivergenceKind | None = scene.find_drop_problem(budget)
        return problem or (None if scene.drop is not None else "action_failed")
    return None if event["type"] != "upload" or _is_file_target(scene.element, event) else "action_failed"


def _is_file_target(element: DomElement | None, event: RecordedEvent) -> bool:
    """Return whether an element is a field for the files of an upload."""
    if element is None or element.tag != "input" or element.read_attribute("type") != "file":
        return False
    files = (event.get("input") or {}).get("files") or ()
    return len(files) < 2 or element.read_attribute("multiple") is not None
