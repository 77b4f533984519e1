"""Index of the sessions of exports: rows are written before a plan is stored, and deleted in portions.

An export never has a session without a row; a row without a session is harmless. Contract §7.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, exists, select

from recorder.models.export import ExportRow, ExportSessionRow
from recorder.models.governance import PurgeRow
from recorder.storage.database import OpenTransaction
from recorder.storage.upsert import insert_missing_rows

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
    for ids in _split_indexed_session_ids(session_ids):
        some = col(ExportSessionRow.session_id).in_(ids)
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


def find_next_indexed_export(
    db: DbSession, session_ids: Sequence[str], *, before: str | None = None
) -> tuple[str, list[str]] | None:
    """Return the newest export that may have some of the sessions, with these; None if there is none.

    A session costs two searches of an index, however many exports have it.

    Args:
        db: database session.
        session_ids: sessions whose purge has begun.
        before: id of an export; only older ones are searched. None searches all.
    """
    row, purge = ExportSessionRow, PurgeRow
    is_older = () if before is None else (col(row.export_id) < before,)
    newest = select(func.max(row.export_id)).where(row.session_id == purge.session_id, *is_older)
    newest_of_each = newest.correlate(purge).scalar_subquery()
    export_id = ""
    for ids in _split_indexed_session_ids(session_ids):
        newest_of_all = select(func.max(newest_of_each)).where(col(purge.session_id).in_(ids))
        export_id = max(export_id, db.exec(newest_of_all).one() or "")
    if not export_id:
        return None
    present: list[str] = []
    for ids in _split_indexed_session_ids(session_ids):
        of_export = (col(row.session_id).in_(ids), row.export_id == export_id)
        present += db.exec(select(row.session_id).where(*of_export).order_by(col(row.session_id)))
    return export_id, present


def find_indexed_sessions(db: DbSession, session_ids: Sequence[str]) -> set[str]:
    """Return the sessions among these that an export may have, and whose purge has begun."""
    exported: set[str] = set()
    for ids in _split_indexed_session_ids(session_ids):
        has_export = exists().where(col(ExportSessionRow.session_id) == col(PurgeRow.session_id))
        exported.update(
            db.exec(select(PurgeRow.session_id).where(col(PurgeRow.session_id).in_(ids), has_export))
        )
    return exported


def _split_indexed_session_ids(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids of an export's sessions, as many at once as one statement of the index takes."""
    for start in range(0, len(ids), _IDS_AT_ONCE):
        yield ids[start : start + _IDS_AT_ONCE]


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
