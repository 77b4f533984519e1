"""Pruning of the audit log: expired entries keep number and hashes alone. Contract §7 (audit).

The entry `audit.prune` says up to which number entries were pruned, so that nothing else can pass for pruned.
"""

from datetime import datetime

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, insert, select

from recorder import clock
from recorder.audit.log import Origin, record_audit_entry
from recorder.models.governance import AuditHashRow
from recorder.models.operations import AuditRow


def count_audit_entries_to_prune(db: DbSession, workspace_id: str, *, before: datetime) -> int:
    """Return the number of entries of a workspace that are older than an instant."""
    expired = (AuditRow.workspace_id == workspace_id, col(AuditRow.at) < before)
    return db.exec(select(func.count()).select_from(AuditRow).where(*expired)).one()


def prune_audit_entries(db: DbSession, workspace_id: str, *, before: datetime, limit: int) -> int:
    """Prune the first entries of a chain up to the first that is young enough; return their number.

    Args:
        db: a write transaction.
        workspace_id: workspace of the chain.
        before: entries from this instant on are kept.
        limit: entries after which a call ends.
    """
    row = AuditRow
    through = _find_last_entry_to_prune(db, workspace_id, before=before, limit=limit)
    if through is None:
        return 0
    is_pruned = (col(row.workspace_id) == workspace_id, col(row.number) <= through)
    pruned = [
        {"workspace_id": workspace_id, "number": number, "prev_hash": prev_hash, "hash": entry_hash}
        for number, prev_hash, entry_hash in db.exec(
            select(row.number, row.prev_hash, row.hash).where(*is_pruned)
        )
    ]
    db.connection().execute(insert(AuditHashRow), pruned)
    db.exec(delete(row).where(*is_pruned))
    record_audit_entry(
        db,
        Origin.system(workspace_id, "retention"),
        "audit.prune",
        resource_type="workspace",
        resource_id=workspace_id,
        details={"entries": len(pruned), "through": through},
    )
    return len(pruned)


def _find_last_entry_to_prune(
    db: DbSession, workspace_id: str, *, before: datetime, limit: int
) -> int | None:
    """Return the number of the last expired entry before the first that is young enough.

    An entry whose time has not come was written while the clock was ahead. It is as old as its neighbours: it
    is pruned with the entries after it, and does not keep them.
    """
    now, last, through = clock.now(), 0, None
    while True:
        page = select(AuditRow.number, AuditRow.at).where(
            AuditRow.workspace_id == workspace_id, col(AuditRow.number) > last
        )
        entries = db.exec(page.order_by(col(AuditRow.number)).limit(limit)).all()
        for number, at in entries:
            if at < before:
                through = number
            elif at <= now:
                return through
        last = entries[-1][0] if entries else last
        # Behind entries of a clock that was ahead, the next page says whether they are pruned.
        if through == last or len(entries) < limit:
            return through
