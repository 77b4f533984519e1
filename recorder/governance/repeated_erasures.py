"""Erasures of a restored copy that were requested after its backup. Contract §7."""

from collections.abc import Sequence
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.governance.erasure_search import request_erasure_purges
from recorder.governance.erasure_subjects import hash_texts
from recorder.governance.erasures import COUNTED, ERASURE_DUE
from recorder.masking.policies import list_masking_replacements
from recorder.models.governance import ErasureRow
from recorder.models.operations import AuditRow
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.runtime import Runtime

#: Sessions that one transaction hides, and sessions that are read at once.
_CHUNK = 100
_REPEATED_ROWS = 1_000


def repeat_erasures(runtime: Runtime, workspace_id: str, requests: Sequence[AuditRow]) -> None:
    """Begin the erasures of a restored copy that were requested after its backup.

    The audit log holds no subjects: every text of a session is hashed and compared. `run_erasures` ends them.

    Args:
        runtime: the restored deployment, which nothing else works on.
        workspace_id: the workspace.
        requests: its entries `privacy.request`, of which some may have ended before.
    """
    if not requests:
        return
    secret = runtime.settings.secret
    wanted: dict[str, list[AuditRow]] = {}
    with runtime.database.transaction(write=True) as db:
        replacements = list_masking_replacements(db, workspace_id)
        for entry in requests:
            for digest in (entry.details["subject_hash"], *entry.details.get("token_hashes", ())):
                wanted.setdefault(digest, []).append(entry)
            if db.get(ErasureRow, entry.resource_id) is None:
                db.add(_make_repeated_erasure(entry))
    after = ""
    while True:
        with runtime.database.transaction(write=False) as db:
            rows = _read_texts_for_erasure(db, workspace_id, after)
        matches: dict[str, list[str]] = {}
        for row, metadata, source_hashes in rows:
            hashes = hash_texts(secret, workspace_id, [row.actor_id, metadata], replacements)
            for digest in hashes.union(source_hashes or ()):
                for entry in wanted.get(digest, ()):
                    if _is_of_erasure(row, entry):
                        matches.setdefault(entry.resource_id, []).append(row.id)
        for erasure_id, session_ids in matches.items():
            for start in range(0, len(session_ids), _CHUNK):
                with runtime.database.transaction(write=True) as db:
                    request_erasure_purges(db, erasure_id, session_ids[start : start + _CHUNK])
        if len(rows) < _REPEATED_ROWS:
            return
        after = rows[-1][0].id


def _is_of_erasure(row: SessionRow, entry: AuditRow) -> bool:
    """Return whether a session was created before the request of an erasure, and is of its modes.

    The newest session at the request may be of a later time, since clocks differ.
    """
    until = entry.details.get("sessions_until")
    last = entry.at if until is None else clock.parse_time(until, name="sessions_until")
    return row.created_at <= last and (entry.mode == "live" or row.mode == "test")


def _make_repeated_erasure(entry: AuditRow) -> ErasureRow:
    return ErasureRow(
        id=entry.resource_id,
        workspace_id=entry.workspace_id,
        mode=entry.mode or "live",
        status="running",
        subject_hash=entry.details["subject_hash"],
        subject=b"",
        created_at=entry.at,
        due_by=entry.at + ERASURE_DUE,
        is_searched=True,
        counts=dict.fromkeys(COUNTED, 0),
    )


def _read_texts_for_erasure(db: DbSession, workspace_id: str, after: str) -> list[Any]:
    statement = (
        select(SessionRow, SessionMetadataRow.metadata_, SessionMetadataRow.source_hashes)
        .join(SessionMetadataRow, col(SessionMetadataRow.session_id) == col(SessionRow.id), isouter=True)
        .where(SessionRow.workspace_id == workspace_id, col(SessionRow.id) > after)
    )
    return list(db.exec(statement.order_by(col(SessionRow.id)).limit(_REPEATED_ROWS)))
