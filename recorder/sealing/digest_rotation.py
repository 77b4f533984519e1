"""Rotation of the digest pool: workspaces take turns, and the submissions of each. Decision 0030."""

from collections import deque
from collections.abc import Callable, Iterator

from recorder.sealing.digest_submissions import Item, Submission


class SubmissionRotation:
    """Submissions with items that no worker has begun.

    One workspace may have thousands of sessions here, whose pictures or snapshots are slow on purpose: a
    session of another workspace waits for one item of it, not for one of each session.
    """

    def __init__(self) -> None:
        #: Workspaces in the order of their turns, each with its submissions in the order of theirs.
        self._by_workspace: dict[str, deque[Submission]] = {}

    def add(self, submission: Submission) -> None:
        """Add a submission as the last of its workspace, unless it is there."""
        submissions = self._by_workspace.setdefault(submission.workspace_id, deque())
        if submission not in submissions:
            submissions.append(submission)

    def take_item(self, may_begin: Callable[[Item], bool]) -> Item | None:
        """Remove and return the next item that may begin; None if there is none.

        Items of submissions that are over are returned too: their tasks must be released.
        """
        for workspace_id in list(self._by_workspace):
            submissions = self._by_workspace[workspace_id]
            for _ in range(len(submissions)):
                submission = submissions.popleft()
                if not submission.items:
                    continue
                submissions.append(submission)
                if submission.is_over or may_begin(submission.items[0]):
                    # The workspace goes to the end of the rotation.
                    self._by_workspace[workspace_id] = self._by_workspace.pop(workspace_id)
                    return submission.items.popleft()
            if not submissions:
                del self._by_workspace[workspace_id]
        return None

    def __iter__(self) -> Iterator[Submission]:
        for submissions in self._by_workspace.values():
            yield from submissions
