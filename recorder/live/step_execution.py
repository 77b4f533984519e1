"""One step of a live replay: find its target, act on it, and wait for what follows. Spec §4.6."""

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recorder.live.action_messages import (
    NOTHING_TO_DO,
    PERFORMED,
    list_action_signals,
    list_dialog_answers,
    make_action_message,
)
from recorder.live.browser import Browser, BrowserLost
from recorder.live.hidden_inputs import HiddenInputs
from recorder.live.live_page import (
    LivePageState,
    has_same_live_page_origin,
    map_live_page_url,
    read_page_state,
)
from recorder.live.proxy import FilteringProxy
from recorder.live.replay_journal import ReplayJournal, TimeSpent
from recorder.live.replay_plan import LivePlan, LivePlanStep
from recorder.live.run_recording import ReplayRunRecorder
from recorder.live.step_event import StepEvent
from recorder.live.tab_names import TAB_STEPS, list_popup_names, read_tab_name
from recorder.live.target_search import VISITS, resolve_step_target, was_target_problem_shown
from recorder.replays.budget import Budget
from recorder.replays.page_states import compare_page_states
from recorder.replays.recorded_session import InvalidRecording, RecordedEvent, RecordedFrame, RecordedStep
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.replay_results import ActionDelivery, Decision, Divergence, DivergenceKind, StepResult
from recorder.replays.step_checks import StepCheck, StepScene, read_state_tokens

_POLL_MS = 40
#: Readings without a change after which a page counts as done.
_QUIET_READINGS = 3
#: Attempts on a page that changes between the verification and the action.
_MOST_CHANGES = 20
_PICTURE_MS = 3_000
#: Time for a page to close itself, beyond the one that it took in the recording.
_CLOSING_MS = 1_000


@dataclass(frozen=True)
class TargetCandidate:
    """Element on which a step would act, or the reason why it cannot."""

    scene: StepScene
    state: LivePageState
    problem: DivergenceKind | None


@dataclass
class StepExecutor:
    """Executor of single steps; `begin` sets the next one."""

    plan: LivePlan
    policy: ReplayPolicy
    inputs: Mapping[str, str]
    hidden_inputs: HiddenInputs
    browser: Browser
    proxy: FilteringProxy
    mask: Callable[[Any], Any]
    journal: ReplayJournal
    recording: ReplayRunRecorder
    #: Time of the monotonic clock at which the replay ends.
    ends_at: float
    #: Whether the present step was sent, or may have been.
    has_acted: bool = False
    delivery: ActionDelivery = "confirmed"
    #: What the person saw who made the last decision on the present step.
    shown: Divergence | None = None
    #: Name of the element that the last divergence is about; None without one.
    _diverged_element: str | None = None
    _event: StepEvent = field(init=False)
    _step: LivePlanStep | None = None
    #: Time of the step before, in the recording.
    _last_t_ms: int = 0
    #: Version of the page that the last frame shows, and the frame's id.
    _framed: tuple[str, str | None] = ("", None)

    def begin(self, step: LivePlanStep) -> None:
        """Make a step the present one."""
        self._last_t_ms = step.t_ms if self._step is None else self._step.t_ms
        self._step, self._event = step, StepEvent(self.recording, step.input_name)
        self.has_acted, self.delivery, self.shown = False, "confirmed", None

    def find_problem_ahead(self, step: RecordedStep) -> Divergence | None:
        """Return what speaks against a step that has consequences, for the person who decides on it."""
        if step.event["type"] not in PERFORMED:
            return None
        candidate = self._wait_for_target(step, None)
        if candidate.problem is None:
            return None
        return self.diverge(candidate.scene, candidate.problem, candidate.state).divergence

    def perform(self, step: RecordedStep, decision: Decision | None) -> StepCheck:
        """Do a step, and wait for what it leads to."""
        event = step.event
        if event["type"] in NOTHING_TO_DO:
            return StepCheck("matched")
        if event["type"] == "navigate":
            self.journal.store(self.describe(step, StepCheck("matched"), "uncertain"))
            self.has_acted = True
            self._event.begin_navigation()
            scene = StepScene(step, self.plan.get_frame(step.before), None, None)
            return self._settle(scene, is_open=self.open(event))
        if event["type"] in TAB_STEPS:
            return self._perform_tab_step(step)
        candidate = self._wait_for_target(step, decision)
        for attempt in range(_MOST_CHANGES):
            if candidate.problem is not None:
                break
            frame_id = self.take_frame(candidate.state) if not attempt else None
            command = make_action_message(event, self.inputs, candidate.scene.element)
            self.journal.store(self.describe(step, candidate.scene.conclude(), "uncertain"))
            self._event.begin_action(event, candidate.scene, candidate.state, frame_id)
            answer = self.browser.call(
                "perform",
                index=None if candidate.scene.element is None else candidate.scene.element.index,
                drop=None if candidate.scene.drop is None else candidate.scene.drop.index,
                version=candidate.state.version,
                timeout_ms=self.policy.step_timeout_ms,
                **command,
            )
            if answer["sent"] is not False:
                self.has_acted = True
                if answer["sent"]:
                    return self._settle(candidate.scene)
                self.delivery = "uncertain"
                return self.diverge(candidate.scene, "action_failed", candidate.state)
            if not answer.get("is_changed"):
                return self.diverge(candidate.scene, "action_failed", candidate.state)
            # The page changed after it was verified: verify again.
            candidate = self._wait_for_target(step, decision)
        return self.diverge(candidate.scene, candidate.problem or "action_failed", candidate.state)

    def _perform_tab_step(self, step: RecordedStep) -> StepCheck:
        """Do a step that opens a page, goes to another one or closes one; wait for what it leads to."""
        event, is_open = step.event, True
        name = read_tab_name(event)
        self.journal.store(self.describe(step, StepCheck("matched"), "uncertain"))
        self._event.begin_tab_step(event["type"], name)
        self.browser.call("begin_tab_step", dialogs=list_dialog_answers(event))
        if event["type"] == "tab_switch":
            self.has_acted = bool(self.browser.call("switch_tab", name=name)["is_done"])
        elif event["type"] == "tab_open":
            self.browser.call("open_tab", name=name)
            self.has_acted = True
            is_open = not str(event.get("url")).startswith("http") or self.open(event)
        else:
            self.has_acted = self._close_tab(event["t_ms"], name)
        scene = StepScene(step, self.plan.get_frame(step.before), None, None)
        if not self.has_acted:
            return self.diverge(scene, "action_failed", self.read())
        return self._settle(scene, is_open=is_open)

    def _close_tab(self, t_ms: int, name: str | None) -> bool:
        """Close a page unless it closes itself; return False if it is the only one, or was never opened.

        It has as long to close itself as in the recording, from its last request on: what it does before,
        such as to sign in, would be lost.

        Args:
            t_ms: time at which it was closed in the recording.
            name: name of the page, if the recording has one.
        """
        patience_s = (max(0, t_ms - self._last_t_ms) + _CLOSING_MS) / 1000
        rests_since = time.monotonic()
        ends_at = rests_since + self.policy.step_timeout_ms / 1000
        while True:
            now = time.monotonic()
            is_forced = now >= min(rests_since + patience_s, ends_at)
            answer = self.browser.call("close_tab", name=name, is_forced=is_forced)
            if answer["state"] != "open":
                return bool(answer["state"] == "closed")
            if answer["is_loading"]:
                rests_since = now
            self.pause()

    def _wait_for_target(self, step: RecordedStep, decision: Decision | None) -> TargetCandidate:
        """Wait until the page is the recorded one and shows the target; both are verified here."""
        until = time.monotonic() + self.policy.step_timeout_ms / 1000
        must_act = decision is not None and decision.action == "act"
        while True:
            state = self.read()
            scene = StepScene(step, self.plan.get_frame(step.before), state.frame, state.page)
            scene.similarity = compare_frame_states(scene.recorded, state.frame)
            problem = resolve_step_target(scene, decision)
            is_other = scene.similarity is not None and scene.similarity < self.policy.diverged
            if problem is None and is_other:
                problem = "state_mismatch"
            is_over = time.monotonic() >= until
            if must_act and problem is not None and self._was_problem_shown(scene, problem):
                problem = None
            if state.page is not None and step.event["type"] in PERFORMED and not self._may_type(state):
                # No order of a person brings a secret to another site.
                problem = "unexpected_navigation"
            if problem is None or is_over or step.event["type"] not in PERFORMED:
                return TargetCandidate(scene, state, problem)
            self.pause()

    def _was_problem_shown(self, scene: StepScene, problem: DivergenceKind) -> bool:
        """Return whether a person who ordered the action saw this problem, with this very element."""
        shown = self._diverged_element if was_target_problem_shown(scene, problem, self.shown) else None
        return shown is not None and shown == self._name_element(scene)

    def _name_element(self, scene: StepScene) -> str | None:
        """Return the accessible name of the element that a step resolved to; None without an element."""
        if scene.element is None:
            return None
        name: str | None = self.browser.call("name_element", index=scene.element.index)["name"]
        return name

    def _may_type(self, state: LivePageState) -> bool:
        """Return whether the page is of the recorded site, where the step types an input."""
        if self._step is None or self._step.input_name is None:
            return True
        recorded = self._step.page_url and map_live_page_url(self._step.page_url, self.policy.base_url_map)
        is_recorded = not recorded or has_same_live_page_origin(state.raw_url, recorded)
        return is_recorded and self.proxy.may_reach(state.raw_url)

    def _settle(self, scene: StepScene, *, is_open: bool = True) -> StepCheck:
        """Wait until the page shows what the action led to in the recording."""
        popups = list_popup_names(scene.step.event)
        # The frame after a step that opened several popups may show any of them.
        after = None if len(popups) > 1 else self.plan.get_frame(scene.step.after)
        until = time.monotonic() + self.policy.step_timeout_ms / 1000
        before = scene.similarity
        version, quiet = "", 0
        while True:
            state = self.read()
            is_over = time.monotonic() >= until
            has_switched = bool(self._event.popups)
            if popups and not has_switched and state.pages >= (1 if is_over else len(popups)):
                # The recording goes on in the last popup, and so does the frame after the step. If fewer were
                # opened, it is not known which ones.
                names = popups if state.pages >= len(popups) else [None] * state.pages
                self.browser.call("switch_to_popups", names=names)
                self._event.popups = names
                continue
            quiet = quiet + 1 if state.page is not None and state.version == version else 0
            version = state.version
            if any(dialog["was"] == "unexpected" for dialog in state.dialogs):
                return self.diverge(scene, "unexpected_dialog", state, after)
            if any(status in (None, 403) and self.proxy.has_refused(url) for url, status in state.loads):
                return self.diverge(scene, "egress_blocked", state, after)
            similarity = compare_frame_states(after, state.frame)
            scene.similarity = min(
                (value for value in (before, similarity) if value is not None), default=None
            )
            is_done = state.page is not None and quiet >= _QUIET_READINGS
            if similarity is None or similarity < self.policy.ok:
                is_near = similarity is None or similarity >= self.policy.diverged
                is_ready = is_near and (is_done or is_over) and is_open and not state.has_failed
            else:
                is_ready = state.page is not None
            is_awaiting = self._awaits_load(scene.step.event, state) or (popups and not has_switched)
            if is_ready and (is_over or not is_awaiting):
                break
            if is_over or (is_done and (state.has_failed or not is_open)):
                kind: DivergenceKind = "http_error" if state.has_failed else "state_mismatch"
                return self.diverge(scene, kind if is_open else "action_failed", state, after)
            self.pause()
        self._note_page(state)
        if state.pages and not popups:
            self.browser.call("switch_to_popups", names=[])
        return scene.conclude()

    def _awaits_load(self, event: RecordedEvent, state: LivePageState) -> bool:
        """Return whether an action led to another page in the recording, and the browser opens none yet."""
        if event["type"] == "navigate" or event["type"] in TAB_STEPS:
            return False
        is_announced = bool(list_action_signals(event, "navigation"))
        return is_announced and not state.loads and state.url == self._event.url

    def open(self, event: RecordedEvent) -> bool:
        """Open the page of an event; return whether the browser could."""
        if not event.get("url"):
            raise InvalidRecording("An event from which the replay goes on has no address to open.")
        url = map_live_page_url(str(event["url"]), self.policy.base_url_map)
        return "error" not in self.browser.call("goto", url=url, timeout_ms=self.policy.step_timeout_ms)

    def name_page(self, name: str | None) -> None:
        """Give the page that is acted on its name in the recording; None where that is unknown."""
        self.browser.call("name_page", name=name)

    def read(self) -> LivePageState:
        """Return the state of the page."""
        if not self.proxy.is_serving:
            raise BrowserLost("The proxy of the browser has ended.")
        return read_page_state(self.browser, self.mask, self.hidden_inputs, Budget(VISITS))

    def diverge(
        self,
        scene: StepScene,
        kind: DivergenceKind,
        state: LivePageState,
        after: RecordedFrame | None = None,
    ) -> StepCheck:
        """Return the check of a step at which the world differs from the recording."""
        if after is not None:
            scene.recorded = after
        scene.observed, scene.page = state.frame, state.page or scene.page
        self._note_page(state)
        self._diverged_element = self._name_element(scene)
        suggests = self.policy.heal == "suggest" and not self.has_acted
        check = scene.diverge(kind, acted=self.has_acted, heal=suggests)
        assert check.divergence is not None
        observed = replace(check.divergence.observed, url=state.url)
        live_frame_id = self.take_frame(state)
        divergence = replace(
            check.divergence, observed=observed, observed_frame_id=None, live_frame_id=live_frame_id
        )
        return replace(check, divergence=divergence)

    def wait(self, ms: int) -> None:
        """Wait for some time, in which the page goes on."""
        until = time.monotonic() + ms / 1000
        while (left := until - time.monotonic()) > 0:
            self.pause(min(500, max(1, int(left * 1000))))

    def pause(self, ms: int = _POLL_MS) -> None:
        """Wait for a moment, in which the page goes on.

        Raises:
            TimeSpent: if the time of the replay is over.
        """
        self.journal.check()
        self.check_time()
        self.browser.call("pause", ms=ms)

    def check_time(self) -> None:
        """Check that the replay may go on.

        Raises:
            TimeSpent: if its time is over.
        """
        if time.monotonic() >= self.ends_at:
            raise TimeSpent

    def describe(self, step: RecordedStep, check: StepCheck, delivery: ActionDelivery) -> StepResult:
        """Return the result of a step as it is stored."""
        frame = self.plan.get_frame(step.before)
        return StepResult(
            step=step.step,
            event_id=step.event["id"],
            outcome=check.outcome,
            similarity=check.similarity,
            locator=check.locator,
            frame_id=None if frame is None else frame.frame_id,
            delivery=delivery,
        )

    def take_frame(self, state: LivePageState) -> str | None:
        """Record the page, unless the last frame shows it; return the frame's id, None without one.

        A page that changes while its picture is taken is left out: inputs could be in the picture.
        """
        if state.page is None or state.hidden is None:
            return None
        if self._framed[0] == state.version:
            return self._framed[1]
        t_ms = self.recording.now_ms
        answer = self.browser.call(
            "picture",
            version=state.version,
            indices=state.hidden.shows_input,
            unread=state.hidden.unread,
            timeout_ms=_PICTURE_MS,
        )
        frame_id = None
        if answer["data"] is not None:
            frame_id = self.recording.add_frame(
                base64.b64decode(answer["data"]),
                t_ms=t_ms,
                url=state.url,
                dom=state.frame.read_dom(),
                rects=answer["rects"],
            )
        self._framed = state.version, frame_id
        return frame_id

    def record(self, result: StepResult, divergence: Divergence | None) -> None:
        """Record the present step with what became of it."""
        self._event.store(result, divergence, has_acted=self.has_acted)

    def _note_page(self, state: LivePageState) -> None:
        if self.has_acted:
            self._event.note_page(state)


def compare_frame_states(recorded: RecordedFrame | None, observed: RecordedFrame) -> float | None:
    """Return the similarity of two states; None where the recorded one is unknown."""
    tokens = read_state_tokens(recorded)
    return compare_page_states(tokens, observed.state_tokens) if tokens else None
