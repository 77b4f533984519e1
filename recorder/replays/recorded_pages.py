"""Pages of a recorded session: its snapshots as trees, read when they are needed. Spec §4.6."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cachetools import LRUCache

from recorder.replays.budget import Budget
from recorder.replays.dom import DomDocument, DomElement, read_dom_document
from recorder.replays.recorded_session import RecordedEvent, RecordedFrame, RecordedSession

#: Neighbouring steps share a page; a whole session is never kept.
_KEPT_PAGES = 2
#: Pages that this process used last, of the size that most have: replays of a workflow come to them again.
_SHARED_PAGES, _SHARED_VISITS = 64, 1_000
#: Types that act on an element.
TARGETED_TYPES = frozenset(
    ("click", "dblclick", "hover", "fill", "select", "check", "uncheck", "drag", "upload", "focus")
)


class _KeptPage(NamedTuple):
    """A page, with its snapshot and the visits that building it took."""

    snapshot: Mapping[str, Any] | None
    page: DomDocument | None
    visits: int


#: Shared pages by the identity of their snapshots, which they hold, so that no other object has it.
_shared: LRUCache[int, _KeptPage] = LRUCache(_SHARED_PAGES)


class RecordedPages:
    """The pages of one session, by index of the frame."""

    def __init__(self, recording: RecordedSession, budget: Budget) -> None:
        self.budget = budget
        self._frames = recording.frames
        self._by_id = {frame.frame_id: frame for frame in recording.frames}
        self._kept: dict[int, _KeptPage] = {}

    def read_page(self, index: int | None) -> DomDocument | None:
        """Return the page of a frame; None without a frame or a snapshot of format `nodes`.

        Raises:
            InvalidRecording: if the snapshot cannot be used.
            BudgetExceeded: if the budget ends before.
        """
        if index is None:
            return None
        if index not in self._kept:
            kept = self._build_page(self._frames[index].read_dom())
            while len(self._kept) >= _KEPT_PAGES:
                del self._kept[next(iter(self._kept))]
            self._kept[index] = kept
        return self._kept[index].page

    def _build_page(self, snapshot: Mapping[str, Any] | None) -> "_KeptPage":
        """Return the page of a snapshot; a kept one where the snapshot is the same object."""
        if snapshot is None:
            return _KeptPage(None, None, 0)
        for kept in self._kept.values():
            if kept.snapshot is snapshot:
                self.budget.spend(kept.visits)  # as if it were built again
                return kept
        shared = _shared.get(id(snapshot))
        if shared is not None:
            self.budget.spend(shared.visits)
            return shared
        left = self.budget.left
        page = read_dom_document(snapshot, self._read_base_snapshot, self.budget)
        built = _KeptPage(snapshot, page, left - self.budget.left)
        if page is not None and "base" not in snapshot and built.visits <= _SHARED_VISITS:
            _shared[id(snapshot)] = built
        return built

    def get_frame(self, index: int | None) -> RecordedFrame | None:
        """Return a frame by its index."""
        return None if index is None else self._frames[index]

    def _read_base_snapshot(self, frame_id: str) -> Mapping[str, Any] | None:
        frame = self._by_id.get(frame_id)
        return None if frame is None else frame.read_dom()


def find_page_obstacle(element: DomElement, event: RecordedEvent) -> str | None:
    """Return why an element cannot take an event: it is disabled or lacks the option; None if it can."""
    node: DomElement | None = element
    while node is not None:
        if node.tag in ("button", "input", "select", "textarea", "fieldset", "option") and (
            node.read_attribute("disabled") is not None
        ):
            return "disabled"
        node = node.parent
    if element.read_attribute("aria-disabled") == "true":
        return "disabled"
    given = event.get("input") or {}
    if event["type"] == "select" and element.tag == "select" and not given.get("masked"):
        value = given.get("value")
        wanted = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        options = _list_page_element_options(element)
        if options and any(option not in options for option in wanted):
            return "without the option"
    return None


def _list_page_element_options(element: DomElement) -> set[str]:
    """Return values and texts of the options of a list."""
    options: set[str] = set()
    stack = element.list_elements()
    while stack:
        node = stack.pop()
        stack.extend(node.list_elements())
        if node.tag == "option":
            options.add(" ".join(node.own_text.split()))
            options.add(node.own_text)
            value = node.read_attribute("value")
            if value is not None:
                options.add(value)
    return options
