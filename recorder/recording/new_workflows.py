"""Creation of workflows by their first session or by a PATCH, up to the limit of a workspace. Contract §4."""

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, or_, select, update

from recorder import clock, limits
from recorder.errors import LimitReached
from recorder.models.session import SessionRow
from recorder.models.workflow import WorkflowRow
from recorder.models.workspace import WorkspaceRow
from recorder.storage.conditions import in_tenant
from recorder.storage.upsert import insert_if_missing, insert_or_update
from recorder.tenant import Tenant


def count_session_in_workflow(db: DbSession, row: SessionRow) -> None:
    """Count a new session in its workflow, which its first session creates.

    Raises:
        LimitReached: if the workflow is missing and the workspace has as many as it may.
    """
    count = col(WorkflowRow.session_count) + 1
    counted = {"session_count": count, "last_session_at": row.created_at}
    known = update(WorkflowRow).where(
        *in_tenant(WorkflowRow, row.tenant), col(WorkflowRow.workflow) == row.workflow
    )
    if db.connection().execute(known.values(counted)).rowcount:
        return
    _require_room_for_workflow(db, row.tenant, row.workflow)
    fresh = {
        "workspace_id": row.workspace_id,
        "mode": row.mode,
        "workflow": row.workflow,
        "memory_graph": True,
        "tags": [],
        "session_count": 1,
        "last_session_at": row.created_at,
        "created_at": row.created_at,
        "updated_at": row.created_at,
    }
    insert_or_update(db, WorkflowRow, fresh, update=counted)


def make_workflow_if_missing(db: DbSession, tenant: Tenant, workflow: str) -> bool:
    """Create a workflow without sessions; return whether it was missing.

    Raises:
        LimitReached: if it is missing and the workspace has as many as it may.
    """
    known = select(WorkflowRow.workflow).filter_by(
        workspace_id=tenant.workspace_id, mode=tenant.mode, workflow=workflow
    )
    if db.exec(known).first() is not None:
        return False
    _require_room_for_workflow(db, tenant, workflow)
    now = clock.now()
    fresh = {
        "workspace_id": tenant.workspace_id,
        "mode": tenant.mode,
        "workflow": workflow,
        "memory_graph": True,
        "tags": [],
        "session_count": 0,
        "created_at": now,
        "updated_at": now,
    }
    return insert_if_missing(db, WorkflowRow, fresh)


def _require_room_for_workflow(db: DbSession, tenant: Tenant, workflow: str) -> None:
    # Another creation waits here until this transaction ends, and then counts its workflow.
    db.exec(select(WorkspaceRow.id).filter_by(id=tenant.workspace_id).with_for_update()).first()
    row = WorkflowRow
    # Counted without this one, which another transaction may have made by now.
    is_other = or_(row.mode != tenant.mode, row.workflow != workflow)
    others = select(func.count()).select_from(row).where(row.workspace_id == tenant.workspace_id, is_other)
    if db.exec(others).one() >= limits.WORKFLOWS_PER_WORKSPACE:
        remedy = "use one that exists, and put what varies into metadata or tags"
        raise LimitReached("workflows", limits.WORKFLOWS_PER_WORKSPACE, remedy)
