"""Replays and recoveries of a drain run that wait because a store did not answer."""

from datetime import datetime, timedelta

from recorder import clock
from recorder.errors import Unavailable

#: Time for a store to answer again, and the pause between two attempts.
STORE_TIME, _STORE_PAUSE = timedelta(minutes=10), timedelta(seconds=30)
_MOST_PAUSED = 1_000


class StorePauses:
    """Ids that wait for a store, each with the time of its next attempt."""

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}
        #: When a store did not answer for the first time.
        self._since: dict[str, datetime] = {}

    def list_ids(self) -> list[str]:
        """Return the ids whose next attempt is not due."""
        now = clock.now()
        self._until = {row_id: until for row_id, until in self._until.items() if until > now}
        return list(self._until)

    def add_pause(self, row_id: str) -> None:
        """Let an id wait until its next attempt.

        Raises:
            Unavailable: if many wait for a store.
        """
        if len(self._until) >= _MOST_PAUSED:
            raise Unavailable("The blob store")
        now = clock.now()
        self._since.setdefault(row_id, now)
        self._until[row_id] = now + _STORE_PAUSE

    def has_waited(self, row_id: str) -> bool:
        """Return whether an id has waited as long as a store is given."""
        return clock.now() - self._since.get(row_id, clock.now()) >= STORE_TIME

    def forget(self, row_id: str) -> None:
        """Forget an id: it ended, or its store answered."""
        self._since.pop(row_id, None)
