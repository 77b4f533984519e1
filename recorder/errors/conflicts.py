"""Right, but not now: what the state of a resource, or of another request, does not admit. Contract §1."""

from typing import Any

from recorder.errors.kinds import Conflict, Gone, Problem


class InvalidState(Conflict):
    """The resource's state does not admit this."""

    code = "invalid_state"
    title = "Invalid state"

    def __init__(self, status: str, *, needed: str) -> None:
        super().__init__(f"The {needed}; it is {status}.")
        self.status = status

    @property
    def extra(self) -> dict[str, Any]:
        """The state it is in."""
        return {"current_status": self.status}


class EventConflict(Conflict):
    """An id that this session already holds with other content."""

    code = "event_conflict"
    title = "Id already used"

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("These ids were sent before with other content; nothing of this batch was stored.")
        self.problems = problems

    @property
    def extra(self) -> dict[str, Any]:
        """The items concerned."""
        return {"errors": [problem.as_json() for problem in self.problems]}


class IdempotencyInProgress(Conflict):
    """The first request with this key still runs."""

    code = "idempotency_in_progress"
    title = "Still in progress"
    retry_after_s = 1

    def __init__(self) -> None:
        super().__init__("A request with this Idempotency-Key still runs; ask again for its answer.")


class SessionNotSealed(InvalidState):
    """The session is not in the memory graph yet."""

    code = "session_not_sealed"
    title = "Session not sealed"

    def __init__(self, status: str) -> None:
        super().__init__(status, needed="session must be sealed: stop it, and ask again some seconds later")


class ResumeWindowExpired(Gone):
    """What follows the given position is older than a stream can be resumed for."""

    code = "resume_window_expired"
    title = "Resume window expired"

    def __init__(self, minutes: int) -> None:
        super().__init__(
            f"A stream can be resumed for {minutes} minutes; read the session's events, then stream anew."
        )
