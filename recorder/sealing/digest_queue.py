"""Queue of the digest pool: workspaces take turns, then the submissions of each. Decision 0030."""

from collections.abc import Callable, Iterator

from recorder.fair_scheduling import RoundRobinQueue
from recorder.sealing.digest_submissions import DigestSubmissionItem, Submission


class SubmissionQueue:
    """Queue of submissions with items that no worker has begun.

    One workspace may have thousands of sessions here, whose pictures or snapshots are slow on purpose: a
    session of another workspace waits for one item of it, not for one of each session.
    """

    def __init__(self) -> None:
        self._queue = RoundRobinQueue[Submission]()

    def add(self, submission: Submission) -> None:
        """Add a submission as the last of its workspace, unless it is there."""
        if submission not in self._queue.list_items(submission.workspace_id):
            self._queue.add(submission.workspace_id, submission)

    def take_item(self, may_begin: Callable[[DigestSubmissionItem], bool]) -> DigestSubmissionItem | None:
        """Remove and return the next item that may begin; None if there is none.

        Items of submissions that are over are returned too: their tasks must be released.
        """

        def may_take(_: str, submission: Submission) -> bool:
            return not submission.items or submission.is_over or may_begin(submission.items[0])

        while (taken := self._queue.take(may_take)) is not None:
            workspace_id, submission = taken
            if submission.items:  # those of one that failed were dropped
                item = submission.items.popleft()
                if submission.items:
                    self._queue.add(workspace_id, submission)
                return item
        return None

    def __iter__(self) -> Iterator[Submission]:
        return iter(self._queue)
