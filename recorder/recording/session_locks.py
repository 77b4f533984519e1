"""Locks of sessions that a group commit takes on PostgreSQL without waiting. Design §3.

A group holds batches of many workspaces. If it waited for a session that a long transaction holds, such as
one of many tags at once, the batches of all others would wait with it.
"""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

#: Workspace, mode and id of a session.
SessionKey = tuple[str, str, str]

_NAMED = "(SELECT * FROM unnest(?::text[], ?::text[], ?::text[]) AS named(workspace_id, mode, id))"
_RECORDING = f"status = 'recording' AND deleted_at IS NULL AND (workspace_id, mode, id) IN {_NAMED}"
_LOCK_FREE = f"SELECT workspace_id, mode, id FROM sessions WHERE {_RECORDING} FOR NO KEY UPDATE SKIP LOCKED"  # noqa: S608
_LIST_RECORDING = f"SELECT workspace_id, mode, id FROM sessions WHERE {_RECORDING}"  # noqa: S608


class SessionLockStatements(Protocol):
    """Statements that the locks need of a cursor."""

    def all(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement and fetch its rows."""


def lock_free_sessions(cursor: SessionLockStatements, sessions: Collection[SessionKey]) -> set[SessionKey]:
    """Lock those sessions that record and that no other transaction holds; return those that one holds.

    Sessions that do not record are neither locked nor returned: no batch is added to them.
    """
    locked = set(cursor.all(_LOCK_FREE, _list_columns(sessions)))
    others = set(sessions) - locked
    return set(cursor.all(_LIST_RECORDING, _list_columns(others))) if others else set()


def _list_columns(sessions: Collection[SessionKey]) -> list[list[str]]:
    """Return workspaces, modes and ids of the sessions as three lists, for `unnest`."""
    return [list(column) for column in zip(*sessions, strict=True)]
