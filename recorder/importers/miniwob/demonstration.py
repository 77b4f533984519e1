"""A demonstration file as a recording: one session, its screens, actions and outcome. Design §2 (importers).

- Workflow: the task (the folder's name) in lower case, `-`, `.` and the like as `_`.
- Frames: one for each state whose page differs from that of the frame before (in anything but the recorder's
  own mark of the element acted on), at that state's time, drawn from the boxes, with a DOM snapshot.
- Events: one for each action, at the state before the page handled it, bound to the frame acted on.
- Outcome: the tag `success` at the end where the raw reward is above 0, else `error`.
"""

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recorder.client.batches import CapturedFrame
from recorder.importers.miniwob.actions import event_members, whole_actions
from recorder.importers.miniwob.elements import boxes, canvas_size, event_target, snapshot, target_path
from recorder.importers.miniwob.format import Demonstration, Node, read_file
from recorder.importers.screen_drawing import Box, draw
from recorder.importers.upload import Recording, UnreadableRecording
from recorder.limits import WORKFLOW_PATTERN

#: The files hold no dates: the first of an import begins here, each next one a minute later.
FIRST_STARTED_AT = datetime(2018, 1, 1, tzinfo=UTC)
ACTOR = {"id": "miniwob", "kind": "human"}


def workflow_of(task: str, prefix: str = "") -> str:
    """The slug of a task's workflow, such as `click_tab_2` for click-tab-2.

    Raises:
        UnreadableRecording: if prefix and task make no slug.
    """
    slug = re.sub(r"[^a-z0-9_]", "_", f"{prefix}{task}".lower())
    if not re.fullmatch(WORKFLOW_PATTERN.strip("^$"), slug):
        raise UnreadableRecording("its folder's name makes no workflow: 2 to 64 of a–z, 0–9 and _ are needed")
    return slug


def read_demonstration(
    path: Path, *, started_at: datetime, workflow: str | None = None, workflow_prefix: str = ""
) -> Recording:
    """The recording of one file.

    Args:
        path: the file; its folder's name is the task.
        started_at: instant at which the session is said to begin.
        workflow: one workflow for all tasks; the task stands in `metadata.task` either way.
        workflow_prefix: put before the slug of the task.

    Raises:
        UnreadableRecording: if the file is damaged or of another shape.
    """
    task = path.resolve().parent.name
    slug = workflow or workflow_of(task, workflow_prefix)
    demonstration, content = read_file(path)
    prefix = f"frm_{hashlib.blake2b(content, digest_size=8).hexdigest()}"
    try:
        frames, events = _frames_and_events(demonstration, prefix)
    except RecursionError as error:
        raise UnreadableRecording("its pages are nested too deep") from error
    return Recording(
        workflow=slug,
        metadata={
            "task": task,
            "utterance": demonstration.utterance,
            "raw_reward": demonstration.raw_reward,
            "source": path.name,
        },
        actor=ACTOR,
        started_at=started_at,
        events=events,
        frames=frames,
        tags=[_outcome_tag(demonstration)],
    )


def _frames_and_events(
    demonstration: Demonstration, prefix: str
) -> tuple[list[CapturedFrame], list[dict[str, Any]]]:
    states = demonstration.states
    # Targets are read first: taking their mark off is what makes equal pages equal.
    targets = [target_path(state.dom) for state in states]
    screens = _Screens(prefix)
    frame_ids = [screens.show(state.dom, _ms(state.time)) for state in states]
    seen = whole_actions(states)
    events = []
    for one, members in zip(seen, event_members(seen), strict=True):
        # Where only the half after the handling was recorded, the page acted on is the one before it.
        shown = max(0, one.index - 1) if one.action.timing == 3 else one.index
        event = {"t_ms": _ms(states[one.index].time), **members, "frame_id": frame_ids[shown]}
        if targets[one.index]:
            event["target"] = event_target(targets[one.index])
        events.append(event)
    return screens.frames, events


class _Screens:
    """The frames of a session: equal pages in a row are one frame, equal pictures are drawn once."""

    def __init__(self, prefix: str) -> None:
        self.frames: list[CapturedFrame] = []
        self._prefix = prefix
        self._page: Node | None = None
        self._pictures: dict[tuple[tuple[Box, ...], tuple[int, int]], bytes] = {}

    def show(self, page: Node, t_ms: int) -> str:
        """The id of the frame that shows this page."""
        if page != self._page:
            self._page = page
            self.frames.append(self._frame(page, t_ms))
        return str(self.frames[-1].item["id"])

    def _frame(self, page: Node, t_ms: int) -> CapturedFrame:
        drawn = boxes(page), canvas_size(page)
        if drawn not in self._pictures:
            self._pictures[drawn] = draw(*drawn)
        width, height = drawn[1]
        # Numbered with leading zeros: frames of one millisecond keep their order by id.
        frame_id = f"{self._prefix}{len(self.frames):05d}"
        members = {"id": frame_id, "width": width, "height": height, "dom": snapshot(page)}
        return CapturedFrame.of(self._pictures[drawn], t_ms=t_ms, content_type="image/webp", **members)


def _outcome_tag(demonstration: Demonstration) -> dict[str, Any]:
    end = max((_ms(state.time) for state in demonstration.states), default=0)
    name = "success" if demonstration.raw_reward > 0 else "error"
    return {"name": name, "data": {"raw_reward": demonstration.raw_reward}, "t_ms": end}


def _ms(time: float) -> int:
    return round(time)
