"""What a workspace and its workflows mask. Contract §3 (masking)."""

from dataclasses import dataclass

from sqlmodel import Session as DbSession

from recorder.models.workspace import WorkspaceRow


@dataclass(frozen=True, slots=True)
class MaskingPolicies:
    """The policies of one workspace and mode."""


def load_policies(db: DbSession, workspace: WorkspaceRow, mode: str) -> MaskingPolicies | None:
    """The policies in force; None where neither the workspace nor a workflow masks anything."""
    return None
