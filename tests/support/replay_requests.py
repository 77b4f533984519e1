"""Replays and recoveries over HTTP, the events that they cause, and the hosts that live replays may reach."""

from typing import Any

from sqlmodel import select

from recorder.models.operations import OutboxRow
from recorder.models.workspace import WorkspaceRow
from tests.support.factories import Caller


def post_replay(caller: Caller, session_id: str, **members: Any) -> dict[str, Any]:
    """Request a replay, dry by default, and return it."""
    return _post(caller, "/v1/replays", session_id, members)


def get_replay(caller: Caller, replay_id: str) -> dict[str, Any]:
    """Return a replay as it is now."""
    return _get(caller, f"/v1/replays/{replay_id}")


def post_recovery(caller: Caller, session_id: str, **members: Any) -> dict[str, Any]:
    """Request a recovery, dry by default, and return it."""
    return _post(caller, "/v1/recoveries", session_id, members)


def get_recovery(caller: Caller, recovery_id: str) -> dict[str, Any]:
    """Return a recovery as it is now."""
    return _get(caller, f"/v1/recoveries/{recovery_id}")


def events_of(caller: Caller, subject_id: str) -> list[str]:
    """Return the types of the events that a replay or recovery has caused, in order."""
    with caller.service.runtime.database.transaction(write=False) as db:
        rows = list(
            db.exec(select(OutboxRow).where(OutboxRow.subject_id == subject_id).order_by(OutboxRow.id))
        )
    for row in rows:
        kind, status = row.type.split(".")
        assert row.data[kind]["status"] == status
    return [row.type for row in rows]


def allow_hosts(caller: Caller, *hosts: str) -> None:
    """Set the hosts that live replays of the workspace may reach."""
    with caller.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(WorkspaceRow, caller.key.workspace_id)
        row.live_hosts = list(hosts)
        db.add(row)


def _post(caller: Caller, path: str, session_id: str, members: dict[str, Any]) -> dict[str, Any]:
    answer = caller.post(path, {"session_id": session_id, "sandbox": "dry"} | members)
    assert answer.status_code == 202, answer.text
    made: dict[str, Any] = answer.json()
    return made


def _get(caller: Caller, path: str) -> dict[str, Any]:
    answer = caller.get(path)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown
