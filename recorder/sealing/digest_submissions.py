"""Submissions of the digest pool: distinct contents of frames, divided into work items. Decision 0030."""

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cachetools import LRUCache

from recorder.memory.steps.screens import Screen
from recorder.sealing.digest_messages import DigestBudget, DigestTask
from recorder.sealing.frame_digests import FrameDigest, compute_frame_digests

if TYPE_CHECKING:
    from recorder.models.frame import FrameRow

#: One worker computes an item without a break, so others wait at most for one item, or for the time of one
#: (`DigestBudget.item_seconds`).
_ITEM_TASKS = 16
_ITEM_BYTES = 12 * 1024 * 1024
#: A larger picture is an item of its own; such items take at most half of the workers.
_LARGE_PIXELS = 4_000_000


class DigestSubmissionOverBudget:
    """Result of a snapshot that exceeds its budget."""


OVER_BUDGET: Final = DigestSubmissionOverBudget()
Digest = bytes | Screen | DigestSubmissionOverBudget | None


@dataclass(eq=False, slots=True)
class DigestSubmissionTask:
    """Distinct picture or snapshot of a submission."""

    submission: "Submission"
    frame_id: str
    object_key: str
    message: DigestTask
    #: Key that equal contents share; that of a snapshot is known once its bytes are fetched.
    key: str | None
    digest: Digest = None
    is_settled: bool = False
    #: Whether other submissions wait for this task to compute the content of its key.
    is_owner: bool = False
    #: Workers that died while they computed this task.
    deaths: int = 0


@dataclass(eq=False, slots=True)
class DigestSubmissionItem:
    """Tasks of one upload object that one worker computes in their order.

    The first item of an object also checks the object's size: tasks whose digests are known are not fetched.
    """

    submission: "Submission"
    object_key: str
    frame_id: str
    tasks: list[DigestSubmissionTask]
    #: Bytes that the object must have; 0 if another item checks it.
    least_bytes: int = 0
    #: A task that ended a worker is computed in a new worker, with nothing beside it.
    needs_new_worker: bool = False
    #: Workers that died before they had fetched the object.
    fetch_deaths: int = 0

    @classmethod
    def of_tasks(
        cls, tasks: list[DigestSubmissionTask], *, needs_new_worker: bool = False
    ) -> "DigestSubmissionItem":
        """Return an item of tasks of one object, without a check of the object."""
        first = tasks[0]
        return cls(
            first.submission, first.object_key, first.frame_id, tasks, needs_new_worker=needs_new_worker
        )

    @property
    def is_large(self) -> bool:
        """Return whether the item is a picture that takes much time and memory."""
        return bool(self.tasks) and self.tasks[0].message.pixels > _LARGE_PIXELS


class Submission:
    """Frames of one session, and their digests so far."""

    def __init__(
        self, session_id: str, frames: Sequence["FrameRow"], budget: DigestBudget, *, workspace_id: str
    ) -> None:
        self.session_id = session_id
        self.workspace_id = workspace_id
        self.future: Future[list[FrameDigest]] = Future()
        self._frames: list[tuple[DigestSubmissionTask, DigestSubmissionTask | None, str | None]] = []
        self._add_frames(frames)
        tasks = dict.fromkeys(task for frame in self._frames for task in frame[:2] if task is not None)
        for task in tasks:
            # Uploads accept no larger pictures; such a row gets no digest, and its bytes are not fetched.
            if task.message.kind == "picture" and task.message.length > budget.picture_bytes:
                task.is_settled = True
        to_compute = [task for task in tasks if not task.is_settled]
        self.items = deque(_cut_tasks_into_items(to_compute))
        self._add_checks(frames)
        self.open_checks = sum(item.least_bytes > 0 for item in self.items)
        self.open_tasks = len(to_compute)

    @property
    def is_over(self) -> bool:
        """Return whether the submission has its result or its error, or was cancelled."""
        return self.future.done()

    def settle(self, task: DigestSubmissionTask, digest: Digest) -> None:
        """Store the digest of a task; the last digest completes the future."""
        if task.is_settled:
            return
        task.digest, task.is_settled = digest, True
        self.open_tasks -= 1
        self.finish_if_complete()

    def settle_check(self, item: DigestSubmissionItem) -> None:
        """Note that the object of an item has the bytes that it must have."""
        if item.least_bytes:
            item.least_bytes = 0
            self.open_checks -= 1
            self.finish_if_complete()

    def finish_if_complete(self) -> None:
        """Complete the future once every digest is known and every object is checked."""
        is_complete = self.open_tasks == 0 and self.open_checks == 0
        if is_complete and not self.is_over and self.future.set_running_or_notify_cancel():
            self.future.set_result([_make_submitted_frame_digest(*frame) for frame in self._frames])

    def fail(self, error: Exception) -> None:
        """Complete the future with an error, unless it is complete."""
        if not self.is_over and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _add_frames(self, frames: Sequence["FrameRow"]) -> None:
        """Add the tasks of frames; frames with an equal picture or snapshot share its task."""
        pictures: dict[str, DigestSubmissionTask] = {}
        snapshots: dict[tuple[str, int, int], DigestSubmissionTask] = {}
        for frame in frames:
            picture = pictures.get(frame.sha256)
            if picture is None:
                message = DigestTask("picture", frame.offset, frame.length, frame.width * frame.height)
                picture = DigestSubmissionTask(
                    self, frame.frame_id, frame.object, message, f"picture {frame.sha256}"
                )
                pictures[frame.sha256] = picture
            snapshot = None
            if frame.dom_object is not None and frame.dom_offset is not None and frame.dom_length is not None:
                location = (frame.dom_object, frame.dom_offset, frame.dom_length)
                snapshot = snapshots.get(location)
                if snapshot is None:
                    message = DigestTask("snapshot", frame.dom_offset, frame.dom_length)
                    snapshot = DigestSubmissionTask(self, frame.frame_id, frame.dom_object, message, None)
                    snapshots[location] = snapshot
            self._frames.append((picture, snapshot, frame.url))

    def _add_checks(self, frames: Sequence["FrameRow"]) -> None:
        """Let the first item of each object check its size; add an item without tasks where there is none."""
        first_items: dict[str, DigestSubmissionItem] = {}
        for item in self.items:
            first_items.setdefault(item.object_key, item)
        for frame in frames:
            ends = [(frame.object, frame.offset + frame.length)]
            if frame.dom_object is not None and frame.dom_offset is not None and frame.dom_length is not None:
                ends.append((frame.dom_object, frame.dom_offset + frame.dom_length))
            for key, end in ends:
                checking = first_items.get(key)
                if checking is None:
                    checking = first_items[key] = DigestSubmissionItem(self, key, frame.frame_id, [])
                    self.items.append(checking)
                checking.least_bytes = max(checking.least_bytes, end)


class DigestSubmissionCache:
    """Digests of contents by their keys, with a bound on entries and bytes; the least recently used go."""

    def __init__(self, *, max_entries: int = 50_000, max_bytes: int = 64 * 1024 * 1024) -> None:
        # Each entry counts as at least its share of the bytes, which bounds the number of entries too.
        least = max_bytes // max_entries
        self._digests: LRUCache[str, Digest] = LRUCache(
            max_bytes, lambda digest: max(_estimate_bytes(digest), least)
        )

    @property
    def bytes(self) -> int:
        """Bytes that the entries count as."""
        return int(self._digests.currsize)

    def __contains__(self, key: str) -> bool:
        return key in self._digests

    def __len__(self) -> int:
        return len(self._digests)

    def get(self, key: str) -> Digest:
        """Return the digest of a key that is known."""
        return self._digests[key]

    def put(self, key: str, digest: Digest) -> None:
        """Store a digest and drop others if there is no room; skip a digest that is too large."""
        with suppress(ValueError):
            self._digests[key] = digest


def _cut_tasks_into_items(tasks: Iterable[DigestSubmissionTask]) -> list[DigestSubmissionItem]:
    """Group tasks by upload object into items of a short span of it."""
    by_object: dict[str, list[DigestSubmissionTask]] = {}
    for task in tasks:
        by_object.setdefault(task.object_key, []).append(task)
    items: list[DigestSubmissionItem] = []
    for group in by_object.values():
        item: DigestSubmissionItem | None = None
        for task in sorted(group, key=lambda task: task.message.offset):
            if item is None or not _fits_into_item(item, task):
                item = DigestSubmissionItem.of_tasks([task])
                items.append(item)
            else:
                item.tasks.append(task)
    return items


def _fits_into_item(item: DigestSubmissionItem, task: DigestSubmissionTask) -> bool:
    span = task.message.offset + task.message.length - item.tasks[0].message.offset
    is_large = task.message.pixels > _LARGE_PIXELS
    return len(item.tasks) < _ITEM_TASKS and span <= _ITEM_BYTES and not is_large and not item.is_large


def _make_submitted_frame_digest(
    picture: DigestSubmissionTask, snapshot: DigestSubmissionTask | None, url: str | None
) -> FrameDigest:
    cells = picture.digest if isinstance(picture.digest, bytes) else None
    screen = snapshot.digest if snapshot is not None and isinstance(snapshot.digest, Screen) else None
    return compute_frame_digests(screen, url, cells)


def _estimate_bytes(digest: Digest) -> int:
    """Return roughly the memory of a digest and its key."""
    if not isinstance(digest, Screen):
        return 250
    return 500 + 40 * len(digest.features) + sum(60 + len(token) for token in digest.state_tokens)
