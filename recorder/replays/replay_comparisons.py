"""Comparisons of a replay with another session or with the memory graph. Spec §4.6."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recorder.replays.budget import Budget
from recorder.replays.dom import DomDocument, DomElement
from recorder.replays.page_states import compare_page_states
from recorder.replays.recorded_actions import is_same_recorded_action, is_same_recorded_target
from recorder.replays.recorded_pages import RecordedPages
from recorder.replays.recorded_session import (
    RecordedEvent,
    RecordedFrame,
    RecordedSession,
    list_recorded_steps,
)
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.replay_range import EventPosition
from recorder.replays.replay_results import DivergenceSide
from recorder.replays.target_resolution import resolve_target

#: Types that change no page: one session may have them where another has not.
QUIET_TYPES = frozenset(("scroll", "hover", "focus", "window_focus", "copy"))


@dataclass(frozen=True)
class ComparedGraph:
    """The part of a memory graph that a replay is compared with."""

    #: Event id → node id.
    node_of: Mapping[str, str]
    #: Share of the sessions that leave a node by each edge.
    edge_share: Mapping[tuple[str, str], float]
    #: Node id → label without texts of sessions.
    labels: Mapping[str, str]


class GraphComparison:
    """The way of a replay through the graph."""

    def __init__(self, evidence: ComparedGraph, policy: ReplayPolicy) -> None:
        self._evidence = evidence
        self._min_support = policy.min_support
        self._at: str | None = None
        #: True once a step was compared with the edges out of the node before it.
        self.has_compared = False
        self._likeliest: dict[str, tuple[float, str]] = {}
        for (source, goal), share in sorted(evidence.edge_share.items()):
            if share > self._likeliest.get(source, (0.0, ""))[0]:
                self._likeliest[source] = (share, goal)

    def find_unseen(self, event: RecordedEvent) -> tuple[DivergenceSide, DivergenceSide] | None:
        """Return the expected and the observed node, if sessions do not go this way; else None."""
        goal = self._evidence.node_of.get(event["id"])
        source = self._at
        if goal is None or source is None:
            return None
        if source == goal and (source, goal) not in self._evidence.edge_share:
            return None  # a step repeated on its node is no edge
        self.has_compared = True
        if self._evidence.edge_share.get((source, goal), 0.0) >= self._min_support:
            return None
        expected = self._likeliest.get(source)
        return self._describe_node(expected and expected[1]), self._describe_node(goal)

    def move(self, event: RecordedEvent) -> None:
        """Move to the node of an event, if it has one."""
        self._at = self._evidence.node_of.get(event["id"], self._at)

    def _describe_node(self, node_id: str | None) -> DivergenceSide:
        name = None if node_id is None else self._evidence.labels.get(node_id)
        return DivergenceSide(name=name, node_id=node_id)


class SessionComparison:
    """The way of a replay through the steps and snapshots of another session."""

    def __init__(self, other: RecordedSession, policy: ReplayPolicy, budget: Budget) -> None:
        self.pages = RecordedPages(other, budget)
        self._steps = [step for step in list_recorded_steps(other) if step.event["type"] not in QUIET_TYPES]
        self._last_frame = len(other.frames) - 1 if other.frames else None
        self._ok = policy.ok
        self._next = 0
        #: False if no state of the other session is like the one to begin with.
        self.is_reached = True
        #: True once two steps were compared.
        self.has_compared = False

    def begin_at(self, tokens: Sequence[str]) -> None:
        """Move to the step whose state before is the most similar; of equally similar ones, the first."""
        best = (0.0, 0)
        for index, step in enumerate(self._steps):
            frame = self.pages.get_frame(step.before)
            similarity = compare_page_states(tokens, frame.state_tokens) if frame and tokens else 0.0
            if similarity > best[0]:
                best = (similarity, index)
        self.is_reached = best[0] >= self._ok
        self._next = best[1]

    def begin_before(self, position: EventPosition) -> None:
        """Move to the first step at or after a position."""
        positions = (EventPosition(step.event["t_ms"], step.event["id"]) for step in self._steps)
        self._next = sum(earlier < position for earlier in positions)

    def get_frame(self) -> RecordedFrame | None:
        """Return the frame that shows the present state."""
        return self.pages.get_frame(self._get_current_frame())

    def read_page(self) -> DomDocument | None:
        """Return the present page; as `RecordedPages.read_page`."""
        return self.pages.read_page(self._get_current_frame())

    def get_next_event(self) -> RecordedEvent | None:
        """Return what the other session did next; None at its end."""
        return self._steps[self._next].event if self._next < len(self._steps) else None

    def does_same_next(self, event: RecordedEvent, element: DomElement | None) -> bool:
        """Return whether the next event of the other session has the same type and element.

        Without a snapshot, what both recordings hold of the element and the address is compared.

        Args:
            event: the event to replay.
            element: the element it resolves to on the present page; None where it acts on none.
        """
        self.has_compared = True
        other = self.get_next_event()
        if other is None or other["type"] != event["type"]:
            return False
        page = self.read_page()
        if page is None:
            return is_same_recorded_action(event, other)
        if element is None or not other.get("target"):
            return True  # the states before and after are compared
        resolution = resolve_target(page, other["target"], self.pages.budget)
        if resolution.element is None:
            return is_same_recorded_target(event, other)
        return resolution.element is element

    def move(self) -> RecordedFrame | None:
        """Move past the next step, and return the frame after it."""
        step = self._steps[self._next]
        self._next += 1
        return self.pages.get_frame(step.after)

    def _get_current_frame(self) -> int | None:
        return self._steps[self._next].before if self._next < len(self._steps) else self._last_frame
