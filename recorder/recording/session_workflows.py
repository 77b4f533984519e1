"""The workflows of sessions: a batch names its session alone, and workflows may mask for themselves."""

import threading

from sqlmodel import Session as DbSession

from recorder.access.keys import Caller
from recorder.errors import NotFound
from recorder.recording.sessions import find_session

#: About as many sessions as record at a time; each entry takes some 300 bytes.
_SIZE = 20_000


class SessionWorkflows:
    """What one process knows of them. A session never changes its workflow, so nothing here grows stale."""

    def __init__(self) -> None:
        # A plain dict: every batch reads it, without a lock, and FIFOCache.get takes 1.4 µs instead of 0.2.
        self._known: dict[tuple[str, str, str], str] = {}
        self._lock = threading.Lock()

    def recall(self, caller: Caller, session_id: str) -> str | None:
        """The workflow of one of the caller's sessions, where it was looked up before."""
        tenant = caller.tenant
        return self._known.get((tenant.workspace_id, tenant.mode, session_id))

    def look_up(self, db: DbSession, caller: Caller, session_id: str) -> str | None:
        """The workflow of one of the caller's sessions; None where there is no such session."""
        try:
            row = find_session(db, caller.tenant, session_id)
        except NotFound:
            return None
        with self._lock:
            if len(self._known) >= _SIZE:
                del self._known[next(iter(self._known))]
            self._known[(row.workspace_id, row.mode, session_id)] = row.workflow
        return row.workflow
