"""Reasons for which one session cannot be sealed. Spec §3.1; contract §2 (`seal_error`)."""

from typing import Literal

SealErrorCode = Literal[
    "content_unreadable", "content_missing", "over_budget", "worker_killed", "rows_differ"
]


class ContentError(Exception):
    """A session that cannot be sealed because of what it holds.

    Errors of a store or of the database are never this one: they are `Unavailable`.

    Attributes:
        session_id: the session that holds the content.
        code: the kind of failure, as clients and operators see it.
        message: one sentence that says what was found and what to do; never the content itself.
    """

    def __init__(self, session_id: str, code: SealErrorCode, message: str) -> None:
        super().__init__(f"{session_id}: {code}: {message}")
        self.session_id = session_id
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type["ContentError"], tuple[str, SealErrorCode, str]]:
        """Pickle by the arguments: worker processes raise it."""
        return (ContentError, (self.session_id, self.code, self.message))
