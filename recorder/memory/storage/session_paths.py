"""Paths that sessions are counted on, read for a few sessions at once. Contract §2 (path_id)."""

from collections.abc import Sequence
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import and_, col, select

from recorder.memory.storage.graph_store import split_graph_session_ids
from recorder.models.memory import GraphPathRow, GraphTraceRow, GraphVariantRow, SessionPathRow
from recorder.models.session import SessionRow


def read_path_ids(db: DbSession, session_ids: Sequence[str]) -> dict[str, str]:
    """Return the id of the path of each session; sessions that are on none are left out.

    These are sessions that are not sealed, were sealed in a pause, or have no steps.
    """
    session, trace, variant, path = SessionPathRow, GraphTraceRow, GraphVariantRow, GraphPathRow
    statement = (
        select(session.session_id, path.path_id)
        .join(
            trace,
            and_(
                *_match_graph_of_session_path(session, trace), col(trace.trace_key) == col(session.trace_key)
            ),
        )
        .join(
            variant,
            and_(
                *_match_graph_of_session_path(session, variant),
                col(variant.variant_key) == col(trace.variant_key),
            ),
        )
        .join(path, and_(*_match_graph_of_session_path(session, path), col(path.number) == col(variant.path)))
        .where(col(session.removed_version).is_(None))
    )
    path_ids: dict[str, str] = {}
    for part in split_graph_session_ids(session_ids):
        path_ids.update(db.exec(statement.where(col(session.session_id).in_(part))).all())
    return path_ids


def read_path_id(db: DbSession, row: SessionRow) -> str | None:
    """Return the id of the path of a session; None where it is on none."""
    return read_path_ids(db, [row.id]).get(row.id) if row.status == "sealed" else None


def _match_graph_of_session_path(session: type[SessionPathRow], table: Any) -> list[Any]:
    names = ("workspace_id", "mode", "workflow")
    return [getattr(table, name) == getattr(session, name) for name in names]
