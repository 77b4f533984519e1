"""Workspaces: creating, reading and changing them and their settings. Spec §2.10."""

from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, or_, select

from recorder import clock
from recorder.access.keys import FIRST_SCOPE, Caller, NewKey, create_key
from recorder.audit.log import (
    Action,
    Origin,
    describe_audited_changes,
    describe_audited_masking,
    record_audit_entry,
)
from recorder.errors import Conflict, InsufficientScope, NotFound
from recorder.ids import new_id
from recorder.masking.policies import store_masking_replacements
from recorder.models.workspace import (
    LiveReplay,
    Masking,
    Retention,
    Workspace,
    WorkspaceRow,
    WorkspaceStatus,
    WorkspaceUpdate,
)
from recorder.settings import Settings
from recorder.storage.deployment import require_deployment_region


class UnknownWorkspace(NotFound):
    """No workspace has the name or id that the operator gave."""

    def __init__(self) -> None:
        text = "No workspace has this name or id; `recorder workspaces list` shows them."
        super(NotFound, self).__init__(text)
        self.resource = "workspace"


class WorkspaceExists(Conflict):
    """The name of a new workspace is taken."""

    def __init__(self) -> None:
        super().__init__(
            "A workspace of this name exists. Choose another name, or make another key for it with `recorder "
            "keys create`."
        )


class LiveModeNeeded(InsufficientScope):
    """A test key was used to change settings, which hold for live data too."""

    needed_mode = "live"

    def __init__(self) -> None:
        detail = "Settings apply to live data too; change them with an admin key of live mode."
        super().__init__("admin", detail)


def find_workspace(db: DbSession, name_or_id: str) -> WorkspaceRow:
    """Return the workspace of this name or id.

    Raises:
        UnknownWorkspace: if there is none.
    """
    named = or_(WorkspaceRow.name == name_or_id, WorkspaceRow.id == name_or_id)
    row = db.exec(select(WorkspaceRow).where(named)).first()
    if row is None:
        raise UnknownWorkspace
    return row


def list_workspaces(db: DbSession) -> list[Workspace]:
    """Return all workspaces of the deployment, by name."""
    rows = db.exec(select(WorkspaceRow))
    return sorted((workspace_to_wire(row) for row in rows), key=lambda workspace: workspace.name)


def get_workspace(db: DbSession, workspace_id: str) -> Workspace:
    """Return a workspace with its settings."""
    return workspace_to_wire(db.get_one(WorkspaceRow, workspace_id))


def create_workspace(
    db: DbSession, name: str, *, region: str, secret: bytes, tier: str = "default"
) -> NewKey:
    """Create a workspace and its first key, which has all rights.

    Args:
        db: a write transaction.
        name: unique name of the workspace.
        region: region of the workspace; it must be the deployment's.
        secret: secret of the deployment, under which keys are hashed.
        tier: name of its table of limits.

    Raises:
        WrongRegion: if the deployment belongs to another region.
        WorkspaceExists: if the name is taken.
    """
    require_deployment_region(db, region)
    if db.exec(select(WorkspaceRow).where(WorkspaceRow.name == name)).first() is not None:
        raise WorkspaceExists
    workspace = WorkspaceRow(id=new_id("wsp"), name=name, region=region, tier=tier, created_at=clock.now())
    db.add(workspace)
    return create_key(db, workspace.id, label="first key", scope=FIRST_SCOPE, mode="live", secret=secret)


def create_workspace_as_operator(db: DbSession, settings: Settings, name: str, *, tier: str) -> NewKey:
    """Create a workspace in this deployment's region, for its operator, with its first key.

    Raises:
        WorkspaceExists: if the name is taken.
    """
    made = create_workspace(db, name, region=settings.region, secret=settings.secret, tier=tier)
    details = {"name": name, "tier": tier, "region": settings.region, "key_id": made.key_id}
    _record_workspace_change(db, Origin.operator(made.workspace_id), "workspace.create", details)
    return made


def update_workspace(db: DbSession, caller: Caller, origin: Origin, body: WorkspaceUpdate) -> Workspace:
    """Change settings of the caller's workspace; members that were not sent stay.

    Raises:
        LiveModeNeeded: if the caller uses a test key.
        LimitReached: if the policies of the workspace have had too many replacements.
    """
    if caller.mode == "test":
        raise LiveModeNeeded
    row = _lock_workspace_row(db, caller.workspace_id)
    before = _list_workspace_settings(row)
    _apply_workspace_update(row, body)
    store_masking_replacements(db, row.id, row.masking)
    db.add(row)
    changes = describe_audited_changes(before, _list_workspace_settings(row))
    if changes:
        _record_workspace_change(db, origin, "workspace.update", changes)
    return workspace_to_wire(row)


def set_workspace(
    db: DbSession, name_or_id: str, *, tier: str | None = None, status: WorkspaceStatus | None = None
) -> Workspace:
    """Give a workspace another tier or status, for the operator.

    Raises:
        UnknownWorkspace: if there is none.
    """
    row = _lock_workspace_row(db, find_workspace(db, name_or_id).id)
    before = {"tier": row.tier, "status": row.status}
    row.tier, row.status = tier or row.tier, status or row.status
    db.add(row)
    changes = describe_audited_changes(before, {"tier": row.tier, "status": row.status})
    if changes:
        _record_workspace_change(db, Origin.operator(row.id), "workspace.update", changes)
    return workspace_to_wire(row)


def workspace_to_wire(row: WorkspaceRow) -> Workspace:
    """Return the workspace object of contract §7."""
    return Workspace.model_validate(
        {
            **row.model_dump(include={"id", "name", "region", "status", "tier", "created_at"}),
            "retention": Retention.model_validate(row.model_dump(include=set(Retention.model_fields))),
            "masking": Masking.model_validate(row.masking or {}),
            "live_replay": LiveReplay(allow_hosts=row.live_hosts or []),
        }
    )


def _lock_workspace_row(db: DbSession, workspace_id: str) -> WorkspaceRow:
    return db.exec(select(WorkspaceRow).where(col(WorkspaceRow.id) == workspace_id).with_for_update()).one()


def _apply_workspace_update(row: WorkspaceRow, body: WorkspaceUpdate) -> None:
    sent = body.model_fields_set
    if "retention" in sent:
        for name, days in body.retention.model_dump(exclude_unset=True).items():
            setattr(row, name, days)
    if "masking" in sent:
        row.masking = body.masking.merged_into(row.masking)
    if "live_replay" in sent and "allow_hosts" in body.live_replay.model_fields_set:
        row.live_hosts = body.live_replay.allow_hosts


def _list_workspace_settings(row: WorkspaceRow) -> dict[str, Any]:
    """Return the settings that a PATCH may change, as the audit log shows them."""
    shown = workspace_to_wire(row)
    days = {f"retention.{name}": value for name, value in shown.retention.model_dump().items()}
    return {
        **days,
        "masking": describe_audited_masking(shown.masking),
        "live_replay.allow_hosts": shown.live_replay.allow_hosts,
    }


def _record_workspace_change(db: DbSession, origin: Origin, action: Action, details: dict[str, Any]) -> None:
    record_audit_entry(
        db, origin, action, resource_type="workspace", resource_id=origin.workspace_id, details=details
    )
