"""Import of MiniWoB++ demonstrations: folders of files, each as a recording of one session.

Design §2 (importers).

- Workflow: the task (the folder's name) in lower case, `-`, `.` and the like as `_`.
- Frames: one for each state whose page differs from that of the frame before (in anything but the recorder's
  own mark of the element acted on), at that state's time, drawn from the boxes, with a DOM snapshot.
- Events: one for each action, at the state before the page handled it, bound to the frame acted on.
- Outcome: the tag `success` at the end where the raw reward is above 0, else `error`.
"""

import hashlib
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from recorder.client.client import Client
from recorder.client.upload_batches import CapturedFrame
from recorder.errors import ValidationFailed
from recorder.importers.import_progress import show_import_progress
from recorder.importers.miniwob.elements import (
    compute_canvas_size,
    list_miniwob_element_boxes,
    make_event_target,
    make_miniwob_snapshot,
    take_miniwob_target_elements,
)
from recorder.importers.miniwob.format import (
    SUFFIXES,
    Demonstration,
    PageElement,
    convert_action,
    join_demonstration_action_halves,
    read_demonstration_file,
)
from recorder.importers.screen_drawing import ScreenBox, draw_screen
from recorder.importers.upload import (
    PARALLEL,
    ImportedRecording,
    ImportReport,
    NothingToImport,
    RecordingSource,
    UnreadableRecording,
    upload_recordings,
)
from recorder.limits import WORKFLOW_PATTERN

#: The files hold no dates: the first of an import begins here, each next one a minute later.
FIRST_STARTED_AT = datetime(2018, 1, 1, tzinfo=UTC)
ACTOR = {"id": "miniwob", "kind": "human"}


def make_miniwob_workflow_slug(task: str, prefix: str = "") -> str:
    """Return the slug of a task's workflow, such as `click_tab_2` for click-tab-2.

    Raises:
        UnreadableRecording: if prefix and task make no slug.
    """
    slug = re.sub(r"[^a-z0-9_]", "_", f"{prefix}{task}".lower())
    if not re.fullmatch(WORKFLOW_PATTERN.strip("^$"), slug):
        raise UnreadableRecording("its folder's name makes no workflow: 2 to 64 of a–z, 0–9 and _ are needed")
    return slug


def read_demonstration(
    path: Path, *, started_at: datetime, workflow: str | None = None, workflow_prefix: str = ""
) -> ImportedRecording:
    """Return the recording of one file with a MiniWoB++ demonstration.

    Args:
        path: the file; its folder's name is the task.
        started_at: instant at which the session is said to begin.
        workflow: one workflow for all tasks; `metadata.task` holds the task either way.
        workflow_prefix: put before the slug of the task.

    Raises:
        UnreadableRecording: if the file is damaged or of another shape.
    """
    task = path.resolve().parent.name
    slug = workflow or make_miniwob_workflow_slug(task, workflow_prefix)
    demonstration, content = read_demonstration_file(path)
    prefix = f"frm_{hashlib.blake2b(content, digest_size=8).hexdigest()}"
    try:
        frames, events = _convert_states(demonstration, prefix)
    except RecursionError as error:
        raise UnreadableRecording("its pages are nested too deep") from error
    return ImportedRecording(
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
        tags=[_make_outcome_tag(demonstration)],
    )


def _convert_states(
    demonstration: Demonstration, prefix: str
) -> tuple[list[CapturedFrame], list[dict[str, Any]]]:
    """Return the frames and events of a demonstration; states with equal pages share a frame."""
    states = demonstration.states
    # Targets are read first: taking their mark off is what makes equal pages equal.
    targets = [take_miniwob_target_elements(state.dom) for state in states]
    screens = _DemonstrationScreens(prefix)
    frame_ids = [screens.show(state.dom, _round_demonstration_ms(state.time)) for state in states]
    seen = join_demonstration_action_halves(states)
    events = []
    for first, members in zip(seen, convert_action(seen), strict=True):
        # Where only the half after the handling was recorded, the page acted on is the one before it.
        shown = max(0, first.index - 1) if first.action.timing == 3 else first.index
        event = {
            "t_ms": _round_demonstration_ms(states[first.index].time),
            **members,
            "frame_id": frame_ids[shown],
        }
        if targets[first.index]:
            event["target"] = make_event_target(targets[first.index])
        events.append(event)
    return screens.frames, events


class _DemonstrationScreens:
    """The frames of a session: equal pages in a row are one frame, equal pictures are drawn once."""

    def __init__(self, prefix: str) -> None:
        self.frames: list[CapturedFrame] = []
        self._prefix = prefix
        self._page: PageElement | None = None
        self._pictures: dict[tuple[tuple[ScreenBox, ...], tuple[int, int]], bytes] = {}

    def show(self, page: PageElement, t_ms: int) -> str:
        """Return the id of the frame that shows this page."""
        if page != self._page:
            self._page = page
            self.frames.append(self._draw_frame(page, t_ms))
        return str(self.frames[-1].item["id"])

    def _draw_frame(self, page: PageElement, t_ms: int) -> CapturedFrame:
        drawn = list_miniwob_element_boxes(page), compute_canvas_size(page)
        if drawn not in self._pictures:
            self._pictures[drawn] = draw_screen(*drawn)
        width, height = drawn[1]
        # Numbered with leading zeros: frames of one millisecond keep their order by id.
        frame_id = f"{self._prefix}{len(self.frames):05d}"
        members = {"id": frame_id, "width": width, "height": height, "dom": make_miniwob_snapshot(page)}
        return CapturedFrame.of(self._pictures[drawn], t_ms=t_ms, content_type="image/webp", **members)


def _make_outcome_tag(demonstration: Demonstration) -> dict[str, Any]:
    end = max((_round_demonstration_ms(state.time) for state in demonstration.states), default=0)
    name = "success" if demonstration.raw_reward > 0 else "error"
    return {"name": name, "data": {"raw_reward": demonstration.raw_reward}, "t_ms": end}


def _round_demonstration_ms(time: float) -> int:
    return round(time)


def import_demonstration_folder(
    path: Path,
    *,
    url: str,
    key: str,
    workflow: str | None = None,
    workflow_prefix: str = "",
    parallel: int = PARALLEL,
    progress: bool = True,
) -> ImportReport:
    """Upload every demonstration under `path`, each as one session.

    A file that cannot be read, or that the service refuses, is named on stderr and skipped. Importing twice
    brings every session in twice.

    Args:
        path: a folder of task folders, one task folder, or one file (`.json.gz`, `.json`).
        url: address of the service.
        key: an API key.
        workflow: one workflow for all, instead of one for each task.
        workflow_prefix: put before the slug of each task's workflow.
        parallel: number of uploads at the same time.
        progress: whether to show a progress bar on stderr.

    Raises:
        NothingToImport: if there is no such file.
        ValidationFailed: if `workflow` is no slug.
        ApiError, Unreachable: if the service cannot be worked with at all.
    """
    if workflow is not None and not re.fullmatch(WORKFLOW_PATTERN.strip("^$"), workflow):
        text = "Takes 2 to 64 characters: lower-case letters, digits and underscores, as in approve_invoice."
        raise ValidationFailed.of("workflow", "invalid_value", message=text, where="query")
    files = demonstration_files(path)
    began = time.monotonic()
    with Client(url, key) as client, show_import_progress(len(files), progress) as on_done:
        sources = demonstration_sources(files, workflow=workflow, workflow_prefix=workflow_prefix)
        report = upload_recordings(client, sources, parallel=parallel, on_done=on_done)
    return replace(report, seconds=round(time.monotonic() - began, 3))


def demonstration_files(path: Path) -> list[Path]:
    """Return the files under a path, sorted, so that every import gives them the same instants.

    Raises:
        NothingToImport: if there is none.
    """
    candidates = (
        [path] if path.is_file() else [file for file in path.rglob("*") if file.name.endswith(SUFFIXES)]
    )
    files = sorted(file for file in candidates if file.is_file())
    if not files:
        raise NothingToImport("*.json.gz or *.json files")
    return files


def demonstration_sources(
    files: list[Path], *, workflow: str | None = None, workflow_prefix: str = ""
) -> Iterator[RecordingSource]:
    """Yield each file as a source; the sessions of neighbours begin one minute apart."""
    for n, file in enumerate(files):
        read = partial(
            read_demonstration,
            file,
            started_at=_compute_demonstration_start(n),
            workflow=workflow,
            workflow_prefix=workflow_prefix,
        )
        yield RecordingSource(f"{file.resolve().parent.name}/{file.name}", read)


def _compute_demonstration_start(n: int) -> datetime:
    return FIRST_STARTED_AT + timedelta(minutes=n)
