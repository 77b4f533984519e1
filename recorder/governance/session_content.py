"""Content of one session in the database and in the stores of objects, and its removal. Contract §2."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.governance.holds import forget_holds
from recorder.governance.purge_requests import request_recorded
from recorder.memory.storage.purges import purge_sessions
from recorder.models.event import BatchKeyRow, EventBatchRow, EventKeyRow
from recorder.models.frame import FrameRow
from recorder.models.governance import PurgeRow
from recorder.models.operations import IdempotencyRow, OutboxRow, SealPortionRow
from recorder.models.session import SessionMetadataRow, SessionRow, SessionStatusRow, TagRow
from recorder.models.webhook import DeliveryRow
from recorder.replaying.removal import remove_replays
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from recorder.storage.database import note_change
from recorder.tenant import GraphScope

#: Opens a write transaction, under the lease of a run where there is one.
OpenTransaction = Callable[[], AbstractContextManager[DbSession]]

#: Answers of this address show the metadata of other sessions than the one in the request.
_SIMILAR = "/v1/memory/similar"
#: Tables with rows of a session, the column that tells them apart, and how many one transaction deletes: on
#: SQLite no other request can write while it lasts. A batch of events has up to some megabytes.
_ROWS: tuple[tuple[Any, Any, int], ...] = (
    (EventBatchRow, EventBatchRow.first_position, 50),
    (EventKeyRow, EventKeyRow.event_id, 2_000),
    (FrameRow, FrameRow.frame_id, 1_000),
    (BatchKeyRow, BatchKeyRow.batch_key, 500),
    (TagRow, TagRow.id, 500),
    (SessionStatusRow, SessionStatusRow.position, 500),
    (SealPortionRow, SealPortionRow.n, 50),
)
_EVENTS = 100


def object_folders(workspace_id: str, session_id: str) -> list[str]:
    """Return the folders that hold objects of a session: its frames, and the progress of its sealing."""
    return [f"{kind}/{workspace_id}/{session_id}/" for kind in ("frames", "sealing")]


def object_stores(runtime: Runtime) -> list[Blobs]:
    """Return the stores that hold objects of sessions: frames and archived frames."""
    return [runtime.blobs, Blobs(runtime.settings.cold_url)]


def remove_content(
    runtime: Runtime,
    purge: PurgeRow,
    *,
    open_transaction: OpenTransaction,
    on_removed: Callable[[DbSession], object] = lambda _: None,
) -> None:
    """Remove the objects and rows of a hidden session; it may be called again, also by two processes at once.

    Args:
        runtime: the deployment.
        purge: the session.
        open_transaction: opens a write transaction.
        on_removed: called in the transaction that removes the last rows.

    Raises:
        Unavailable: if a store or the database does not answer; what is left is removed by the next call.
    """
    for store in object_stores(runtime):
        for folder in object_folders(purge.workspace_id, purge.session_id):
            store.delete_below(folder)
    has_more = True
    while has_more:
        with open_transaction() as db:
            has_more = _remove_some_rows(db, purge)
            if not has_more:
                _remove_session(db, purge)
                on_removed(db)


def _remove_some_rows(db: DbSession, purge: PurgeRow) -> bool:
    """Remove rows of the session, a bounded number of each table; return whether some may be left."""
    has_more = False
    for table, key, limit in _ROWS:
        is_ours = col(table.session_id) == purge.session_id
        some = select(key).where(is_ours).limit(limit)
        deleted = db.connection().execute(delete(table).where(is_ours, col(key).in_(some))).rowcount
        has_more = has_more or deleted >= limit
    removed = remove_replays(db, purge.session_id)
    for replay_id in removed.ids:
        _remove_events(db, replay_id)  # a replay has three, a recovery two
        has_more = True
    request_recorded(db, purge, removed.recorded)
    return _remove_events(db, purge.session_id) or has_more


def _remove_events(db: DbSession, session_id: str) -> bool:
    """Remove events of the outbox with their deliveries; return whether some may be left."""
    waiting = select(OutboxRow.id).where(OutboxRow.subject_id == session_id).limit(_EVENTS)
    ids = list(db.exec(waiting.order_by(col(OutboxRow.id)).with_for_update()))
    # The events first: whoever dispatches one holds its row until its deliveries are stored.
    db.exec(delete(OutboxRow).where(col(OutboxRow.id).in_(ids)))
    # In the order in which workers lock attempts to store outcomes.
    attempts = select(DeliveryRow.id).where(col(DeliveryRow.event_id).in_(ids))
    locked = list(db.exec(attempts.order_by(col(DeliveryRow.id)).with_for_update()))
    db.exec(delete(DeliveryRow).where(col(DeliveryRow.id).in_(locked)))
    return len(ids) >= _EVENTS


def _remove_session(db: DbSession, purge: PurgeRow) -> None:
    """Remove the session's own rows, the answers that show it, and its rows in the memory graph."""
    session_id, answer = purge.session_id, IdempotencyRow
    db.exec(delete(SessionRow).where(col(SessionRow.id) == session_id))
    db.exec(delete(SessionMetadataRow).where(col(SessionMetadataRow.session_id) == session_id))
    db.exec(delete(answer).where(col(answer.resource_id) == session_id))
    of_tenant = (col(answer.workspace_id) == purge.workspace_id, col(answer.mode) == purge.mode)
    db.exec(delete(answer).where(*of_tenant, col(answer.path) == _SIMILAR))
    forget_holds(db, purge.workspace_id, [session_id])
    purge_sessions(db, GraphScope(purge.tenant, purge.workflow), [session_id])
    # Its streams end.
    note_change(db, SessionRow, session_id)
