"""Scheduler of the digest pool: assigns items to workers, and replaces dead workers. Decision 0030."""

import threading
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import wait

import msgspec
from cachetools import LRUCache

from recorder.errors import Unavailable
from recorder.sealing.digest_messages import (
    DigestFetchedMessage,
    DigestFetchFailedMessage,
    DigestItemFinishedMessage,
    DigestSetupMessage,
    FromWorker,
    PictureDigestMessage,
)
from recorder.sealing.digest_queue import SubmissionQueue
from recorder.sealing.digest_submissions import (
    OVER_BUDGET,
    Digest,
    DigestSubmissionCache,
    DigestSubmissionItem,
    DigestSubmissionOverBudget,
    DigestSubmissionTask,
    Submission,
)
from recorder.sealing.digest_worker_handle import DigestWorkerHandle
from recorder.sealing.failures import ContentError

#: A picture or snapshot is not tried again after so many dead workers.
MAX_DEATHS = 3
_DEATHS_KEPT = 1_000
FAILED = "The digest pool has failed; the log holds the error."


class DigestScheduler:
    """Assignment of items to workers by workspace; all methods but `add` and `stop` run in one thread."""

    def __init__(self, setup: DigestSetupMessage, processes: int) -> None:
        self._setup = setup
        self._processes = processes
        # Large pictures take half of the workers, which also bounds the memory of all.
        self._max_large = max(1, processes // 2)
        self.workers: list[DigestWorkerHandle] = []
        self._queue = SubmissionQueue()
        self._cache = DigestSubmissionCache()
        #: Number of workers that died while they computed a content, by its key.
        self._deaths: LRUCache[str, int] = LRUCache(_DEATHS_KEPT)
        #: Keys of contents that are computed or queued, with the tasks that wait for the same digest.
        self._under_way: dict[str, list[DigestSubmissionTask]] = {}
        self._incoming: deque[Submission] = deque()
        self._is_stopping = threading.Event()
        self._wake_reader, self._wake_writer = Pipe(duplex=False)
        self._is_woken = threading.Event()

    def add(self, submission: Submission) -> None:
        """Queue a submission, from any thread."""
        self._incoming.append(submission)
        self._wake_scheduler()

    def stop(self) -> None:
        """End the thread, from any thread."""
        self._is_stopping.set()
        self._wake_scheduler()

    def run(self) -> None:
        """Serve submissions until `stop` is called."""
        failure: Exception = RuntimeError(FAILED)
        try:
            while not self._is_stopping.is_set():
                while self._incoming:
                    self._queue.add(self._incoming.popleft())
                self._begin_items()
                self._receive_messages()
        finally:
            for worker in self.workers:
                worker.end()
            held = [task.submission for tasks in self._under_way.values() for task in tasks]
            held += [worker.item.submission for worker in self.workers if worker.item is not None]
            self.workers.clear()
            for submission in [*held, *self._queue, *self._incoming]:
                if self._is_stopping.is_set():
                    submission.future.cancel()
                submission.fail(failure)

    def _wake_scheduler(self) -> None:
        # One message is enough, and a full pipe would block.
        if not self._is_woken.is_set():
            self._is_woken.set()
            self._wake_writer.send_bytes(b"!")

    def _receive_messages(self) -> None:
        """Handle messages of the workers; wait for a message if there is none."""
        stall_seconds = self._setup.budget.stall_seconds
        left = [
            seconds for worker in self.workers if (seconds := worker.seconds_left(stall_seconds)) is not None
        ]
        by_connection = {worker.connection: worker for worker in self.workers}
        timeout = max(0.0, min(left)) if left else None
        for ready in wait([*by_connection, self._wake_reader], timeout):
            if ready is self._wake_reader:
                self._is_woken.clear()
                self._wake_reader.recv_bytes()
                continue
            worker = by_connection[ready]  # type: ignore[index]
            try:
                message = worker.receive()
            except (EOFError, OSError, msgspec.MsgspecError):
                self._replace_worker(worker)
            else:
                self._handle_message(worker, message)
        for worker in list(self.workers):
            seconds = worker.seconds_left(stall_seconds)
            if seconds is not None and seconds <= 0:
                self._replace_worker(worker)

    def _begin_items(self) -> None:
        """Give items to idle workers, and start workers up to the limit."""
        while any(worker.item is None for worker in self.workers) or len(self.workers) < self._processes:
            item = self._next_item()
            if item is None:
                return
            try:
                worker = self._take_worker(is_new=item.needs_new_worker)
            except OSError:
                self._fail_submission(item.submission, item.tasks, Unavailable("The digest worker"))
                return
            worker.begin(item)

    def _next_item(self) -> DigestSubmissionItem | None:
        """Return the next item with unknown contents, of the workspaces in turn."""
        while (item := self._queue.take_item(self._may_begin_digest)) is not None:
            if item.submission.is_over:
                self._release_tasks(item.tasks)
                continue
            wanted = [task for task in item.tasks if self._claim_or_settle_task(task)]
            if item.submission.future.done():
                self._release_tasks(wanted)
            elif wanted or item.least_bytes:
                item.tasks = wanted
                return item
        return None

    def _may_begin_digest(self, item: DigestSubmissionItem) -> bool:
        return not item.is_large or self._count_large_items() < self._max_large

    def _claim_or_settle_task(self, task: DigestSubmissionTask) -> bool:
        """Return whether a task must be computed; otherwise settle it, or let it wait for an equal task."""
        if task.key is None or task.is_owner:
            return True
        if task.key in self._cache:
            self._settle_task(task, self._cache.get(task.key))
            return False
        if task.key in self._under_way:
            self._under_way[task.key].append(task)
            return False
        self._under_way[task.key] = []
        task.is_owner = True
        return True

    def _take_worker(self, *, is_new: bool) -> DigestWorkerHandle:
        """Return an idle worker, or a new one; a new one takes the place of an idle one at the limit."""
        idle = [worker for worker in self.workers if worker.item is None]
        for worker in idle:
            if worker.is_new or not is_new:
                return worker
        if len(self.workers) >= self._processes:
            self.workers.remove(idle[0])
            idle[0].end()
        self.workers.append(DigestWorkerHandle(self._setup))
        return self.workers[-1]

    def _handle_message(self, worker: DigestWorkerHandle, message: FromWorker) -> None:
        assert worker.item is not None, "A worker without an item sent a message."
        if isinstance(message, DigestFetchedMessage):
            self._answer_fetched_item(worker, worker.item, message)
        elif isinstance(message, DigestFetchFailedMessage):
            worker.todo = deque()
            describe = (
                _describe_missing_content if message.reason == "missing" else _describe_unreadable_content
            )
            self._fail_submission(worker.item.submission, worker.item.tasks, describe(worker.item))
        elif isinstance(message, DigestItemFinishedMessage):
            rest, worker.item, worker.todo = worker.todo, None, None
            if rest:
                self._requeue_item(DigestSubmissionItem.of_tasks(list(rest)))
            if message.is_ending:
                self.workers.remove(worker)
                worker.end()
        else:
            assert worker.todo, "A worker without a task sent a digest."
            digest = message.cells if isinstance(message, PictureDigestMessage) else message.screen
            is_over_budget = not isinstance(message, PictureDigestMessage) and message.is_over_budget
            self._complete_task(worker.todo.popleft(), OVER_BUDGET if is_over_budget else digest)

    def _answer_fetched_item(
        self, worker: DigestWorkerHandle, item: DigestSubmissionItem, message: DigestFetchedMessage
    ) -> None:
        item.submission.settle_check(item)
        indexes = []
        for index, (task, key) in enumerate(zip(item.tasks, message.snapshot_keys, strict=True)):
            if task.key is None:
                task.key = f"snapshot {key}"
            if self._claim_or_settle_task(task):
                indexes.append(index)
        if item.submission.is_over:
            self._release_tasks(item.tasks)
            indexes = []
        worker.compute(indexes)

    def _replace_worker(self, worker: DigestWorkerHandle) -> None:
        """Remove a worker that died or stalled; requeue its tasks, and count the death of the current one."""
        is_out_of_time = worker.end()
        self.workers.remove(worker)
        item = worker.item
        if item is None:
            return
        if worker.todo is None:
            # The content was not read yet: the machine, the store or the object's size caused the death.
            item.fetch_deaths += 1
            if item.fetch_deaths >= MAX_DEATHS:
                self._fail_submission(item.submission, item.tasks, _describe_fetch_deaths(item))
            else:
                self._requeue_item(item)
            return
        if not worker.todo:
            return
        task = worker.todo.popleft()
        if worker.todo:
            self._requeue_item(DigestSubmissionItem.of_tasks(list(worker.todo)))
        assert task.key is not None
        # Counted by content, so that a submission that was paused and closed does not restart the count.
        task.deaths = self._deaths.pop(task.key, 0) + 1
        if not is_out_of_time and task.deaths < MAX_DEATHS:
            self._deaths[task.key] = task.deaths
        if is_out_of_time:
            self._complete_task(task, None if task.message.kind == "picture" else OVER_BUDGET)
        elif task.deaths >= MAX_DEATHS:
            self._fail_submission(task.submission, [task], _describe_killed_digest(task))
        else:
            self._requeue_item(DigestSubmissionItem.of_tasks([task], needs_new_worker=True))

    def _requeue_item(self, item: DigestSubmissionItem) -> None:
        if item.submission.is_over:
            self._release_tasks(item.tasks)
            return
        item.submission.items.appendleft(item)
        self._queue.add(item.submission)

    def _complete_task(self, task: DigestSubmissionTask, digest: Digest) -> None:
        """Store a computed digest for this task and for the tasks that wait for it."""
        assert task.key is not None
        self._cache.put(task.key, digest)
        task.is_owner = False
        for equal in [task, *self._under_way.pop(task.key, ())]:
            self._settle_task(equal, digest)

    def _settle_task(self, task: DigestSubmissionTask, digest: Digest) -> None:
        if isinstance(digest, DigestSubmissionOverBudget):
            task.submission.fail(_describe_digest_over_budget(task))
        else:
            task.submission.settle(task, digest)

    def _fail_submission(
        self, submission: Submission, tasks: list[DigestSubmissionTask], error: Exception
    ) -> None:
        """Fail a submission; equal contents of other submissions are computed from their own objects."""
        submission.fail(error)
        self._release_tasks(tasks)
        self._drop_queued_items(submission)

    def _drop_queued_items(self, submission: Submission) -> None:
        while submission.items:
            self._release_tasks(submission.items.popleft().tasks)

    def _release_tasks(self, tasks: list[DigestSubmissionTask]) -> None:
        """Queue again the tasks that waited for digests of these tasks, which will not compute them."""
        for task in tasks:
            if task.is_owner and task.key is not None:
                task.is_owner = False
                for waiting in self._under_way.pop(task.key, ()):
                    self._requeue_item(DigestSubmissionItem.of_tasks([waiting]))

    def _count_large_items(self) -> int:
        return sum(worker.item is not None and worker.item.is_large for worker in self.workers)


def _describe_missing_content(item: DigestSubmissionItem) -> ContentError:
    text = (
        f"The stored object with frame {item.frame_id} is missing or incomplete; restore the blob "
        "store, then seal the session again, or delete it."
    )
    return ContentError(item.submission.session_id, "content_missing", text)


def _describe_unreadable_content(item: DigestSubmissionItem) -> ContentError:
    text = (
        f"The stored object with frame {item.frame_id} cannot be read, and the blob store answers; "
        "repair or restore the object, then seal the session again, or delete it."
    )
    return ContentError(item.submission.session_id, "content_unreadable", text, fault="unreadable object")


def _describe_fetch_deaths(item: DigestSubmissionItem) -> ContentError:
    text = (
        f"Reading the stored object with frame {item.frame_id} ended {item.fetch_deaths} worker "
        "processes; check the machine's memory, then seal the session again, or delete it."
    )
    return ContentError(item.submission.session_id, "worker_killed", text, fault="killed worker")


def _describe_digest_over_budget(task: DigestSubmissionTask) -> ContentError:
    text = (
        f"The DOM snapshot of frame {task.frame_id} takes more bytes, nodes or time than sealing allows; "
        "record the page with a smaller snapshot, and delete the session."
    )
    return ContentError(task.submission.session_id, "over_budget", text)


def _describe_killed_digest(task: DigestSubmissionTask) -> ContentError:
    text = (
        f"The {task.message.kind} of frame {task.frame_id} ended {task.deaths} worker processes; check the "
        "machine's memory, then seal the session again, or delete it."
    )
    return ContentError(task.submission.session_id, "worker_killed", text)
