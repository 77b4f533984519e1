"""Content of sessions in the database and in the stores of objects, and its removal. Contract §2."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.governance.holds import forget_holds
from recorder.governance.purging.purge_rows import request_purges_of_recordings
from recorder.memory.storage.graph_session_removal import purge_sessions_from_graph
from recorder.models.governance import PurgeRow
from recorder.models.operations import IdempotencyRow, OutboxRow, SealPortionRow, SweepRow
from recorder.models.session import SessionMetadataRow, SessionRow, SessionStatusRow, TagRow
from recorder.models.webhook import DeliveryRow
from recorder.recording.hot_rows import HOT_ROWS, RowsOfSessions, delete_some_hot_rows
from recorder.replay_service.requests.replay_removal import remove_some_replays
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from recorder.storage.conditions import in_tenant
from recorder.storage.database import note_change
from recorder.tenant import GraphScope, Tenant

#: Opens a write transaction, under the lease of a run where there is one.
OpenTransaction = Callable[[], AbstractContextManager[DbSession]]

#: Answers of these addresses show several sessions: their metadata, or ids and statuses.
_OF_SEVERAL = ("/v1/memory/similar", "/v1/sessions:batch_stop")
#: Tables with rows of a session.
_ROWS = (
    *HOT_ROWS,
    RowsOfSessions(TagRow, TagRow.id, 500),
    RowsOfSessions(SessionStatusRow, SessionStatusRow.position, 500),
    RowsOfSessions(SealPortionRow, SealPortionRow.n, 50),
    RowsOfSessions(SweepRow, SweepRow.session_id, 500),
)
_EVENTS = 100
#: A pause between two transactions is as long as the one before, within this bound.
_LONGEST_PAUSE_S = 0.1


def list_content_folders(workspace_id: str, session_id: str) -> list[str]:
    """Return the folders that hold objects of a session: its frames, and the progress of its sealing."""
    return [f"{kind}/{workspace_id}/{session_id}/" for kind in ("frames", "sealing")]


def list_content_stores(runtime: Runtime) -> list[Blobs]:
    """Return the stores that hold objects of sessions: frames and archived frames."""
    return [runtime.blobs, Blobs(runtime.settings.cold_url)]


def remove_session_contents(
    runtime: Runtime,
    purges: Sequence[PurgeRow],
    *,
    open_transaction: OpenTransaction,
    on_removed: Callable[[DbSession], object] = lambda _: None,
) -> None:
    """Remove the objects and rows of hidden sessions; it may be called again, also by two processes at once.

    Args:
        runtime: the deployment.
        purges: the sessions; their last rows are deleted in one transaction.
        open_transaction: opens a write transaction.
        on_removed: called in the transaction that removes the last rows.

    Raises:
        Unavailable: if a store or the database does not answer; what is left is removed by the next call.
    """
    folders = [
        folder for purge in purges for folder in list_content_folders(purge.workspace_id, purge.session_id)
    ]
    for store in list_content_stores(runtime):
        store.delete_below(*folders)
    has_more, began_s = True, time.monotonic()
    while has_more:
        with open_transaction() as db:
            has_more = _remove_some_session_rows(db, purges)
            if not has_more:
                _remove_sessions(db, purges)
                on_removed(db)
        if has_more and runtime.database.is_sqlite:
            # Requests that wait for SQLite's lock try again from time to time, and would find it taken.
            time.sleep(min(time.monotonic() - began_s, _LONGEST_PAUSE_S))
            runtime.database.checkpoint_log()
            began_s = time.monotonic()


def _remove_some_session_rows(db: DbSession, purges: Sequence[PurgeRow]) -> bool:
    """Remove rows of the sessions, a bounded number of each table; return whether some may be left."""
    session_ids = [purge.session_id for purge in purges]
    has_more = delete_some_hot_rows(db, session_ids, _ROWS)
    removed = remove_some_replays(db, session_ids)
    if removed.ids:
        _remove_session_outbox_events(db, removed.ids)  # a replay has three, a recovery two
        _remove_answers(db, removed.ids)
        has_more = True
    request_purges_of_recordings(db, purges, removed.recorded)
    return _remove_session_outbox_events(db, session_ids) or has_more


def _remove_session_outbox_events(db: DbSession, subject_ids: Sequence[str]) -> bool:
    """Remove events of the outbox with their deliveries; return whether some may be left."""
    waiting = select(OutboxRow.id).where(col(OutboxRow.subject_id).in_(subject_ids)).limit(_EVENTS)
    ids = list(db.exec(waiting.order_by(col(OutboxRow.id)).with_for_update()))
    if not ids:
        return False
    # The events first: whoever dispatches one holds its row until its deliveries are stored.
    db.connection().execute(delete(OutboxRow).where(col(OutboxRow.id).in_(ids)))
    _remove_answers(db, ids)
    # In the order in which workers lock attempts to store outcomes.
    attempts = select(DeliveryRow.id).where(col(DeliveryRow.event_id).in_(ids))
    locked = list(db.exec(attempts.order_by(col(DeliveryRow.id)).with_for_update()))
    db.connection().execute(delete(DeliveryRow).where(col(DeliveryRow.id).in_(locked)))
    return len(ids) >= _EVENTS


def _remove_answers(db: DbSession, resource_ids: Sequence[str]) -> None:
    """Remove kept answers that show sessions, replays, recoveries or events."""
    db.connection().execute(delete(IdempotencyRow).where(col(IdempotencyRow.resource_id).in_(resource_ids)))


def _remove_sessions(db: DbSession, purges: Sequence[PurgeRow]) -> None:
    """Remove the sessions' own rows, the answers that show them, and their rows in the memory graphs."""
    ids, answer = [purge.session_id for purge in purges], IdempotencyRow
    db.connection().execute(delete(SessionRow).where(col(SessionRow.id).in_(ids)))
    db.connection().execute(delete(SessionMetadataRow).where(col(SessionMetadataRow.session_id).in_(ids)))
    _remove_answers(db, ids)
    by_tenant: defaultdict[Tenant, list[PurgeRow]] = defaultdict(list)
    for purge in purges:
        by_tenant[purge.tenant].append(purge)
    for tenant, group in sorted(by_tenant.items()):
        db.connection().execute(
            delete(answer).where(*in_tenant(answer, tenant), col(answer.path).in_(_OF_SEVERAL))
        )
        forget_holds(db, tenant.workspace_id, [purge.session_id for purge in group])
        # Sorted, since each graph's workflow is locked.
        for workflow in sorted({purge.workflow for purge in group}):
            of_graph = [purge.session_id for purge in group if purge.workflow == workflow]
            purge_sessions_from_graph(db, GraphScope(tenant, workflow), of_graph)
    for session_id in ids:
        # Its streams end.
        note_change(db, SessionRow, session_id)
