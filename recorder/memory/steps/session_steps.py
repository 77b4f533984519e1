"""A session as its steps: what was done on which screen, without noise and repeats. Spec §2.6; design §3."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from recorder.event_types import TYPING, step_type
from recorder.memory.steps.action_tokens import action_token, hash_texts, make_action_target_token
from recorder.memory.steps.screens import FrameScreen, bind_screen_frames_to_events, event_screen

#: Rises when equal sessions would get other steps than before; part of every node's id.
ALGO_VERSION = 2
#: So many of the last steps of a walk may still change.
OPEN_STEPS = 3
#: Acts that a press of the pointer begins: followed by one of them, the press is no act of its own.
_PRESSED_ACTS = frozenset(("click", "dblclick", "drag", "check", "uncheck", "select"))
#: The clicks of a double-click come within this time before it.
_DOUBLE_CLICK_MS = 1_000


@dataclass(slots=True)
class Step:
    """One step: a micro-state that was visited once or several times in a row."""

    pos: int
    #: Signed xxh64 of screen key, action and target token.
    micro_key: int
    screen_key: str
    action: str
    target: str
    #: Action and kind of element, or the name of an activity or tool; the texts below quote the page.
    label: str
    #: Hashed screen tokens, sorted.
    features: tuple[int, ...]
    #: Times of its first and its last event.
    t_in_ms: int
    t_out_ms: int
    frame_id: str | None
    event_id: str
    #: How many events it stands for.
    runs: int
    #: As in `StepTexts`.
    names: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()
    words: str = ""

    @property
    def own_label(self) -> str:
        """Best label within its own session, which may quote the page."""
        return next(iter(self.names), self.words or self.label)

    @property
    def location(self) -> str:
        """Locations of the element, one a line, as the lake stores them."""
        return "\n".join(self.locations)


#: Columns of a step in the lake.
STEP_COLUMNS = tuple("location" if name == "locations" else name for name in Step.__slots__)


class PointerAct(NamedTuple):
    """A press or click at the end of a walk, with what it takes to undo it."""

    #: Position of its step; runs and end of the step before the act, 0 runs where the act began the step.
    pos: int
    runs: int
    t_out_ms: int
    t_ms: int
    #: Whether it is a press that no click has followed so far.
    is_press: bool


def session_steps(
    events: Sequence[Mapping[str, Any]], frames: Sequence[FrameScreen], *, collapse: bool = True
) -> list[Step]:
    """Return the steps of one session in `(t_ms, id)` order.

    Raw pointer noise, telemetry and navigations that the action before announced are left out; key strokes on
    one element become one `type` step on the screen where they began; a press of the pointer that no click
    follows is a click; a double-click takes the place of its clicks; equal steps in a row become one.

    Args:
        events: the items with their `id`, any order.
        frames: the session's frames, any order.
        collapse: whether equal steps in a row become one; runs of typing always do.
    """
    ordered = sorted(events, key=_make_step_event_sort_key)
    shown = sorted(frames, key=_make_step_frame_sort_key)
    positions = bind_screen_frames_to_events(
        [(event["t_ms"], event.get("frame_id")) for event in ordered],
        [(frame.t_ms, frame.frame_id) for frame in shown],
    )
    walk = StepBuilder(collapse=collapse)
    for event, index in zip(ordered, positions, strict=True):
        walk.add(event, None if index is None else shown[index])
    return walk.steps


class StepBuilder:
    """The steps of a session, found event by event in `(t_ms, id)` order; see `session_steps`.

    Attributes:
        steps: the steps so far; the last `OPEN_STEPS` may still change.
        announced: addresses to which the step before leads; arriving there is no step.
        pointer_acts: the last presses and clicks, which a click or double-click may replace.
        is_full: whether `max_steps` are found and another one began; later events are passed over.
    """

    def __init__(self, *, collapse: bool = True, max_steps: int | None = None) -> None:
        self.steps: list[Step] = []
        self.announced: frozenset[str] = frozenset()
        self.pointer_acts: list[PointerAct] = []
        self.is_full = False
        self._collapse = collapse
        self._max_steps = max_steps

    def add(self, event: Mapping[str, Any], frame: FrameScreen | None) -> None:
        """Add the next event.

        Args:
            event: the item with its `id`.
            frame: the frame it is bound to (see `bind_screen_frames_to_events`).
        """
        if self.is_full:
            return
        given = event.get("input") or {}
        is_press = event["type"] == "pointer_down"
        kind = step_type(
            "click" if is_press else event["type"],
            key=given.get("key"),
            modifiers=given.get("modifiers") or 0,
        )
        if kind is None:
            return
        if kind == "navigate" and event.get("url") in self.announced:
            self.announced -= {event["url"]}
            return
        self.announced = _list_announced_urls(event)
        step = _make_session_step(event, action_token(kind, given), frame)
        if kind in _PRESSED_ACTS and not is_press and self.pointer_acts and self.pointer_acts[-1].is_press:
            self._undo(self.pointer_acts.pop())
        if kind == "dblclick":
            self._take_clicks(step)
        pos, runs, t_out_ms = self._append(step)
        if kind == "click":
            self.pointer_acts.append(PointerAct(pos, runs, t_out_ms, event["t_ms"], is_press))
        elif kind != "focus":
            # A press moves the focus before its click comes.
            self.pointer_acts.clear()
        first_open = len(self.steps) - OPEN_STEPS
        self.pointer_acts = [act for act in self.pointer_acts[-2:] if act.pos >= first_open]

    def _append(self, step: Step) -> tuple[int, int, int]:
        """Add a step or let the last one grow; returns position, and runs and end of the step before."""
        last = self.steps[-1] if self.steps else None
        if last is not None and self._is_repeated(last, step):
            before = (last.pos, last.runs, last.t_out_ms)
            last.t_out_ms = step.t_out_ms
            last.runs += 1
            return before
        if len(self.steps) == self._max_steps:
            self.is_full = True
            return (len(self.steps), 0, 0)
        step.pos = len(self.steps)
        self.steps.append(step)
        return (step.pos, 0, 0)

    def _undo(self, act: PointerAct) -> None:
        """Remove an act again."""
        step = self.steps[act.pos]
        if act.runs:
            step.runs, step.t_out_ms = act.runs, act.t_out_ms
            return
        del self.steps[act.pos]
        for later in self.steps[act.pos :]:
            later.pos -= 1

    def _take_clicks(self, double: Step) -> None:
        """Replace the clicks that a double-click consists of; it happened where the first of them did."""
        while self.pointer_acts:
            act = self.pointer_acts.pop()
            clicked = self.steps[act.pos]
            is_part = act.t_ms >= double.t_out_ms - _DOUBLE_CLICK_MS and clicked.action == "click"
            if not is_part or clicked.target != double.target:
                return
            self._undo(act)
            double.t_in_ms = act.t_ms
            double.screen_key, double.features = clicked.screen_key, clicked.features
            double.frame_id = clicked.frame_id
            double.micro_key = hash_texts(double.screen_key, double.action, double.target)

    def _is_repeated(self, last: Step, step: Step) -> bool:
        """Return whether a step is merged into the last one: the same key, or more of the same typing."""
        return (self._collapse and last.micro_key == step.micro_key) or _continues_typing(last, step)


def _make_step_event_sort_key(event: Mapping[str, Any]) -> tuple[int, str]:
    return (event["t_ms"], event["id"])


def _make_step_frame_sort_key(frame: FrameScreen) -> tuple[int, str]:
    return (frame.t_ms, frame.frame_id)


def _list_announced_urls(event: Mapping[str, Any]) -> frozenset[str]:
    """Return the addresses that an event makes the browser open: arriving there is not a step."""
    signals = event.get("signals") or ()
    urls = (signal.get("url") for signal in signals if signal.get("type") in ("navigation", "popup"))
    return frozenset(url for url in urls if isinstance(url, str))


def _make_session_step(event: Mapping[str, Any], action: str, frame: FrameScreen | None) -> Step:
    screen = event_screen(event, None if frame is None else frame.screen)
    screen_key = screen.state_key or ""
    target, texts = make_action_target_token(action, event, () if frame is None else frame.locations)
    return Step(
        pos=0,
        micro_key=hash_texts(screen_key, action, target),
        screen_key=screen_key,
        action=action,
        target=target,
        label=texts.label,
        features=screen.features,
        t_in_ms=event["t_ms"],
        t_out_ms=event["t_ms"],
        frame_id=None if frame is None else frame.frame_id,
        event_id=event["id"],
        runs=1,
        names=texts.names,
        locations=texts.locations,
        words=texts.words,
    )


def _continues_typing(last: Step, step: Step) -> bool:
    return last.action == step.action == TYPING and last.target == step.target
