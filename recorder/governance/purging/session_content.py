"""Content of sessions in the database and in the stores of objects, and its removal. Contract §2."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.access.idempotency_keys import delete_some_batch_stop_answers
from recorder.governance.holds import forget_holds
from recorder.governance.purging.purge_rows import request_purges_of_recordings
from recorder.memory.storage.graph_session_removal import (
    UnvisitedNames,
    are_names_current,
    find_unvisited_names,
    purge_sessions_from_graph,
)
from recorder.models.governance import PurgeRow
from recorder.models.operations import IdempotencyRow, OutboxRow, SealPortionRow, SweepRow
from recorder.models.session import SessionMetadataRow, SessionRow, SessionStatusRow, TagRow
from recorder.models.webhook import DeliveryRow
from recorder.recording.hot_rows import HOT_ROWS, RowsOfSessions, delete_some_hot_rows
from recorder.replay_service.requests.replay_removal import remove_some_replays
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from recorder.storage.database import OpenTransaction, note_change
from recorder.tenant import GraphScope, Tenant

#: Tables with rows of a session.
_ROWS = (
    *HOT_ROWS,
    RowsOfSessions(TagRow, TagRow.id, 500),
    RowsOfSessions(SessionStatusRow, SessionStatusRow.position, 500),
    RowsOfSessions(SealPortionRow, SealPortionRow.n, 50),
    RowsOfSessions(SweepRow, SweepRow.session_id, 500),
)
_EVENTS = 100
# An event has up to 100 webhooks with seven attempts each.
_DELIVERIES = 2_000
#: Reads of the names that leave memory graphs, which a rebuild or another purge may follow.
_NAME_READS = 3
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
    is_time_up: Callable[[], bool] = lambda: False,
) -> bool:
    """Remove the objects and rows of hidden sessions; it may be called again, also by two processes at once.

    Args:
        runtime: the deployment.
        purges: the sessions; their last rows are deleted in one transaction.
        open_transaction: opens a write transaction.
        on_removed: called in the transaction that removes the last rows.
        is_time_up: whether to leave further rows to the next call.

    Returns:
        Whether nothing is left.

    Raises:
        Unavailable: if a store or the database does not answer; what is left is removed by the next call.
    """
    folders = [
        folder for purge in purges for folder in list_content_folders(purge.workspace_id, purge.session_id)
    ]
    for store in list_content_stores(runtime):
        store.delete_below(*folders)
    for tenant in sorted({purge.tenant for purge in purges}):
        # All were stored before the sessions were hidden: later ones do not show them.
        has_more, began_s = True, time.monotonic()
        while has_more:
            with open_transaction() as db:
                has_more = delete_some_batch_stop_answers(db, tenant)
            if has_more and is_time_up():
                return False
            if has_more:
                began_s = _let_others_write(runtime, began_s)
    names, reads = _find_unvisited_names(runtime, purges), 1
    has_more, began_s = True, time.monotonic()
    while has_more:
        with open_transaction() as db:
            has_more = _remove_some_session_rows(db, purges, secret=runtime.settings.secret)
            is_stale = not has_more and not all(are_names_current(db, *each) for each in names.items())
            # After some reads they are read in the transaction, which ends in any case.
            has_more = has_more or (is_stale and reads < _NAME_READS)
            if not has_more:
                _remove_sessions(db, purges, names)
                on_removed(db)
        if has_more and is_stale:
            names, reads = _find_unvisited_names(runtime, purges), reads + 1
            continue
        if has_more and is_time_up():
            return False
        if has_more:
            began_s = _let_others_write(runtime, began_s)
    return True


def _let_others_write(runtime: Runtime, began_s: float) -> float:
    """Pause between two transactions; return the time at which the next one begins.

    Requests that wait for SQLite's lock try again from time to time, and would find it taken.
    """
    if runtime.database.is_sqlite:
        time.sleep(min(time.monotonic() - began_s, _LONGEST_PAUSE_S))
        runtime.database.checkpoint_log()
    return time.monotonic()


def _find_unvisited_names(runtime: Runtime, purges: Sequence[PurgeRow]) -> dict[GraphScope, UnvisitedNames]:
    """Return the names that leave each memory graph, read before the transaction that removes them.

    Else a graph with many variants would hold up all writers for the time that their reading takes.
    """
    names = {}
    for scope, session_ids in _group_by_graph(purges).items():
        with runtime.database.transaction(write=False) as db:
            names[scope] = find_unvisited_names(db, scope, session_ids)
    return names


def _group_by_graph(purges: Sequence[PurgeRow]) -> dict[GraphScope, list[str]]:
    """Return the session ids by their graph, sorted, since the workflow of each graph is locked."""
    groups: defaultdict[GraphScope, list[str]] = defaultdict(list)
    for purge in purges:
        groups[GraphScope(purge.tenant, purge.workflow)].append(purge.session_id)
    return dict(sorted(groups.items()))


def _remove_some_session_rows(db: DbSession, purges: Sequence[PurgeRow], *, secret: bytes) -> bool:
    """Remove rows of the sessions, a bounded number of each table; return whether some may be left."""
    session_ids = [purge.session_id for purge in purges]
    has_more = delete_some_hot_rows(db, session_ids, _ROWS)
    removed = remove_some_replays(db, session_ids)
    if removed.ids:
        # In this transaction: without their rows, no later one would find the ids.
        while _remove_session_outbox_events(db, removed.ids):
            pass
        _remove_answers(db, removed.ids)
        has_more = True
    request_purges_of_recordings(db, purges, removed.recorded, secret=secret)
    return _remove_session_outbox_events(db, session_ids) or has_more


def _remove_session_outbox_events(db: DbSession, subject_ids: Sequence[str]) -> bool:
    """Remove events of the outbox with their deliveries; return whether some may be left."""
    waiting = select(OutboxRow.id).where(col(OutboxRow.subject_id).in_(subject_ids)).limit(_EVENTS)
    event_ids = list(db.exec(waiting.order_by(col(OutboxRow.id)).with_for_update()))
    if not event_ids:
        return False
    ids = _take_events_up_to(db, event_ids, deliveries=_DELIVERIES)
    # The events first: whoever dispatches one holds its row until its deliveries are stored.
    db.connection().execute(delete(OutboxRow).where(col(OutboxRow.id).in_(ids)))
    _remove_answers(db, ids)
    # In the order in which workers lock attempts to store outcomes.
    attempts = select(DeliveryRow.id).where(col(DeliveryRow.event_id).in_(ids))
    locked = list(db.exec(attempts.order_by(col(DeliveryRow.id)).with_for_update()))
    db.connection().execute(delete(DeliveryRow).where(col(DeliveryRow.id).in_(locked)))
    return len(event_ids) >= _EVENTS or len(ids) < len(event_ids)


def _take_events_up_to(db: DbSession, ids: Sequence[str], *, deliveries: int) -> Sequence[str]:
    """Return the first events, at least one, that have no more deliveries than this together."""
    event_id = col(DeliveryRow.event_id)
    counts = dict(db.exec(select(event_id, func.count()).where(event_id.in_(ids)).group_by(event_id)).all())
    sums = accumulate(counts.get(id, 0) for id in ids)
    return ids[: max(1, sum(total <= deliveries for total in sums))]


def _remove_answers(db: DbSession, resource_ids: Sequence[str]) -> None:
    """Remove stored answers that show sessions, replays, recoveries or events."""
    db.connection().execute(delete(IdempotencyRow).where(col(IdempotencyRow.resource_id).in_(resource_ids)))


def _remove_sessions(
    db: DbSession, purges: Sequence[PurgeRow], names: Mapping[GraphScope, UnvisitedNames]
) -> None:
    """Remove the sessions' own rows, the answers that show them, and their rows in the memory graphs."""
    ids = [purge.session_id for purge in purges]
    db.connection().execute(delete(SessionRow).where(col(SessionRow.id).in_(ids)))
    db.connection().execute(delete(SessionMetadataRow).where(col(SessionMetadataRow.session_id).in_(ids)))
    _remove_answers(db, ids)
    by_tenant: defaultdict[Tenant, list[PurgeRow]] = defaultdict(list)
    for purge in purges:
        by_tenant[purge.tenant].append(purge)
    for tenant, group in sorted(by_tenant.items()):
        forget_holds(db, tenant.workspace_id, [purge.session_id for purge in group])
        for scope, session_ids in _group_by_graph(group).items():
            purge_sessions_from_graph(db, scope, session_ids, names[scope])
    for session_id in ids:
        # Its streams end.
        note_change(db, SessionRow, session_id)
