"""Exports as clients ask for them: create, find and list; the row is the queue. Spec §4.3, contract §5."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import func, insert
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import limits
from recorder.access.quota import require_export_row_quota
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import (
    InvalidDestination,
    LimitReached,
    NotFound,
    Unavailable,
    UnknownWorkflow,
    ValidationFailed,
    json_pointer,
)
from recorder.exports.destinations import open_destination
from recorder.exports.planning.selection import count_awaited_in_selection
from recorder.exports.requests.export_wire_objects import emit_export_event
from recorder.exports.requests.validation import validate_export_request
from recorder.ids import is_id
from recorder.memory.queries.path_selection import workflow_of_path
from recorder.models.export import ExportRow, ExportWorkflowRow
from recorder.models.export_request import ExportCreate
from recorder.models.workflow import WorkflowRow
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.storage.conditions import has_text, in_tenant
from recorder.storage.list_pages import FetchedPage, fetch_newest_rows
from recorder.tenant import Tenant


def require_queueable_draft(db: DbSession, draft: ExportRow) -> None:
    """Check that the workflows and the path of a draft exist, and that it may be queued.

    Raises:
        NotFound: if a workflow or the path is unknown.
        ValidationFailed: if the path is of a workflow that is not exported.
        LimitReached: if too many exports of the workspace are queued or running.
        QuotaExceeded: if no rows to export are left.
    """
    _require_workflows_to_queue(db, draft.tenant, draft.spec["workflow"])
    _require_path_of_exported_workflow(db, draft.tenant, draft.spec)
    _require_open_export_place(db, draft.workspace_id)
    require_export_row_quota(db, draft.tenant)


def prepare_export_draft(db: DbSession, draft: ExportRow) -> None:
    """Check that a draft may be queued, and count the sessions that it would wait for.

    Counting may take long where many sessions wait: call it in a transaction that does not write.

    Raises:
        NotFound, ValidationFailed, LimitReached, QuotaExceeded: as `require_queueable_draft`.
    """
    require_queueable_draft(db, draft)
    draft.awaited_sessions = count_awaited_in_selection(db, draft.tenant, draft.spec) or None


def probe_draft_destination(draft: ExportRow, settings: Settings) -> None:
    """Write and remove one file at the destination of a draft. Takes seconds: call it outside transactions.

    Raises:
        DestinationNotAllowed, InvalidDestination: if files may not or cannot be written there.
        Unavailable: if the store does not answer.
    """
    try:
        open_destination(draft, settings).probe()
    except InvalidDestination as error:
        if draft.destination["kind"] != "signed_url":
            raise
        # The operator chose this store, not the client.
        raise Unavailable("The export store") from error


def queue_draft_export(db: DbSession, settings: Settings, draft: ExportRow, *, origin: Origin) -> ExportRow:
    """Queue the export of a draft that was prepared and whose destination was probed.

    Needs a write transaction.

    Raises:
        NotFound, ValidationFailed, LimitReached, QuotaExceeded: as `require_queueable_draft`.
    """
    require_queueable_draft(db, draft)
    row, workflows = draft, draft.spec["workflow"]
    db.add(row)
    common = {"export_id": row.id, "workspace_id": row.workspace_id, "mode": row.mode}
    db.execute(insert(ExportWorkflowRow), [common | {"workflow": workflow} for workflow in workflows])
    emit_export_event(db, row, settings, "export.queued")
    details = {"workflow": workflows, "format": row.format, "destination": row.destination, "tag": row.tag}
    record_audit_entry(
        db, origin, "export.create", resource_type="export", resource_id=row.id, details=details
    )
    return row


def create_export(
    runtime: Runtime,
    tenant: Tenant,
    body: ExportCreate,
    *,
    origin: Origin,
    on_stored: Callable[[DbSession, ExportRow], object] | None = None,
) -> ExportRow:
    """Check a request, probe its destination and queue the export, in transactions of their own.

    Args:
        runtime: deployment.
        tenant: workspace and mode of the export.
        body: request.
        origin: who sends the request, for the audit log.
        on_stored: called in the transaction that queues the export.

    Raises:
        RecorderError: as `validate_export_request`, `prepare_export_draft` and `probe_draft_destination`.
    """
    draft = validate_export_request(tenant, body)
    with runtime.database.transaction(write=False) as db:
        prepare_export_draft(db, draft)
    probe_draft_destination(draft, runtime.settings)
    with runtime.database.transaction(write=True) as db:
        row = queue_draft_export(db, runtime.settings, draft, origin=origin)
        if on_stored is not None:
            on_stored(db, row)
        return row


def find_export(db: DbSession, tenant: Tenant, export_id: str) -> ExportRow:
    """Return an export of the caller's workspace and mode.

    Raises:
        NotFound: if it is missing or of another workspace or mode.
    """
    # Text that is no id may have characters that a database refuses.
    row = db.get(ExportRow, export_id) if is_id(export_id, "exp") else None
    if row is None or (row.workspace_id, row.mode) != (tenant.workspace_id, tenant.mode):
        raise NotFound("export")
    return row


def list_exports(
    db: DbSession,
    tenant: Tenant,
    *,
    workflows: tuple[str, ...],
    status: str | None,
    tag: str | None = None,
    before_id: str | None,
    limit: int,
) -> FetchedPage[ExportRow, str]:
    """Return a page of exports, newest first; its position is the id of the last one.

    Args:
        db: database session.
        tenant: workspace and mode of the exports.
        workflows: exports that hold at least one of them; empty takes all.
        status: exports in this state; None takes all.
        tag: exports with this label; None takes all.
        before_id: the last id of the page before.
        limit: most exports of a page.
    """
    statement = select(ExportRow).where(*in_tenant(ExportRow, tenant))
    if workflows:
        of_workflows = select(ExportWorkflowRow.export_id).where(
            *in_tenant(ExportWorkflowRow, tenant),
            col(ExportWorkflowRow.workflow).in_(workflows),
        )
        statement = statement.where(col(ExportRow.id).in_(of_workflows))
    if status is not None:
        statement = statement.where(ExportRow.status == status)
    if tag is not None:
        statement = statement.where(has_text(ExportRow.tag, tag))
    return fetch_newest_rows(db, statement, col(ExportRow.id), before_id=before_id, limit=limit)


def _require_workflows_to_queue(db: DbSession, tenant: Tenant, workflows: list[str]) -> None:
    statement = select(WorkflowRow.workflow).where(
        *in_tenant(WorkflowRow, tenant),
        col(WorkflowRow.workflow).in_(workflows),
    )
    known = set(db.exec(statement))
    unknown = [index for index, workflow in enumerate(workflows) if workflow not in known]
    if unknown:
        # A single workflow may have been sent as a string.
        is_single = len(workflows) == 1
        raise UnknownWorkflow(
            [json_pointer("workflow") if is_single else json_pointer("workflow", index) for index in unknown]
        )


def _require_open_export_place(db: DbSession, workspace_id: str) -> None:
    # The condition of the partial index.
    open_exports = select(func.count()).where(
        ExportRow.workspace_id == workspace_id, col(ExportRow.completed_at).is_(None)
    )
    if db.exec(open_exports).one() >= limits.OPEN_EXPORTS:
        remedy = "wait until some have ended, or cancel some"
        raise LimitReached("exports that are queued or running", limits.OPEN_EXPORTS, remedy)


def _require_path_of_exported_workflow(db: DbSession, tenant: Tenant, spec: dict[str, Any]) -> None:
    for name in ("path", "subpath"):
        path_id = spec["filter"].get(name)
        if path_id is None:
            continue
        workflow = workflow_of_path(db, tenant=tenant, path_id=path_id)
        if workflow not in spec["workflow"]:
            text = (
                f"This path is of the workflow {workflow}, which the export does not name: it would be empty."
            )
            raise ValidationFailed.of(f"/filter/{name}", "invalid_value", message=text)
