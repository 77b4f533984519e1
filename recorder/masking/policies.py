"""Masking policies of a workspace and its workflows. Contract §3 (masking)."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from cachetools import LRUCache
from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select, update

from recorder import limits
from recorder.errors import LimitReached
from recorder.hashing import canonical_json
from recorder.masking.detectors import derive_masking_key
from recorder.masking.masker import Masker, compile_masker_rules
from recorder.models.workflow import WorkflowRow
from recorder.models.workspace import MaskReplacementRow, WorkspaceRow
from recorder.storage.conditions import in_tenant
from recorder.storage.upsert import insert_missing_rows
from recorder.tenant import Tenant

#: Memory of the cached policies of workflows; the largest policy takes 60 KB.
_CACHED_BYTES = 32 * 1024 * 1024
#: Of an entry beside its policy.
_ENTRY_BYTES = 500


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
    """Masking of a workspace and mode, as a key's caller holds it; a workflow's policy is loaded when needed.

    Attributes:
        key: key of the workspace's tokens.
        workspace: policy of the workspace as compact JSON; None if it masks nothing.
        workflow_version: number of changes of policies of the workspace's workflows, under which they are
            cached; None if no workflow has a policy, so that none needs to be looked up.
    """

    key: bytes = field(repr=False)
    workspace: str | None = field(repr=False)
    workflow_version: int | None

    def of(self, added: str | None) -> MaskingPolicy | None:
        """Return the policy for the sessions of a workflow; None if nothing is masked.

        Args:
            added: policy of the workflow, which adds to the workspace's; None if it has none.
        """
        described = tuple(policy for policy in (self.workspace, added) if policy is not None)
        return MaskingPolicy(described, self.key) if described else None


def load_masking_policies(
    db: DbSession, workspace: WorkspaceRow, mode: str, *, secret: bytes
) -> MaskingPolicies | None:
    """Return the masking of a workspace and mode; None if neither it nor a workflow masks anything."""
    row = WorkflowRow
    has_policy = (row.workspace_id == workspace.id, row.mode == mode, col(row.masking).is_not(None))
    is_any = db.exec(select(row.workflow).where(*has_policy).limit(1)).first() is not None
    by_workspace = _encode_masking_policy(workspace.masking)
    if by_workspace is None and not is_any:
        return None
    return MaskingPolicies(
        derive_masking_key(secret, workspace.id),
        None if by_workspace is None else _share_policy_text(by_workspace),
        workspace.workflow_policy_version if is_any else None,
    )


def read_workflow_policy(db: DbSession, tenant: Tenant, workflow: str) -> str | None:
    """Return the policy that a workflow adds to its workspace's, as compact JSON; None if it adds nothing."""
    row = WorkflowRow
    stored = select(row.masking).where(*in_tenant(row, tenant), row.workflow == workflow)
    return _encode_masking_policy(db.exec(stored).one_or_none())


def load_workflow_masking(
    db: DbSession, workspace: WorkspaceRow, mode: str, workflow: str, *, secret: bytes
) -> MaskingPolicy | None:
    """Return the policy in force for the sessions of a workflow; None if nothing is masked."""
    policies = load_masking_policies(db, workspace, mode, secret=secret)
    if policies is None:
        return None
    return policies.of(read_workflow_policy(db, Tenant(workspace.id, mode), workflow))


def note_workflow_policy_change(db: DbSession, workspace_id: str) -> None:
    """Count a change of a workflow's policy, in its transaction: cached policies are then loaded again."""
    version = col(WorkspaceRow.workflow_policy_version)
    changed = update(WorkspaceRow).where(col(WorkspaceRow.id) == workspace_id)
    db.connection().execute(changed.values(workflow_policy_version=version + 1))


class CachedPolicy(NamedTuple):
    """Policy of a workflow as compact JSON; None if it has none."""

    text: str | None


class WorkflowPolicyCache:
    """Policies of workflows in one process, loaded at their first use and shared by all keys of a workspace.

    An entry belongs to the number of changes that a caller was read with, so it is never older than the
    caller. What a change replaces is not found any more and leaves the cache in time.
    """

    def __init__(self, *, size_bytes: int = _CACHED_BYTES) -> None:
        """Create an empty cache.

        Args:
            size_bytes: most bytes of all entries together, about.
        """
        self._entries: LRUCache[tuple[str, str, str, int], CachedPolicy] = LRUCache(
            size_bytes, getsizeof=lambda entry: _ENTRY_BYTES + len(entry.text or "")
        )
        self._lock = threading.Lock()

    def recall(self, tenant: Tenant, version: int, workflow: str) -> CachedPolicy | None:
        """Return the policy of a workflow; None if it is unknown and must be loaded."""
        with self._lock:
            return self._entries.get((tenant.workspace_id, tenant.mode, workflow, version))

    def load(self, db: DbSession, tenant: Tenant, version: int, workflow: str) -> CachedPolicy:
        """Read the policy of a workflow and keep it.

        Args:
            db: a transaction that began after the version was read.
            tenant: workspace and mode.
            version: number of changes, as the caller's masking says.
            workflow: the workflow; one that does not exist has no policy.
        """
        entry = CachedPolicy(read_workflow_policy(db, tenant, workflow))
        with self._lock:
            self._entries[(tenant.workspace_id, tenant.mode, workflow, version)] = entry
        return entry


def store_masking_replacements(db: DbSession, workspace_id: str, masking: Mapping[str, Any] | None) -> None:
    """Store the replacements of a new policy for good: later erasures compare masked texts with them.

    Raises:
        LimitReached: if the workspace has had too many.
    """
    patterns = (masking or {}).get("patterns") or ()
    texts = sorted({pattern["replacement"] for pattern in patterns if pattern.get("replacement")})
    rows = [{"workspace_id": workspace_id, "replacement": text} for text in texts]
    if insert_missing_rows(db, MaskReplacementRow, rows):
        row = MaskReplacementRow
        counted = select(func.count()).select_from(row).where(row.workspace_id == workspace_id)
        if db.exec(counted).one() > limits.MASKING_REPLACEMENTS:
            what = "different replacements in the masking policies that it has had"
            raise LimitReached(what, limits.MASKING_REPLACEMENTS, "use one that a policy has had")


def list_masking_replacements(db: DbSession, workspace_id: str) -> frozenset[str]:
    """Return the replacements of all policies that the workspace and its workflows have had."""
    texts = select(MaskReplacementRow.replacement).where(MaskReplacementRow.workspace_id == workspace_id)
    return frozenset(db.exec(texts))


@lru_cache(maxsize=1_000)
def _share_policy_text(text: str) -> str:
    """Return the cached copy of an equal text, so that the callers of a workspace share one."""
    return text


def _encode_masking_policy(masking: Mapping[str, Any] | None) -> str | None:
    is_on = masking is not None and (masking.get("builtins") or masking.get("patterns"))
    return canonical_json(masking).decode() if is_on else None
