"""Pruning of the audit log: expired entries keep number and hashes alone. Contract §7 (audit).

The entry `audit.prune` says up to which number entries were pruned, so that nothing else can pass for pruned.
"""

from datetime import datetime

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, insert, select

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
        limit: most entries to prune.
    """
    row = AuditRow
    of_workspace = select(row.number, row.at, row.prev_hash, row.hash).where(row.workspace_id == workspace_id)
    pruned = []
    for number, at, prev_hash, entry_hash in db.exec(of_workspace.order_by(col(row.number)).limit(limit)):
        if at >= before:
            break
        pruned.append(
            {"workspace_id": workspace_id, "number": number, "prev_hash": prev_hash, "hash": entry_hash}
        )
    if not pruned:
        return 0
    through = pruned[-1]["number"]
    db.connection().execute(insert(AuditHashRow), pruned)
    db.exec(delete(row).where(col(row.workspace_id) == workspace_id, col(row.number) <= through))
    record_audit_entry(
        db,
        Origin.system(workspace_id, "retention"),
        "audit.prune",
        resource_type="workspace",
        resource_id=workspace_id,
        details={"entries": len(pruned), "through": through},
    )
    return len(pruned)
