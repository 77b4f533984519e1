"""One step of a live replay: find its target, act on it, and wait for what follows. Spec §4.6."""

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recorder.capture.captured_targets import describe_captured_target
from recorder.live.action_messages import NOTHING_TO_DO, PERFORMED, list_action_signals, make_action_message
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
_INPUT_MEMBERS = ("button", "delta", "files", "key", "masked", "modifiers", "secret_ref", "value")


@dataclass(frozen=True)
class TargetCandidate:
    """Element on which a step would act, or the reason why it cannot."""

    scene: StepScene
    state: LivePageState
    problem: DivergenceKind | None


@dataclass
class StepExecutor:
    """Does single steps; `begin` sets the next one."""

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
    #: The present step as an event of the recording of this run.
    _event: dict[str, Any] | None = None
    _step: LivePlanStep | None = None
    #: Version of the page that the last frame shows, and the frame's id.
    _framed: tuple[str, str | None] = ("", None)
    _url: str = ""
    #: Whether the present step opened a popup that is acted on since.
    _has_switched: bool = False
    #: Method of the request that the step caused in the recording.
    _method: str | None = None

    def begin(self, step: LivePlanStep) -> None:
        """Make a step the present one."""
        self._step, self._event = step, None
        self.has_acted, self.delivery, self.shown = False, "confirmed", None
        self._has_switched = False

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
            self._event = {"t_ms": self.recording.now_ms, "type": "navigate"}
            scene = StepScene(step, self.plan.get_frame(step.before), None, None)
            return self._settle(scene, is_open=self.open(event))
        candidate = self._wait_for_target(step, decision)
        for attempt in range(_MOST_CHANGES):
            if candidate.problem is not None:
                break
            frame_id = self.take_frame(candidate.state) if not attempt else None
            command = make_action_message(event, self.inputs, candidate.scene.element)
            self.journal.store(self.describe(step, candidate.scene.conclude(), "uncertain"))
            self._event = self._describe_event(event, candidate, frame_id)
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

    def _wait_for_target(self, step: RecordedStep, decision: Decision | None) -> TargetCandidate:
        """Wait until the page is the recorded one and shows the target; both are verified here."""
        until = time.monotonic() + self.policy.step_timeout_ms / 1000
        is_ordered = decision is not None and decision.action == "act"
        while True:
            state = self.read()
            scene = StepScene(step, self.plan.get_frame(step.before), state.frame, state.page)
            scene.similarity = compare_frame_states(scene.recorded, state.frame)
            problem = resolve_step_target(scene, decision)
            is_other = scene.similarity is not None and scene.similarity < self.policy.diverged
            if problem is None and is_other:
                problem = "state_mismatch"
            is_over = time.monotonic() >= until
            if problem is not None and is_ordered and was_target_problem_shown(scene, problem, self.shown):
                problem = None
            if state.page is not None and step.event["type"] in PERFORMED and not self._may_type(state):
                # No order of a person brings a secret to another site.
                problem = "unexpected_navigation"
            if problem is None or is_over or step.event["type"] not in PERFORMED:
                return TargetCandidate(scene, state, problem)
            self.pause()

    def _may_type(self, state: LivePageState) -> bool:
        """Return whether the page is of the recorded site, where the step types an input."""
        if self._step is None or self._step.input_name is None:
            return True
        recorded = self._step.page_url and map_live_page_url(self._step.page_url, self.policy.base_url_map)
        is_recorded = not recorded or has_same_live_page_origin(state.raw_url, recorded)
        return is_recorded and self.proxy.may_reach(state.raw_url)

    def _settle(self, scene: StepScene, *, is_open: bool = True) -> StepCheck:
        """Wait until the page shows what the action led to in the recording."""
        after = self.plan.get_frame(scene.step.after)
        until = time.monotonic() + self.policy.step_timeout_ms / 1000
        before = scene.similarity
        version, quiet = "", 0
        is_popup_announced = bool(list_action_signals(scene.step.event, "popup"))
        while True:
            state = self.read()
            if is_popup_announced and state.pages and not self._has_switched:
                # The recording goes on in the popup, and so does the frame after the step.
                self.browser.call("switch_to_popup", is_expected=True)
                self._has_switched = True
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
            is_over = time.monotonic() >= until
            is_done = state.page is not None and quiet >= _QUIET_READINGS
            if similarity is None or similarity < self.policy.ok:
                is_near = similarity is None or similarity >= self.policy.diverged
                is_ready = is_near and (is_done or is_over) and is_open and not state.has_failed
            else:
                is_ready = state.page is not None
            is_awaiting = self._awaits_load(scene.step.event, state) or (
                is_popup_announced and not self._has_switched
            )
            if is_ready and (is_over or not is_awaiting):
                break
            if is_over or (is_done and (state.has_failed or not is_open)):
                kind: DivergenceKind = "http_error" if state.has_failed else "state_mismatch"
                return self.diverge(scene, kind if is_open else "action_failed", state, after)
            self.pause()
        self._note_page(state)
        if state.pages and not is_popup_announced:
            self.browser.call("switch_to_popup", is_expected=False)
        return scene.conclude()

    def _awaits_load(self, event: RecordedEvent, state: LivePageState) -> bool:
        """Return whether an action led to another page in the recording, and the browser opens none yet."""
        is_announced = event["type"] != "navigate" and bool(list_action_signals(event, "navigation"))
        return is_announced and not state.loads and state.url == self._url

    def open(self, event: RecordedEvent) -> bool:
        """Open the page of an event; return whether the browser could."""
        if not event.get("url"):
            raise InvalidRecording("An event from which the replay goes on has no address to open.")
        url = map_live_page_url(str(event["url"]), self.policy.base_url_map)
        return "error" not in self.browser.call("goto", url=url, timeout_ms=self.policy.step_timeout_ms)

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
        """Let the page go on for some time."""
        until = time.monotonic() + ms / 1000
        while (left := until - time.monotonic()) > 0:
            self.pause(min(500, max(1, int(left * 1000))))

    def pause(self, ms: int = _POLL_MS) -> None:
        """Let the page go on for a moment.

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
        """Record a step with what became of it: as its own event where it was sent, else as a note."""
        data: dict[str, Any] = {
            "step": result.step,
            "event_id": result.event_id,
            "outcome": result.outcome,
            "similarity": result.similarity,
            "delivery": result.delivery,
        }
        if divergence is not None:
            data["divergence"] = divergence.kind
        if self._event is None or not self.has_acted:
            self.recording.add_event({"t_ms": self.recording.now_ms, "type": "custom", "data": data})
            return
        self.recording.add_event({**self._event, "data": {**self._event.get("data", {}), **data}})
        if self._event["type"] != "navigate" and self._event.get("signals"):
            (signal,) = self._event["signals"]
            kind = "tab_open" if signal["type"] == "popup" else "navigate"
            event = {"t_ms": self.recording.now_ms, "type": kind, "url": signal["url"]}
            self.recording.add_event(event)

    def _describe_event(
        self, event: RecordedEvent, candidate: TargetCandidate, frame_id: str | None
    ) -> dict[str, Any]:
        """Return the event of this run for a step that is about to be sent, without inputs."""
        described: dict[str, Any] = {
            "t_ms": self.recording.now_ms,
            "type": event["type"],
            "url": candidate.state.url,
            "title": candidate.state.title,
        }
        self._url = candidate.state.url
        methods = (signal.get("method") for signal in event.get("signals") or ())
        self._method = next((method for method in methods if isinstance(method, str)), None)
        if frame_id is not None:
            described["frame_id"] = frame_id
        scene = candidate.scene
        if scene.element is not None and scene.page is not None:
            described["target"] = describe_captured_target(scene.page, scene.element)
            if scene.drop is not None:
                described["data"] = {"drop": describe_captured_target(scene.page, scene.drop)}
        given = {
            name: member for name, member in (event.get("input") or {}).items() if name in _INPUT_MEMBERS
        }
        if self._step is not None and self._step.input_name is not None:
            given.update(value=None, masked=True, secret_ref=self._step.input_name)
        if given:
            described["input"] = given
        return described

    def _note_page(self, state: LivePageState) -> None:
        """Complete the event of the present step by the page that it led to."""
        if self._event is None or not self.has_acted or state.page is None:
            return
        if self._event["type"] == "navigate":
            self._event.update(url=state.url, title=state.title)
        elif state.url != self._url:
            signal = {"type": "popup" if self._has_switched else "navigation", "url": state.url}
            self._event["signals"] = [signal if self._method is None else {**signal, "method": self._method}]


def compare_frame_states(recorded: RecordedFrame | None, observed: RecordedFrame) -> float | None:
    """Return the similarity of two states; None where the recorded one is unknown."""
    tokens = read_state_tokens(recorded)
    return compare_page_states(tokens, observed.state_tokens) if tokens else None
