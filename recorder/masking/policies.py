"""Masking policies of a workspace and its workflows. Contract §3 (masking)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import Text, cast
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.hashing import canonical_json
from recorder.masking.detectors import derive_masking_key
from recorder.masking.masker import Masker, compile_masker_rules
from recorder.models.workflow import WorkflowRow
from recorder.models.workspace import MaskReplacementRow, WorkspaceRow
from recorder.storage.upsert import insert_missing_rows


@dataclass(frozen=True, slots=True)
class MaskingPolicy:
    """Policies in force for one workflow, as compact JSON, and the key of the workspace's tokens."""

    described: tuple[str, ...] = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def has_only_builtins(self) -> bool:
        """Return whether the rules are built-in kinds without patterns."""
        return _has_only_builtins(self.described)

    def masker(self) -> Masker:
        """Return the compiled rules with the key."""
        return Masker(compile_masker_rules(self.described), self.key)


@lru_cache(maxsize=1_000)
def _has_only_builtins(described: tuple[str, ...]) -> bool:
    return not any(orjson.loads(policy).get("patterns") for policy in described)


@dataclass(frozen=True, slots=True, eq=False)
class MaskingPolicies:
    """Policies of a workspace and mode, as compact JSON; a workflow's policy adds to the workspace's."""

    key: bytes = field(repr=False)
    workspace: str | None = field(repr=False)
    by_workflow: Mapping[str, str] = field(repr=False)

    def of(self, workflow: str | None) -> MaskingPolicy | None:
        """Return the policy for the sessions of a workflow; None if nothing is masked."""
        added = None if workflow is None else self.by_workflow.get(workflow)
        described = tuple(policy for policy in (self.workspace, added) if policy is not None)
        return MaskingPolicy(described, self.key) if described else None


def load_masking_policies(
    db: DbSession, workspace: WorkspaceRow, mode: str, *, secret: bytes
) -> MaskingPolicies | None:
    """Return the policies in force; None if neither the workspace nor a workflow masks anything."""
    rows = select(WorkflowRow.workflow, WorkflowRow.masking).where(
        WorkflowRow.workspace_id == workspace.id,
        WorkflowRow.mode == mode,
        col(WorkflowRow.masking).is_not(None),
        cast(col(WorkflowRow.masking), Text) != "null",
    )
    described = ((workflow, _encode_masking_policy(masking)) for workflow, masking in db.exec(rows))
    by_workflow = {workflow: policy for workflow, policy in described if policy is not None}
    by_workspace = _encode_masking_policy(workspace.masking)
    if by_workspace is None and not by_workflow:
        return None
    return MaskingPolicies(derive_masking_key(secret, workspace.id), by_workspace, by_workflow)


def store_masking_replacements(db: DbSession, workspace_id: str, masking: Mapping[str, Any] | None) -> None:
    """Store the replacements of a new policy for good: later erasures compare masked texts with them."""
    patterns = (masking or {}).get("patterns") or ()
    texts = sorted({pattern["replacement"] for pattern in patterns if pattern.get("replacement")})
    rows = [{"workspace_id": workspace_id, "replacement": text} for text in texts]
    insert_missing_rows(db, MaskReplacementRow, rows)


def list_masking_replacements(db: DbSession, workspace_id: str) -> frozenset[str]:
    """Return the replacements of all policies that the workspace and its workflows have had."""
    texts = select(MaskReplacementRow.replacement).where(MaskReplacementRow.workspace_id == workspace_id)
    return frozenset(db.exec(texts))


def _encode_masking_policy(masking: Mapping[str, Any] | None) -> str | None:
    is_on = masking is not None and (masking.get("builtins") or masking.get("patterns"))
    return canonical_json(masking).decode() if is_on else None
