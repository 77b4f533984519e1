"""The present step of a live replay as an event of the recording of its run. Contract §8."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from recorder.capture.captured_targets import describe_captured_target
from recorder.live.live_page import LivePageState
from recorder.live.run_recording import ReplayRunRecorder
from recorder.live.tab_names import TAB_STEPS
from recorder.replays.recorded_session import RecordedEvent
from recorder.replays.replay_results import Divergence, StepResult
from recorder.replays.step_checks import StepScene

_INPUT_MEMBERS = ("button", "delta", "files", "key", "masked", "modifiers", "secret_ref", "value")


@dataclass
class StepEvent:
    """Event of one step; without members until the step is about to be sent."""

    recording: ReplayRunRecorder
    #: Name of the input that the step types.
    input_name: str | None = None
    #: Address of the page when the step began.
    url: str = ""
    #: Names of the popups that the step opened and that are acted on since.
    popups: Sequence[str | None] = ()
    _members: dict[str, Any] | None = None
    #: Method of the request that the step caused in the recording.
    _method: str | None = None
    _signals: list[dict[str, Any]] = field(default_factory=list)

    def begin_navigation(self) -> None:
        """Describe a step that opens an address."""
        self._members = {"t_ms": self.recording.now_ms, "type": "navigate"}

    def begin_tab_step(self, kind: str, name: str | None) -> None:
        """Describe a step that goes to a page, or closes one.

        Args:
            kind: type of the event.
            name: name of the page.
        """
        self._members = {"t_ms": self.recording.now_ms, "type": kind}
        if name is not None:
            self._members["data"] = {"page": name}

    def begin_action(
        self, event: RecordedEvent, scene: StepScene, state: LivePageState, frame_id: str | None
    ) -> None:
        """Describe a step that acts in a page, without inputs.

        Args:
            event: the recorded event.
            scene: the page with the verified elements.
            state: the state of the page.
            frame_id: the frame that shows it.
        """
        described: dict[str, Any] = {
            "t_ms": self.recording.now_ms,
            "type": event["type"],
            "url": state.url,
            "title": state.title,
        }
        self.url = state.url
        methods = (signal.get("method") for signal in event.get("signals") or ())
        self._method = next((method for method in methods if isinstance(method, str)), None)
        if frame_id is not None:
            described["frame_id"] = frame_id
        if scene.element is not None and scene.page is not None:
            described["target"] = describe_captured_target(scene.page, scene.element)
            if scene.drop is not None:
                described["data"] = {"drop": describe_captured_target(scene.page, scene.drop)}
        given = {
            name: member for name, member in (event.get("input") or {}).items() if name in _INPUT_MEMBERS
        }
        if self.input_name is not None:
            given.update(value=None, masked=True, secret_ref=self.input_name)
        if given:
            described["input"] = given
        self._members = described

    def note_page(self, state: LivePageState) -> None:
        """Complete the event by the page that the step led to."""
        if self._members is None or state.page is None:
            return
        has_begun_there = self._members["type"] not in ("navigate", *TAB_STEPS)
        if not has_begun_there:
            self._members.update(url=state.url, title=state.title)
        if self.popups:
            self._signals = [_make_popup_signal(name) for name in self.popups]
            self._signals[-1]["url"] = state.url
        elif has_begun_there and state.url != self.url:
            self._signals = [{"type": "navigation", "url": state.url}]
        if self._signals and self._method is not None:
            self._signals[-1]["method"] = self._method

    def store(self, result: StepResult, divergence: Divergence | None, *, has_acted: bool) -> None:
        """Record the step with what became of it: as its own event where it was sent, else as a note."""
        data: dict[str, Any] = {
            "step": result.step,
            "event_id": result.event_id,
            "outcome": result.outcome,
            "similarity": result.similarity,
            "delivery": result.delivery,
        }
        if divergence is not None:
            data["divergence"] = divergence.kind
        if self._members is None or not has_acted:
            self.recording.add_event({"t_ms": self.recording.now_ms, "type": "custom", "data": data})
            return
        event = {**self._members, "data": {**self._members.get("data", {}), **data}}
        self.recording.add_event({**event, "signals": self._signals} if self._signals else event)
        for signal in self._signals:
            kind = "tab_open" if signal["type"] == "popup" else "navigate"
            opened = {"t_ms": self.recording.now_ms, "type": kind}
            self.recording.add_event({**opened, "url": signal["url"]} if "url" in signal else opened)


def _make_popup_signal(name: str | None) -> dict[str, Any]:
    return {"type": "popup"} if name is None else {"type": "popup", "page": name}
