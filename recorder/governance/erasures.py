"""Erasure of a person's data: the request, and what is read of it. Spec §4.5; contract §7.

The open request keeps the subject encrypted. Its sessions are found in ranges of ids, and purged by the same
routine as all others. At the end the row is deleted: the audit log keeps it.
"""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock, limits
from recorder.access.keys import Caller
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import LimitReached, NotFound
from recorder.governance.erasure_subjects import encrypt_subject, hash_subject, hash_tokens
from recorder.ids import is_id, last_id_of_instant, new_timed_id
from recorder.models.governance import Erasure, ErasureCreate, ErasureRow
from recorder.models.operations import AuditRow
from recorder.models.session import SessionRow
from recorder.storage.conditions import in_tenant
from recorder.storage.upsert import insert_if_missing
from recorder.tenant import Tenant

ERASURE_DUE = timedelta(days=30)
#: Modes that an erasure covers, by the mode of its key, in the order of the search.
SEARCHED_MODES = {"live": ("live", "test"), "test": ("test",)}
#: Members of `counts`.
COUNTED = ("sessions", "events", "frames", "bytes", "shards", "nodes", "exports", "deliveries")


def request_erasure(
    db: DbSession, secret: bytes, caller: Caller, origin: Origin, body: ErasureCreate
) -> Erasure:
    """Queue the erasure of a subject; while one of the same subject is open, that one is returned.

    Raises:
        LimitReached: if the workspace has as many open erasures as it may.
    """
    subject_hash = hash_subject(secret, caller.workspace_id, body.subject)
    same = select(ErasureRow).filter_by(
        workspace_id=caller.workspace_id, mode=caller.mode, subject_hash=subject_hash
    )
    erasure_id, now = new_timed_id("era")
    newest = _find_newest_session(db, caller.workspace_id, SEARCHED_MODES[caller.mode])
    row = ErasureRow(
        id=erasure_id,
        workspace_id=caller.workspace_id,
        mode=caller.mode,
        subject_hash=subject_hash,
        open_key=f"{caller.mode}:{subject_hash}",
        subject=encrypt_subject(secret, body.subject, erasure_id),
        created_at=now,
        due_by=now + ERASURE_DUE,
        # No id of a session, which may be among those to erase.
        newest_id=None if newest is None else last_id_of_instant(newest),
        counts=dict.fromkeys(COUNTED, 0),
    )
    is_made = False
    while not is_made:
        # An open one may also be of an earlier release, or repeated by a restore, without the unique key.
        open_row = db.exec(same.order_by(col(ErasureRow.id))).first()
        if open_row is not None:
            return describe_erasure(open_row)
        _check_open_erasure_limit(db, caller.workspace_id)
        # A request at the same moment makes this wait and insert nothing.
        is_made = insert_if_missing(db, ErasureRow, row.model_dump())
    # After a restore of an older backup both kinds of hashes find the subject again.
    tokens = hash_tokens(secret, caller.workspace_id, body.subject)
    details = {"scope": body.scope, "subject_hash": subject_hash, "token_hashes": tokens}
    newest_at = db.exec(select(SessionRow.created_at).where(SessionRow.id == newest)).first()
    if newest_at is not None and newest_at > now:
        # By a host whose clock is ahead.
        details["sessions_until"] = clock.to_iso(newest_at)
    record_audit_entry(
        db, origin, "privacy.request", resource_type="erasure", resource_id=row.id, details=details
    )
    return describe_erasure(row)


def find_erasure(db: DbSession, caller: Caller, erasure_id: str) -> Erasure:
    """Return an erasure of the caller's workspace and mode, an ended one from the audit log.

    Raises:
        NotFound: if there is no such erasure.
    """
    if not is_id(erasure_id, "era"):
        raise NotFound("erasure")
    row = db.get(ErasureRow, erasure_id)
    if row is not None and (row.workspace_id, row.mode) == (caller.workspace_id, caller.mode):
        return describe_erasure(row)
    ended = select(AuditRow.details).where(
        AuditRow.workspace_id == caller.workspace_id,
        AuditRow.action == "privacy.erase",
        AuditRow.resource_id == erasure_id,
        AuditRow.mode == caller.mode,
    )
    details = db.exec(ended).first()
    if details is None:
        raise NotFound("erasure")
    return Erasure.model_validate(details)


def _find_newest_session(db: DbSession, workspace_id: str, modes: Sequence[str]) -> str | None:
    """Return the newest session of some modes of a workspace."""
    tenants = [Tenant(workspace_id, mode) for mode in modes]
    newest = [
        db.exec(select(func.max(SessionRow.id)).where(*in_tenant(SessionRow, each))).one() for each in tenants
    ]
    return max((session_id for session_id in newest if session_id is not None), default=None)


def _check_open_erasure_limit(db: DbSession, workspace_id: str) -> None:
    """Check that a workspace may have one more open erasure.

    Raises:
        LimitReached: if it has too many.
    """
    counted = select(func.count()).select_from(ErasureRow).where(ErasureRow.workspace_id == workspace_id)
    if db.exec(counted).one() >= limits.OPEN_ERASURES:
        what, remedy = "erasures that have not ended", "wait until some have ended"
        raise LimitReached(what, limits.OPEN_ERASURES, remedy)


def describe_erasure(row: ErasureRow) -> Erasure:
    """Return an open erasure as an object of the interface."""
    return Erasure(
        id=row.id,
        status="running" if row.status == "running" else "queued",
        scope="all",
        subject_hash=row.subject_hash,
        created_at=row.created_at,
        due_by=row.due_by,
        completed_at=None,
        counts=dict.fromkeys(COUNTED, 0) | row.counts | {"exports": len(row.exports)},
        error=None,
    )
