"""Index of the sessions of exports: rows are written before a plan is stored, and deleted in portions.

An export never has a session without a row; a row without a session is harmless. Contract §7.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice

from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.models.export import ExportRow, ExportSessionRow
from recorder.models.governance import PurgeRow
from recorder.storage.upsert import insert_missing_rows

#: Opens a write transaction under the lease of a run.
OpenTransaction = Callable[[], AbstractContextManager[DbSession]]

#: Rows of one transaction: on SQLite no other request can write while it lasts.
_ROWS = 5_000
_IDS_AT_ONCE = 500


def index_export_sessions(
    open_transaction: OpenTransaction, export_id: str, session_ids: Iterable[str]
) -> None:
    """Store the sessions of an export."""
    ids = iter(session_ids)
    while chunk := list(islice(ids, _ROWS)):
        rows = [{"session_id": session_id, "export_id": export_id} for session_id in chunk]
        with open_transaction() as db:
            insert_missing_rows(db, ExportSessionRow, rows)


def delete_session_index_rows(db: DbSession, export_id: str, session_ids: Sequence[str]) -> None:
    """Delete the rows of some sessions of an export."""
    for start in range(0, len(session_ids), _IDS_AT_ONCE):
        some = col(ExportSessionRow.session_id).in_(session_ids[start : start + _IDS_AT_ONCE])
        db.exec(delete(ExportSessionRow).where(some, col(ExportSessionRow.export_id) == export_id))


def delete_export_index_rows(open_transaction: OpenTransaction, export_id: str) -> None:
    """Delete all rows of an export whose files are gone."""
    some = select(ExportSessionRow.session_id).where(ExportSessionRow.export_id == export_id).limit(_ROWS)
    is_over = False
    while not is_over:
        with open_transaction() as db:
            ids = list(db.exec(some))
            delete_session_index_rows(db, export_id, ids)
        is_over = len(ids) < _ROWS


def find_indexed_exports(db: DbSession, session_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the exports that may have some of the sessions, the newest first, with these sessions."""
    sessions: defaultdict[str, list[str]] = defaultdict(list)
    for start in range(0, len(session_ids), _IDS_AT_ONCE):
        some = col(ExportSessionRow.session_id).in_(session_ids[start : start + _IDS_AT_ONCE])
        rows = select(ExportSessionRow.export_id, ExportSessionRow.session_id).where(some)
        for export_id, session_id in db.exec(rows):
            sessions[export_id].append(session_id)
    return dict(sorted(sessions.items(), reverse=True))


def find_purged_indexed_sessions(db: DbSession, export_id: str) -> dict[str, str]:
    """Return the sessions of an export whose purge has begun, with its cause."""
    statement = (
        select(PurgeRow.session_id, PurgeRow.cause)
        .join(ExportSessionRow, col(ExportSessionRow.session_id) == col(PurgeRow.session_id))
        .where(ExportSessionRow.export_id == export_id)
    )
    return dict(db.exec(statement).all())


def has_indexed_session(db: DbSession, export_id: str, session_id: str) -> bool:
    """Return whether an export may have a session."""
    return db.get(ExportSessionRow, (session_id, export_id)) is not None


def list_unindexed_exports(db: DbSession, workspace_id: str) -> Iterator[ExportRow]:
    """Yield the exports of a workspace with a plan of an earlier release, whose sessions are not stored."""
    statement = select(ExportRow).where(
        ExportRow.workspace_id == workspace_id,
        ~col(ExportRow.is_indexed),
        col(ExportRow.plan_key).is_not(None),
    )
    yield from db.exec(statement.order_by(col(ExportRow.id)))
