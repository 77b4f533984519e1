"""Workspaces and their settings: found, shown, changed by administrators and by the operator. Spec §2.10."""

from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, or_, select

from recorder.access.keys import Caller, NewKey, create_workspace
from recorder.audit.log import Action, Origin, describe_changes, describe_masking, record
from recorder.errors import InsufficientScope, NotFound
from recorder.models.masking import Masking
from recorder.models.workspace import (
    LiveReplay,
    Retention,
    Workspace,
    WorkspaceRow,
    WorkspaceStatus,
    WorkspaceUpdate,
)
from recorder.settings import Settings


class UnknownWorkspace(NotFound):
    """The operator named a workspace that is not there."""

    def __init__(self) -> None:
        text = "No workspace has this name or id; `recorder workspaces list` shows them."
        super(NotFound, self).__init__(text)
        self.resource = "workspace"


class LiveModeNeeded(InsufficientScope):
    """A test key asked to change what holds for live data too."""

    def __init__(self) -> None:
        super().__init__("admin, of live mode: settings hold for live data too")


def find_workspace(db: DbSession, name_or_id: str) -> WorkspaceRow:
    """The workspace of this name or id.

    Raises:
        UnknownWorkspace: if there is none.
    """
    named = or_(WorkspaceRow.name == name_or_id, WorkspaceRow.id == name_or_id)
    row = db.exec(select(WorkspaceRow).where(named)).first()
    if row is None:
        raise UnknownWorkspace
    return row


def list_workspaces(db: DbSession) -> list[Workspace]:
    """All workspaces of the deployment, by name."""
    rows = db.exec(select(WorkspaceRow))
    return sorted((to_wire(row) for row in rows), key=lambda workspace: workspace.name)


def get_workspace(db: DbSession, workspace_id: str) -> Workspace:
    """One workspace with its settings."""
    return to_wire(db.get_one(WorkspaceRow, workspace_id))


def open_workspace(db: DbSession, settings: Settings, name: str, *, tier: str) -> NewKey:
    """Make a workspace of this deployment's region, as its operator does, with its first key.

    Raises:
        WorkspaceExists: if the name is taken.
    """
    made = create_workspace(db, name, region=settings.region, secret=settings.secret, tier=tier)
    details = {"name": name, "tier": tier, "region": settings.region, "key_id": made.key_id}
    _record(db, Origin.operator(made.workspace_id), "workspace.create", details)
    return made


def update_workspace(db: DbSession, caller: Caller, origin: Origin, body: WorkspaceUpdate) -> Workspace:
    """Change settings of the caller's workspace; what was not sent stays.

    Raises:
        LiveModeNeeded: if a test key asks.
    """
    if caller.mode == "test":
        raise LiveModeNeeded
    row = _lock(db, caller.workspace_id)
    before = _settings(row)
    _apply(row, body)
    db.add(row)
    changes = describe_changes(before, _settings(row))
    if changes:
        _record(db, origin, "workspace.update", changes)
    return to_wire(row)


def set_workspace(
    db: DbSession, name_or_id: str, *, tier: str | None = None, status: WorkspaceStatus | None = None
) -> Workspace:
    """Give a workspace another tier or status, as the operator does.

    Raises:
        UnknownWorkspace: if there is none.
    """
    row = _lock(db, find_workspace(db, name_or_id).id)
    before = {"tier": row.tier, "status": row.status}
    row.tier, row.status = tier or row.tier, status or row.status
    db.add(row)
    changes = describe_changes(before, {"tier": row.tier, "status": row.status})
    if changes:
        _record(db, Origin.operator(row.id), "workspace.update", changes)
    return to_wire(row)


def to_wire(row: WorkspaceRow) -> Workspace:
    """The workspace object of contract §7."""
    return Workspace.model_validate(
        {
            **row.model_dump(include={"id", "name", "region", "status", "tier", "created_at"}),
            "retention": Retention.model_validate(row.model_dump(include=set(Retention.model_fields))),
            "masking": Masking.model_validate(row.masking or {}),
            "live_replay": LiveReplay(allow_hosts=row.live_hosts or []),
        }
    )


def _lock(db: DbSession, workspace_id: str) -> WorkspaceRow:
    return db.exec(select(WorkspaceRow).where(col(WorkspaceRow.id) == workspace_id).with_for_update()).one()


def _apply(row: WorkspaceRow, body: WorkspaceUpdate) -> None:
    sent = body.model_fields_set
    if "retention" in sent:
        for name, days in body.retention.model_dump(exclude_unset=True).items():
            setattr(row, name, days)
    if "masking" in sent:
        row.masking = body.masking.merged_into(row.masking)
    if "live_replay" in sent and "allow_hosts" in body.live_replay.model_fields_set:
        row.live_hosts = body.live_replay.allow_hosts


def _settings(row: WorkspaceRow) -> dict[str, Any]:
    """What a PATCH may change, in the form in which the audit log tells it."""
    shown = to_wire(row)
    days = {f"retention.{name}": value for name, value in shown.retention.model_dump().items()}
    return {
        **days,
        "masking": describe_masking(shown.masking),
        "live_replay.allow_hosts": shown.live_replay.allow_hosts,
    }


def _record(db: DbSession, origin: Origin, action: Action, details: dict[str, Any]) -> None:
    record(db, origin, action, resource_type="workspace", resource_id=origin.workspace_id, details=details)
