"""Keys of open streams that may no longer read: revoked, expired, of a disabled workspace. Spec §5."""

from collections.abc import Collection

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.key import KeyRow
from recorder.models.workspace import WorkspaceRow
from recorder.recording.streams.readers import Ending


def find_refused(db: DbSession, key_ids: Collection[str]) -> dict[str, Ending]:
    """The keys among these that are no longer good, each with the reason."""
    statement = (
        select(KeyRow.id, KeyRow.revoked_at, KeyRow.expires_at, WorkspaceRow.status)
        .join(WorkspaceRow, col(WorkspaceRow.id) == col(KeyRow.workspace_id))
        .where(col(KeyRow.id).in_(key_ids))
    )
    refused = dict.fromkeys(key_ids, Ending.KEY_REFUSED)
    for key_id, revoked_at, expires_at, status in db.exec(statement):
        if revoked_at is not None or (expires_at is not None and expires_at <= clock.now()):
            continue
        if status == "active":
            del refused[key_id]
        else:
            refused[key_id] = Ending.WORKSPACE_DISABLED
    return refused
