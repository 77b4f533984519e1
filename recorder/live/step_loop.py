"""Live replay: the steps of a session done again in a browser, each verified before it acts. Spec §4.6."""

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

from recorder.live.browser import BrowserLost, PageUnresponsive
from recorder.live.replay_journal import LiveResult, LiveStatus, TimeSpent
from recorder.live.replay_plan import LivePlanStep
from recorder.live.step_execution import StepExecutor, compare_frame_states
from recorder.live.tab_names import FIRST_PAGE, find_acted_page_name
from recorder.live.target_search import resolve_step_target
from recorder.replays.budget import BudgetExceeded
from recorder.replays.recorded_session import InvalidRecording, RecordedStep
from recorder.replays.replay_policy import NO_DECISION
from recorder.replays.replay_results import (
    Decision,
    Divergence,
    ReplayError,
    ReplayKind,
    StepResult,
    summarize_steps,
)
from recorder.replays.step_checks import StepCheck, StepScene

#: A person who decides holds a slot of the worker, and the replay's time limit does not run.
MOST_DECISIONS = 20
_NO_DECISION = ReplayError("timeout", NO_DECISION)
_MANY_DECISIONS = ReplayError("timeout", f"A step was not done after {MOST_DECISIONS} decisions.")
#: Types of steps that open an address by themselves.
_OPENING_TYPES = frozenset(("navigate", "tab_open"))
#: Types of the last event of a recorded run: they mark the outcome of its session.
_LAST_EVENTS = {"completed": "success", "diverged": "error"}


@dataclass
class LiveRun:
    """One live replay, from the first page to its end."""

    actor: StepExecutor
    mode: ReplayKind
    results: list[StepResult] = field(default_factory=list)
    first_divergence: Divergence | None = None

    def run(self) -> LiveResult:
        """Do step after step until the end, a divergence, or an order to stop.

        Raises:
            BrowserLost, PageUnresponsive: if the browser is gone.
            InvalidRecording, BudgetExceeded: if the recording or a page cannot be read.
        """
        steps, policy = self.actor.plan.steps, self.actor.policy
        try:
            self.actor.check_time()
            unreached = self._reach_start() if steps else None
            if unreached is not None:
                self.first_divergence = unreached.divergence
                return self._make_result("diverged")
            for index, step in enumerate(steps):
                self.actor.journal.begin(step.step)
                if index and policy.speed == "recorded":
                    self.actor.wait(step.t_ms - steps[index - 1].t_ms)
                ended = self._do_step(step)
                if ended is not None:
                    return ended
        except TimeSpent:
            text = f"The replay took longer than policy.max_ms, {policy.max_ms:,} ms."
            return self._make_result("failed", ReplayError("timeout", text))
        return self._make_result("completed")

    def _do_step(self, planned: LivePlanStep) -> LiveResult | None:
        """Do a step, with a person's decision where one is needed; return the result that ends the replay."""
        began, actor, policy = time.monotonic(), self.actor, self.actor.policy
        actor.begin(planned)
        step = planned.read()
        decision: Decision | None = None
        decisions = 0
        if planned.is_consequential and self.mode == "guided":
            decision = self._wait_for_decision(step, actor.find_problem_ahead(step))
            decisions += 1
            if decision is None:
                return self._make_result("failed", _NO_DECISION)
        elif planned.is_consequential and not policy.repeat_consequential and planned.has_succeeded:
            self._store_step_result(step, StepCheck("skipped"), began)
            return None
        asks = self.mode == "guided" or policy.on_divergence == "ask"
        while True:
            if decision is not None and decision.action == "abort":
                return self._make_result("failed", ReplayError("cancelled", "The replay was aborted."))
            if decision is not None and decision.action == "skip":
                self._store_step_result(step, StepCheck("skipped"), began)
                return None
            check = actor.perform(step, decision)
            if check.divergence is None:
                self._store_step_result(step, check, began)
                return None
            self.first_divergence = self.first_divergence or check.divergence
            if not asks:
                goes_on = policy.on_divergence == "skip"
                self._store_step_result(
                    step, replace(check, outcome="skipped" if goes_on else "diverged"), began
                )
                return None if goes_on else self._make_result("diverged")
            if decisions >= MOST_DECISIONS:
                return self._make_result("failed", _MANY_DECISIONS)
            decision = self._wait_for_decision(step, check.divergence)
            decisions += 1
            if decision is None:
                return self._make_result("failed", _NO_DECISION)
            if actor.has_acted and decision.action != "abort":
                # What was sent, or may have been, is never sent again.
                self._store_step_result(step, check if check.outcome == "healed" else check.accept(), began)
                return None

    def _reach_start(self) -> StepCheck | None:
        """Open the page of the first step; return the check of that step if it cannot be reached."""
        actor, plan = self.actor, self.actor.plan
        first = plan.steps[0]
        actor.name_page(find_acted_page_name(planned.read().event for planned in plan.prefix))
        if first.type in _OPENING_TYPES:
            return None
        actor.journal.begin(first.step)
        actor.begin(first)
        step = first.read()
        actor.open(step.event)
        if not plan.prefix or self._wait_for_state_before(step):
            return None
        repeats = actor.policy.repeat_consequential
        is_blocked = not repeats and any(earlier.is_consequential for earlier in plan.prefix)
        can_type = all(earlier.input_name in (None, *actor.inputs) for earlier in plan.prefix)
        if not is_blocked and can_type and self._fast_forward(step):
            return None
        actor.begin(first)
        state = actor.read()
        scene = StepScene(step, plan.get_frame(step.before), state.frame, state.page)
        return actor.diverge(scene, "anchor_unreachable", state)

    def _fast_forward(self, first: RecordedStep) -> bool:
        """Do the steps before the anchor, and return whether they led to it."""
        prefix = self.actor.plan.prefix
        self.actor.name_page(FIRST_PAGE)
        if prefix[0].type not in _OPENING_TYPES:
            self.actor.open(prefix[0].read().event)
        for planned in prefix:
            began = time.monotonic()
            self.actor.journal.begin(planned.step)
            self.actor.begin(planned)
            step = planned.read()
            check = self.actor.perform(step, None)
            if check.divergence is not None:
                self._store_step_result(step, replace(check, outcome="diverged"), began)
                return False
            self._store_step_result(step, check, began)
        return self._wait_for_state_before(first)

    def _wait_for_state_before(self, step: RecordedStep) -> bool:
        """Wait for the state before a step; where it is unknown, for its target."""
        until = time.monotonic() + self.actor.policy.step_timeout_ms / 1000
        while True:
            state = self.actor.read()
            scene = StepScene(step, self.actor.plan.get_frame(step.before), state.frame, state.page)
            similarity = compare_frame_states(scene.recorded, state.frame)
            is_there = (
                resolve_step_target(scene, None) is None
                if similarity is None
                else similarity >= self.actor.policy.ok
            )
            if is_there and state.page is not None:
                return True
            if time.monotonic() >= until:
                return False
            self.actor.pause()

    def _wait_for_decision(self, step: RecordedStep, divergence: Divergence | None) -> Decision | None:
        began = time.monotonic()
        self.actor.shown = divergence
        decision = self.actor.journal.wait_for_decision(step.step, divergence)
        self.actor.ends_at += time.monotonic() - began
        return decision

    def _store_step_result(self, step: RecordedStep, check: StepCheck, began: float) -> None:
        result = self.actor.describe(step, check, self.actor.delivery)
        result = replace(result, ms=round((time.monotonic() - began) * 1000))
        self.results.append(result)
        self.actor.journal.store(result)
        self.actor.record(result, check.divergence)

    def _make_result(self, status: LiveStatus, error: ReplayError | None = None) -> LiveResult:
        summary = summarize_steps(
            self.results,
            evidence="dom" if self.results else None,
            blocked_requests=self.actor.proxy.blocked_requests,
        )
        self._record_end(status)
        return LiveResult(status, self.first_divergence, summary, error)

    def _record_end(self, status: LiveStatus) -> None:
        """Record the last page, and the event that marks the outcome."""
        frame_id = None
        if status == "completed":
            # All steps are done; a browser that is lost now changes nothing.
            with suppress(BrowserLost, PageUnresponsive, InvalidRecording, BudgetExceeded):
                frame_id = self.actor.take_frame(self.actor.read())
        if status in _LAST_EVENTS:
            recording = self.actor.recording
            event = {"t_ms": recording.now_ms, "type": _LAST_EVENTS[status], "data": {"replay": status}}
            recording.add_event(event if frame_id is None else {**event, "frame_id": frame_id})
