"""Live replay: the steps of a session done again in a browser, each verified before it acts. Spec §4.6."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recorder.live.actions import NOTHING_TO_DO, PERFORMED, list_signals, make_command
from recorder.live.browser import Browser, BrowserLost
from recorder.live.finding import VISITS, locate, was_shown
from recorder.live.journal import LiveResult, LiveStatus, StepJournal, TimeSpent
from recorder.live.pages import LiveState, map_url, read_state
from recorder.live.proxy import FilteringProxy
from recorder.replays.budget import Budget
from recorder.replays.consequences import list_consequential
from recorder.replays.policy import ReplayPolicy
from recorder.replays.recordings import (
    EventItem,
    InvalidRecording,
    RecordedFrame,
    RecordedSession,
    RecordedStep,
    find_input_name,
    has_succeeded,
)
from recorder.replays.results import (
    Decision,
    Delivery,
    Divergence,
    DivergenceKind,
    Mode,
    ReplayError,
    StepResult,
    Summary,
)
from recorder.replays.states import compare_states
from recorder.replays.step_checks import StepCheck, StepScene, tokens_of

_POLL_MS = 40
#: Readings without a change after which a page counts as done.
_QUIET_READINGS = 3
#: Attempts on a page that changes between the verification and the action.
_MOST_CHANGES = 20
_NO_DECISION = ReplayError("timeout", "No decision came within 15 minutes.")


@dataclass(frozen=True)
class _Candidate:
    """Element on which a step would act, or the reason why it cannot."""

    scene: StepScene
    state: LiveState
    problem: DivergenceKind | None


@dataclass
class LiveRun:
    """One live replay, from the first page to its end."""

    recording: RecordedSession
    steps: Sequence[RecordedStep]
    #: Steps before an anchor, done only where its page cannot be opened directly.
    prefix: Sequence[RecordedStep]
    mode: Mode
    policy: ReplayPolicy
    inputs: Mapping[str, str]
    browser: Browser
    proxy: FilteringProxy
    mask: Callable[[Any], Any]
    journal: StepJournal
    results: list[StepResult] = field(default_factory=list)
    first_divergence: Divergence | None = None
    #: Whether the present step was sent, or may have been.
    _acted: bool = False
    _delivery: Delivery = "confirmed"
    #: What the person saw who made the last decision on the present step.
    _shown: Divergence | None = None
    _ends_at: float = 0.0

    def run(self) -> LiveResult:
        """Do step after step until the end, a divergence, or an order to stop.

        Raises:
            BrowserLost, PageStuck: if the browser is gone.
            InvalidRecording, BudgetSpent: if the recording or a page cannot be read.
        """
        self._ends_at = time.monotonic() + self.policy.max_ms / 1000
        consequential = list_consequential(self.recording)
        try:
            unreached = self._reach_start(consequential) if self.steps else None
            if unreached is not None:
                self.first_divergence = unreached.divergence
                return self._finish("diverged")
            for index, step in enumerate(self.steps):
                self.journal.begin(step.step)
                if index and self.policy.speed == "recorded":
                    self._wait(step.event["t_ms"] - self.steps[index - 1].event["t_ms"])
                ended = self._do_step(step, is_consequential=step.event["id"] in consequential)
                if ended is not None:
                    return ended
        except TimeSpent:
            text = f"The replay took longer than policy.max_ms, {self.policy.max_ms:,} ms."
            return self._finish("failed", ReplayError("timeout", text))
        return self._finish("completed")

    def _do_step(self, step: RecordedStep, *, is_consequential: bool) -> LiveResult | None:
        """Do a step, with a person's decision where one is needed; return the result that ends the replay."""
        began = time.monotonic()
        self._acted, self._delivery = False, "confirmed"
        decision: Decision | None = None
        self._shown = None
        if is_consequential and self.mode == "guided":
            decision = self._ask(step, self._check_ahead(step))
            if decision is None:
                return self._finish("failed", _NO_DECISION)
        elif (
            is_consequential and not self.policy.repeat_consequential and has_succeeded(self.recording, step)
        ):
            self._store(step, StepCheck("skipped"), began)
            return None
        asks = self.mode == "guided" or self.policy.on_divergence == "ask"
        while True:
            if decision is not None and decision.action == "abort":
                return self._finish("failed", ReplayError("cancelled", "The replay was aborted."))
            if decision is not None and decision.action == "skip":
                self._store(step, StepCheck("skipped"), began)
                return None
            check = self._perform(step, decision)
            if check.divergence is None:
                self._store(step, check, began)
                return None
            self.first_divergence = self.first_divergence or check.divergence
            if not asks:
                goes_on = self.policy.on_divergence == "skip"
                self._store(step, replace(check, outcome="skipped" if goes_on else "diverged"), began)
                return None if goes_on else self._finish("diverged")
            decision = self._ask(step, check.divergence)
            if decision is None:
                return self._finish("failed", _NO_DECISION)
            if self._acted and decision.action != "abort":
                # What was sent, or may have been, is never sent again.
                self._store(step, check if check.outcome == "healed" else check.accept(), began)
                return None

    def _check_ahead(self, step: RecordedStep) -> Divergence | None:
        """Return what speaks against a step that has consequences, for the person who decides on it."""
        if step.event["type"] not in PERFORMED:
            return None
        candidate = self._find(step, None)
        if candidate.problem is None:
            return None
        return self._diverge(candidate.scene, candidate.problem, candidate.state).divergence

    def _perform(self, step: RecordedStep, decision: Decision | None) -> StepCheck:
        """Do a step, and wait for what it leads to."""
        event = step.event
        if event["type"] in NOTHING_TO_DO:
            return StepCheck("matched")
        if event["type"] == "navigate":
            self.journal.intend(self._describe(step, StepCheck("matched"), "uncertain"))
            self._acted = True
            scene = StepScene(step, self._get_frame(step.before), None, None)
            return self._settle(scene, is_open=self._open(event))
        candidate = self._find(step, decision)
        for _ in range(_MOST_CHANGES):
            if candidate.problem is not None:
                break
            command = make_command(event, self.inputs)
            self.journal.intend(self._describe(step, candidate.scene.conclude(), "uncertain"))
            answer = self.browser.call(
                "perform",
                index=None if candidate.scene.element is None else candidate.scene.element.index,
                version=candidate.state.version,
                timeout_ms=self.policy.step_timeout_ms,
                **command,
            )
            if answer["sent"] is not False:
                self._acted = True
                if answer["sent"]:
                    return self._settle(candidate.scene)
                self._delivery = "uncertain"
                return self._diverge(candidate.scene, "action_failed", candidate.state)
            if not answer.get("is_changed"):
                return self._diverge(candidate.scene, "action_failed", candidate.state)
            # The page changed after it was verified: verify again.
            candidate = self._find(step, decision)
        return self._diverge(candidate.scene, candidate.problem or "action_failed", candidate.state)

    def _find(self, step: RecordedStep, decision: Decision | None) -> _Candidate:
        """Wait until the page is the recorded one and shows the target; both are verified here."""
        until = time.monotonic() + self.policy.step_timeout_ms / 1000
        is_ordered = decision is not None and decision.action == "act"
        while True:
            state = self._read()
            scene = StepScene(step, self._get_frame(step.before), state.frame, state.page)
            scene.similarity = _compare(scene.recorded, state.frame)
            problem = locate(scene, decision)
            is_other = scene.similarity is not None and scene.similarity < self.policy.diverged
            if problem is None and is_other:
                problem = "state_mismatch"
            is_over = time.monotonic() >= until
            if problem is not None and is_ordered and was_shown(scene, problem, self._shown):
                problem = None
            if problem is None or is_over or step.event["type"] not in PERFORMED:
                return _Candidate(scene, state, problem)
            self._pause()

    def _settle(self, scene: StepScene, *, is_open: bool = True) -> StepCheck:
        """Wait until the page shows what the action led to in the recording."""
        after = self._get_frame(scene.step.after)
        until = time.monotonic() + self.policy.step_timeout_ms / 1000
        before = scene.similarity
        version, quiet = "", 0
        while True:
            state = self._read()
            quiet = quiet + 1 if state.page is not None and state.version == version else 0
            version = state.version
            if any(dialog["was"] == "unexpected" for dialog in state.dialogs):
                return self._diverge(scene, "unexpected_dialog", state, after)
            if any(status in (None, 403) and self.proxy.has_refused(url) for url, status in state.loads):
                return self._diverge(scene, "egress_blocked", state, after)
            similarity = _compare(after, state.frame)
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
            if is_ready:
                break
            if is_over or (is_done and (state.has_failed or not is_open)):
                kind: DivergenceKind = "http_error" if state.has_failed else "state_mismatch"
                return self._diverge(scene, kind if is_open else "action_failed", state, after)
            self._pause()
        self._follow_popup(scene.step, state)
        return scene.conclude()

    def _follow_popup(self, step: RecordedStep, state: LiveState) -> None:
        if state.pages > 1:
            self.browser.call("follow_popup", is_expected=bool(list_signals(step.event, "popup")))

    def _reach_start(self, consequential: Collection[str]) -> StepCheck | None:
        """Open the page of the first step; return the check of that step if it cannot be reached."""
        first = self.steps[0]
        if first.event["type"] == "navigate":
            return None
        self.journal.begin(first.step)
        self._open(first.event)
        if not self.prefix or self._is_at(first):
            return None
        blocked = not self.policy.repeat_consequential and any(
            step.event["id"] in consequential for step in self.prefix
        )
        if not blocked and self._can_type(self.prefix) and self._fast_forward():
            return None
        state = self._read()
        scene = StepScene(first, self._get_frame(first.before), state.frame, state.page)
        return self._diverge(scene, "anchor_unreachable", state)

    def _fast_forward(self) -> bool:
        """Do the steps before the anchor, and return whether they led to it."""
        if self.prefix[0].event["type"] != "navigate":
            self._open(self.prefix[0].event)
        for step in self.prefix:
            began = time.monotonic()
            self.journal.begin(step.step)
            self._acted, self._delivery = False, "confirmed"
            check = self._perform(step, None)
            self._store(
                step, check if check.divergence is None else replace(check, outcome="diverged"), began
            )
            if check.divergence is not None:
                return False
        return self._is_at(self.steps[0])

    def _is_at(self, step: RecordedStep) -> bool:
        """Wait for the state before a step; where it is unknown, for its target."""
        until = time.monotonic() + self.policy.step_timeout_ms / 1000
        while True:
            state = self._read()
            scene = StepScene(step, self._get_frame(step.before), state.frame, state.page)
            similarity = _compare(scene.recorded, state.frame)
            is_there = locate(scene, None) is None if similarity is None else similarity >= self.policy.ok
            if is_there and state.page is not None:
                return True
            if time.monotonic() >= until:
                return False
            self._pause()

    def _can_type(self, steps: Sequence[RecordedStep]) -> bool:
        return all(find_input_name(step.event) in (None, *self.inputs) for step in steps)

    def _open(self, event: EventItem) -> bool:
        """Open the page of an event; return whether the browser could."""
        if not event.get("url"):
            raise InvalidRecording("An event from which the replay goes on has no address to open.")
        url = map_url(str(event["url"]), self.policy.base_url_map)
        return "error" not in self.browser.call("goto", url=url, timeout_ms=self.policy.step_timeout_ms)

    def _read(self) -> LiveState:
        if not self.proxy.is_serving:
            raise BrowserLost("The proxy of the browser has ended.")
        return read_state(self.browser, self.mask, Budget(VISITS))

    def _get_frame(self, index: int | None) -> RecordedFrame | None:
        return None if index is None else self.recording.frames[index]

    def _diverge(
        self,
        scene: StepScene,
        kind: DivergenceKind,
        state: LiveState,
        after: RecordedFrame | None = None,
    ) -> StepCheck:
        """Return the check of a step at which the world differs from the recording."""
        if after is not None:
            scene.recorded = after
        scene.observed, scene.page = state.frame, state.page or scene.page
        suggests = self.policy.heal == "suggest" and not self._acted
        check = scene.diverge(kind, acted=self._acted, heal=suggests)
        assert check.divergence is not None
        observed = replace(check.divergence.observed, url=state.url)
        return replace(check, divergence=replace(check.divergence, observed=observed))

    def _ask(self, step: RecordedStep, divergence: Divergence | None) -> Decision | None:
        began = time.monotonic()
        self._shown = divergence
        decision = self.journal.ask(step.step, divergence)
        self._ends_at += time.monotonic() - began
        return decision

    def _wait(self, ms: int) -> None:
        until = time.monotonic() + ms / 1000
        while (left := until - time.monotonic()) > 0:
            self._pause(min(500, max(1, int(left * 1000))))

    def _pause(self, ms: int = _POLL_MS) -> None:
        self.journal.check()
        if time.monotonic() >= self._ends_at:
            raise TimeSpent
        self.browser.call("pause", ms=ms)

    def _store(self, step: RecordedStep, check: StepCheck, began: float) -> None:
        result = self._describe(step, check, self._delivery)
        result = replace(result, ms=round((time.monotonic() - began) * 1000))
        self.results.append(result)
        self.journal.store(result)

    def _describe(self, step: RecordedStep, check: StepCheck, delivery: Delivery) -> StepResult:
        frame = self._get_frame(step.before)
        return StepResult(
            step=step.step,
            event_id=step.event["id"],
            outcome=check.outcome,
            similarity=check.similarity,
            locator=check.locator,
            frame_id=None if frame is None else frame.frame_id,
            delivery=delivery,
        )

    def _finish(self, status: LiveStatus, error: ReplayError | None = None) -> LiveResult:
        outcomes = [result.outcome for result in self.results]
        known = [result.similarity for result in self.results if result.similarity is not None]
        summary = Summary(
            matched=outcomes.count("matched"),
            relabelled=outcomes.count("relabelled"),
            healed=outcomes.count("healed"),
            skipped=outcomes.count("skipped"),
            min_similarity=min(known, default=None),
            blocked_requests=self.proxy.blocked_requests,
        )
        return LiveResult(status, self.first_divergence, summary, error)


def _compare(recorded: RecordedFrame | None, observed: RecordedFrame) -> float | None:
    """Return the similarity of two states; None where the recorded one is unknown."""
    tokens = tokens_of(recorded)
    return compare_states(tokens, observed.state_tokens) if tokens else None
