"""What a workspace and its workflows mask. Contract §3 (masking)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import Text, cast
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.digest import canonical_json
from recorder.masking.detectors import masking_key
from recorder.masking.masker import Masker, compile_rules
from recorder.models.workflow import WorkflowRow
from recorder.models.workspace import WorkspaceRow


@dataclass(frozen=True, slots=True)
class Policy:
    """The policies in force for one workflow, as compact JSON, and the key of the workspace's tokens."""

    described: tuple[str, ...] = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def has_only_builtins(self) -> bool:
        """Return whether no pattern of the workspace's own is among the rules."""
        return _has_only_builtins(self.described)

    def masker(self) -> Masker:
        """Return the compiled rules with the key."""
        return Masker(compile_rules(self.described), self.key)


@lru_cache(maxsize=1_000)
def _has_only_builtins(described: tuple[str, ...]) -> bool:
    return not any(orjson.loads(policy).get("patterns") for policy in described)


@dataclass(frozen=True, slots=True, eq=False)
class MaskingPolicies:
    """The policies of a workspace and mode, as compact JSON; a workflow's come on top of the workspace's."""

    key: bytes = field(repr=False)
    workspace: str | None = field(repr=False)
    by_workflow: Mapping[str, str] = field(repr=False)

    def of(self, workflow: str | None) -> Policy | None:
        """Return what masks the sessions of a workflow; None where nothing does."""
        own = None if workflow is None else self.by_workflow.get(workflow)
        described = tuple(policy for policy in (self.workspace, own) if policy is not None)
        return Policy(described, self.key) if described else None


def load_policies(
    db: DbSession, workspace: WorkspaceRow, mode: str, *, secret: bytes
) -> MaskingPolicies | None:
    """The policies in force; None where neither the workspace nor a workflow masks anything."""
    found = select(WorkflowRow.workflow, WorkflowRow.masking).where(
        WorkflowRow.workspace_id == workspace.id,
        WorkflowRow.mode == mode,
        col(WorkflowRow.masking).is_not(None),
        cast(col(WorkflowRow.masking), Text) != "null",
    )
    described = ((workflow, _describe(masking)) for workflow, masking in db.exec(found))
    by_workflow = {workflow: policy for workflow, policy in described if policy is not None}
    own = _describe(workspace.masking)
    if own is None and not by_workflow:
        return None
    return MaskingPolicies(masking_key(secret, workspace.id), own, by_workflow)


def _describe(masking: Mapping[str, Any] | None) -> str | None:
    is_on = masking is not None and (masking.get("builtins") or masking.get("patterns"))
    return canonical_json(masking).decode() if is_on else None
