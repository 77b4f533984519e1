"""Workflows: settings, lists, and the cache of the workflow of each session. Contract §2."""

import re
import threading
from dataclasses import asdict
from typing import Any

from sqlalchemy import and_, or_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock, limits
from recorder.access.keys import Caller
from recorder.audit.log import (
    Action,
    Origin,
    describe_audited_changes,
    describe_audited_masking,
    record_audit_entry,
)
from recorder.errors import NotFound, Problem, UnknownWorkflow, ValidationFailed
from recorder.masking.policies import note_workflow_policy_change, store_masking_replacements
from recorder.memory.storage.sizes import read_graph_sizes
from recorder.memory.storage.versions import set_memory_graph
from recorder.models.workflow import (
    OutcomeNames,
    OutcomeNamesUpdate,
    Workflow,
    WorkflowGraph,
    WorkflowRow,
    WorkflowUpdate,
)
from recorder.models.workspace import Masking
from recorder.recording.new_workflows import make_workflow_if_missing
from recorder.recording.outcomes import OutcomeRules
from recorder.recording.sessions import find_session
from recorder.storage.conditions import in_tenant
from recorder.storage.list_pages import FetchedPage, fetch_statement_page
from recorder.tenant import GraphScope, Tenant


class SessionWorkflows:
    """Cache of workflows in one process; a session never changes its workflow, so no entry is stale."""

    def __init__(self, *, size: int = 20_000) -> None:
        """Create an empty cache.

        Args:
            size: largest number of sessions, about as many as record at a time; each takes some 300 bytes.
        """
        self._size = size
        # A plain dict: every batch reads it, without a lock, and FIFOCache.get takes 1.4 µs instead of 0.2.
        self._known: dict[tuple[str, str, str], str] = {}
        self._lock = threading.Lock()

    def recall(self, caller: Caller, session_id: str) -> str | None:
        """Return the workflow of one of the caller's sessions, where it was looked up before."""
        tenant = caller.tenant
        return self._known.get((tenant.workspace_id, tenant.mode, session_id))

    def look_up(self, db: DbSession, caller: Caller, session_id: str) -> str | None:
        """Return the workflow of one of the caller's sessions; None where there is no such session."""
        try:
            row = find_session(db, caller.tenant, session_id)
        except NotFound:
            return None
        with self._lock:
            if len(self._known) >= self._size:
                del self._known[next(iter(self._known))]
            self._known[(row.workspace_id, row.mode, session_id)] = row.workflow
        return row.workflow


def get_workflow(db: DbSession, tenant: Tenant, workflow: str) -> Workflow:
    """Return one workflow.

    Raises:
        UnknownWorkflow: if nothing was recorded or set under this name, or the name is malformed.
    """
    _require_workflow_slug(workflow)
    row = db.get(WorkflowRow, (tenant.workspace_id, tenant.mode, workflow))
    if row is None:
        raise UnknownWorkflow
    return _describe_workflows(db, [row])[0]


def list_workflows(
    db: DbSession, tenant: Tenant, *, before: tuple[int, str] | None, limit: int
) -> FetchedPage[Workflow, tuple[int, str]]:
    """Return a page of workflows, newest first.

    Args:
        db: a transaction.
        tenant: workspace and mode.
        before: `created_at` in milliseconds and name of the last workflow of the page before.
        limit: most items of the page.
    """
    created_at, name = col(WorkflowRow.created_at), col(WorkflowRow.workflow)
    statement = select(WorkflowRow).where(*in_tenant(WorkflowRow, tenant))
    if before is not None:
        moment, last = clock.from_ms(before[0]), before[1]
        statement = statement.where(or_(created_at < moment, and_(created_at == moment, name < last)))
    statement = statement.order_by(created_at.desc(), name.desc())
    page = fetch_statement_page(
        db,
        statement,
        limit=limit,
        position_of=lambda row: (clock.to_ms(row.created_at), row.workflow),
    )
    return FetchedPage(_describe_workflows(db, page.items), page.position)


def update_workflow(
    db: DbSession, tenant: Tenant, origin: Origin, workflow: str, body: WorkflowUpdate
) -> Workflow:
    """Change settings of a workflow, making it where it is not there yet; what was not sent stays.

    Raises:
        UnknownWorkflow: if the name is none.
        LimitReached: if it is missing and the workspace has as many workflows as it may.
        ValidationFailed: if a name would mark success and error alike.
    """
    _require_workflow_slug(workflow)
    is_new = make_workflow_if_missing(db, tenant, workflow)
    statement = select(WorkflowRow).filter_by(
        workspace_id=tenant.workspace_id, mode=tenant.mode, workflow=workflow
    )
    row = db.exec(statement.with_for_update()).one()
    before = {} if is_new else _describe_workflow_settings(row)
    _apply_workflow_update(db, row, body)
    changes = describe_audited_changes(before, _describe_workflow_settings(row))
    if changes:
        row.updated_at = row.created_at if is_new else clock.now()
        db.add(row)
        action: Action = "workflow.create" if is_new else "workflow.update"
        record_audit_entry(
            db, origin, action, resource_type="workflow", resource_id=workflow, details=changes
        )
    return _describe_workflows(db, [row])[0]


def _apply_workflow_update(db: DbSession, row: WorkflowRow, body: WorkflowUpdate) -> None:
    sent = body.model_fields_set
    if "outcome_rules" in sent:
        row.outcome_rules = _merge_workflow_outcome_rules(row.outcome_rules, body.outcome_rules)
    if "tags" in sent:
        row.tags = body.tags
    if "masking" in sent:
        policy = body.masking.merged_into(row.masking)
        row.masking = policy if any(policy.values()) else None
        store_masking_replacements(db, row.workspace_id, row.masking)
        note_workflow_policy_change(db, row.workspace_id)
    if "memory_graph" in sent:
        set_memory_graph(db, GraphScope(row.tenant, row.workflow), body.memory_graph)
        row.memory_graph = body.memory_graph


def _merge_workflow_outcome_rules(
    stored: dict[str, Any] | None, changes: OutcomeNamesUpdate | None
) -> dict[str, Any] | None:
    if changes is None:
        return None
    merged = {**(stored or {}), **changes.model_dump(exclude_unset=True)}
    rules = OutcomeRules.of(merged)
    problems = [
        Problem("body", f"/outcome_rules/error_{kind}", "invalid_value", f"Also among success_{kind}.")
        for kind, error, success in (
            ("tags", rules.error_tags, rules.success_tags),
            ("events", rules.error_events, rules.success_events),
        )
        if error & success
    ]
    if problems:
        raise ValidationFailed(problems)
    return merged


def _describe_workflow_settings(row: WorkflowRow) -> dict[str, Any]:
    """Return the settings that a PATCH may change, in the form of the audit log."""
    return {
        "memory_graph": row.memory_graph,
        "tags": row.tags,
        "masking": describe_audited_masking(_read_workflow_masking(row)),
        "outcome_rules": _read_workflow_outcome_rules(row).model_dump(),
    }


def _describe_workflows(db: DbSession, rows: list[WorkflowRow]) -> list[Workflow]:
    if not rows:
        return []
    names = [row.workflow for row in rows]
    graphs = read_graph_sizes(db, rows[0].tenant, names)
    return [_workflow_to_wire(row, graphs[row.workflow]) for row in rows]


def _workflow_to_wire(row: WorkflowRow, graph: WorkflowGraph) -> Workflow:
    return Workflow(
        workflow=row.workflow,
        memory_graph=row.memory_graph,
        tags=row.tags,
        masking=_read_workflow_masking(row),
        outcome_rules=_read_workflow_outcome_rules(row),
        session_count=row.session_count,
        last_session_at=row.last_session_at,
        graph=graph,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _read_workflow_masking(row: WorkflowRow) -> Masking:
    return Masking.model_validate(row.masking or {})


def _read_workflow_outcome_rules(row: WorkflowRow) -> OutcomeNames:
    rules = asdict(OutcomeRules.of(row.outcome_rules))
    return OutcomeNames.model_validate({name: sorted(names) for name, names in rules.items()})


def _require_workflow_slug(workflow: str) -> None:
    """Check that a text can be the name of a workflow; a malformed name is refused like an unknown one."""
    if not re.fullmatch(limits.WORKFLOW_PATTERN, workflow):
        raise UnknownWorkflow
