"""Conflicts of a valid request with the state of a resource or with another request. Contract §1."""

from typing import Any

from recorder.errors.kinds import Conflict, Gone, Problem


class InvalidState(Conflict):
    """The status of the resource does not allow the operation (409)."""

    code = "invalid_state"
    title = "Invalid state"

    def __init__(self, status: str, *, needed: str, obstacle: str = "", remedy: str = "") -> None:
        """Make the error.

        Args:
            status: the current status of the resource.
            needed: the condition that the resource does not fulfil, without the article.
            obstacle: the state that prevents the operation, where it is not the status.
            remedy: the next step, as a sentence.
        """
        super().__init__(" ".join(filter(None, (f"The {needed}; it is {obstacle or status}.", remedy))))
        self.status = status

    @property
    def extra(self) -> dict[str, Any]:
        """The current status of the resource."""
        return {"current_status": self.status}


class SessionNotRecording(InvalidState):
    """The session takes no events and frames, and cannot be stopped, in its status (409)."""

    def __init__(self, status: str, *, purpose: str) -> None:
        remedy = "Record in a new session."
        if status == "created":
            remedy = (
                'Start it with POST /v1/sessions/{session_id}/start, or create sessions with "start": true.'
            )
        super().__init__(status, needed=f"session must be recording {purpose}", remedy=remedy)


class EventConflict(Conflict):
    """The session already holds an id with other content (409)."""

    code = "event_conflict"
    title = "Id already used"

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(
            "The ids in `errors` were sent before with other content; the batch was not stored. Send new ids."
        )
        self.problems = problems

    @property
    def extra(self) -> dict[str, Any]:
        """The items with these ids."""
        return {"errors": [problem.as_json() for problem in self.problems]}


class IdempotencyInProgress(Conflict):
    """The first request with this Idempotency-Key still runs (409)."""

    code = "idempotency_in_progress"
    title = "Still in progress"
    retry_after_s = 1

    def __init__(self) -> None:
        super().__init__(
            "A request with this Idempotency-Key still runs; send it again in 1 s to get its answer."
        )


class SessionNotSealed(InvalidState):
    """The session is not sealed yet (409)."""

    code = "session_not_sealed"
    title = "Session not sealed"

    def __init__(self, status: str) -> None:
        remedies = {
            "created": "Start it with POST /v1/sessions/{session_id}/start, record, and stop it.",
            "stopped": "Wait until it is sealed, some seconds, and try again.",
        }
        stop = "Stop it, and try again some seconds later."
        super().__init__(status, needed="session must be sealed", remedy=remedies.get(status, stop))


class ResumeWindowExpired(Gone):
    """The position is older than the time for which a stream can be resumed (410)."""

    code = "resume_window_expired"
    title = "Resume window expired"

    def __init__(self, minutes: int) -> None:
        super().__init__(
            f"A stream can be resumed for {minutes} minutes; list the session's events, then open a stream."
        )
