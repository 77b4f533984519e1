"""Digest pool: computes the digests of pictures and DOM snapshots in worker processes. Decision 0030."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Self

from recorder.sealing.digest_messages import DigestBudget, DigestSetupMessage
from recorder.sealing.digest_scheduler import FAILED, DigestScheduler
from recorder.sealing.digest_submissions import Submission
from recorder.sealing.frame_digests import FrameDigest

if TYPE_CHECKING:
    from recorder.models.frame import FrameRow

__all__ = ["DigestBudget", "DigestPool"]


class DigestPool:
    """Worker processes for the digests of frames, started when there is work.

    Workspaces, and the submissions of each, are served in rotation, item by item. A worker that dies is
    replaced, and only the content that it worked on is blamed.
    """

    def __init__(self, blob_url: str, *, processes: int, budget: DigestBudget | None = None) -> None:
        """Prepare a pool; no process is started before the first submission.

        Args:
            blob_url: address of the blob store, from which the workers fetch upload objects.
            processes: the largest number of worker processes.
            budget: limits on each picture and snapshot.
        """
        self._budget = budget or DigestBudget()
        self._scheduler = DigestScheduler(DigestSetupMessage(blob_url, self._budget), processes)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def submit(
        self, session_id: str, frames: Sequence["FrameRow"], *, workspace_id: str = ""
    ) -> "Future[list[FrameDigest]]":
        """Queue frames of one session; the future has their digests, in their order.

        The future raises `ContentError` if the session's content cannot be read or digested, also while the
        blob store does not answer: the caller checks the store before it counts the error. It raises
        `Unavailable` if no worker can be started. Cancelling it drops the items that have not begun.

        Args:
            session_id: the session that is named in a `ContentError`.
            frames: its frames, or a portion of them.
            workspace_id: its workspace; workspaces take turns.
        """
        submission = Submission(session_id, frames, self._budget, workspace_id=workspace_id)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("The digest pool is closed.")
            if not submission.items:
                submission.finish_if_complete()
                return submission.future
            self._scheduler.add(submission)
            if self._thread is None:
                self._thread = threading.Thread(target=self._scheduler.run, name="digests", daemon=True)
                self._thread.start()
        if not self._thread.is_alive():
            submission.fail(RuntimeError(FAILED))
        return submission.future

    def digest(self, session_id: str, frames: Sequence["FrameRow"]) -> list[FrameDigest]:
        """Return the digests of frames of one session, in their order.

        Raises:
            ContentError: if an object is missing or cannot be read, a snapshot is over its budget, or workers
                die of it.
            Unavailable: if no worker can be started.
        """
        return self.submit(session_id, frames).result()

    def close(self) -> None:
        """End the worker processes; submissions under way are cancelled."""
        with self._lock:
            self._is_closed = True
        self._scheduler.stop()
        if self._thread is not None:
            self._thread.join()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that are running."""
        return [worker.pid for worker in list(self._scheduler.workers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
