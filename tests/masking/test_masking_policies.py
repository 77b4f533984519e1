"""Policies in force for a workspace, a mode and a workflow. Contract §3 (masking)."""

from typing import Any

import pytest
from sqlalchemy import JSON, null

from recorder import clock
from recorder.access.keys import Caller
from recorder.masking.policies import (
    CachedPolicy,
    MaskingPolicies,
    MaskingPolicy,
    WorkflowPolicyCache,
    list_masking_replacements,
    load_masking_policies,
    load_workflow_masking,
    note_workflow_policy_change,
    store_masking_replacements,
)
from recorder.models.workflow import WorkflowRow
from recorder.models.workspace import Masking, WorkspaceRow
from recorder.recording.workflows import SessionWorkflows
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.masking import pattern
from tests.support.recorded_sessions import open_desk

SECRET = b"a deployment's secret"
EMAIL = {"builtins": ["email"], "patterns": []}
OFF: dict[str, Any] = {"builtins": [], "patterns": []}


class MaskedWorkspace:
    """A new workspace whose workflows, by mode and name, mask what a test says."""

    def __init__(
        self, runtime: Runtime, name: str, masking: Any, workflows: dict[tuple[str, str], Any]
    ) -> None:
        self.runtime, self.workspace_id = runtime, f"wsp_{name}"
        now = clock.now()
        with runtime.database.transaction(write=True) as db:
            db.add(
                WorkspaceRow(id=self.workspace_id, name=name, region="us", masking=masking, created_at=now)
            )
            for (mode, workflow), policy in workflows.items():
                names = {"workspace_id": self.workspace_id, "mode": mode, "workflow": workflow}
                db.add(WorkflowRow(**names, masking=policy, created_at=now, updated_at=now))

    def policies(self, mode: str = "live") -> MaskingPolicies | None:
        """Return the masking that a caller holds."""
        with self.runtime.database.transaction(write=False) as db:
            return load_masking_policies(db, db.get_one(WorkspaceRow, self.workspace_id), mode, secret=SECRET)

    def policy(self, workflow: str, *, mode: str = "live") -> MaskingPolicy | None:
        """Return the policy in force for a workflow."""
        with self.runtime.database.transaction(write=False) as db:
            workspace = db.get_one(WorkspaceRow, self.workspace_id)
            return load_workflow_masking(db, workspace, mode, workflow, secret=SECRET)

    def rules(self, workflow: str, *, mode: str = "live") -> list[str] | None:
        """Return the names of the rules that mask a workflow; None where nothing does."""
        policy = self.policy(workflow, mode=mode)
        return None if policy is None else [rule.name for rule in policy.masker().rules.rules]


@pytest.mark.parametrize(
    ("name", "masking", "workflows"),
    [
        ("nothing", None, {}),
        ("off", OFF, {("live", "other"): null()}),
        ("json_null", JSON.NULL, {("live", "billing"): None}),
        ("another_mode", None, {("test", "billing"): EMAIL}),
    ],
)
def test_a_caller_holds_no_policies_where_nothing_is_masked(
    runtime: Runtime, name: str, masking: Any, workflows: Any
) -> None:
    assert MaskedWorkspace(runtime, name, masking, workflows).policies() is None


@pytest.mark.parametrize(("name", "policy"), [("empty", OFF), ("empty_null", JSON.NULL)])
def test_a_policy_that_says_nothing_masks_nothing(runtime: Runtime, name: str, policy: Any) -> None:
    workspace = MaskedWorkspace(runtime, name, None, {("live", "billing"): policy})
    assert workspace.policy("billing") is None


def test_a_workflow_comes_on_top_of_its_workspace(runtime: Runtime) -> None:
    values = {"builtins": ["email", "card"], "patterns": [pattern("account", "ACC")]}
    workspace = MaskedWorkspace(runtime, "both", EMAIL, {("live", "billing"): values, ("live", "other"): OFF})
    assert workspace.rules("billing") == ["account", "email", "card"]
    assert workspace.rules("other") == workspace.rules("not_there_yet") == ["email"]


def test_a_workflow_masks_in_its_mode_alone(runtime: Runtime) -> None:
    workspace = MaskedWorkspace(
        runtime, "modes", None, {("live", "billing"): EMAIL, ("test", "signup"): EMAIL}
    )
    assert (workspace.rules("billing"), workspace.rules("signup"), workspace.rules("other")) == (
        ["email"],
        None,
        None,
    )
    assert workspace.rules("signup", mode="test") == ["email"]


def test_a_caller_holds_no_workflows_policy(runtime: Runtime) -> None:
    masking = {("live", f"flow_{n}"): {"builtins": ["card"]} for n in range(50)}
    policies = MaskedWorkspace(runtime, "many", EMAIL, masking).policies()
    assert policies is not None and policies.workspace is not None and policies.workflow_version == 0
    assert "card" not in repr([getattr(policies, name) for name in MaskingPolicies.__slots__])


def test_callers_of_a_workspace_share_its_policy(runtime: Runtime) -> None:
    workspace = MaskedWorkspace(runtime, "shared", EMAIL, {})
    first, second = workspace.policies(), workspace.policies()
    assert first is not None and second is not None and first.workspace is second.workspace
    assert first.workflow_version is None


def test_a_policy_is_loaded_once_and_again_after_a_change(runtime: Runtime) -> None:
    workspace = MaskedWorkspace(runtime, "cached", None, {("live", "billing"): EMAIL})
    cache, tenant = WorkflowPolicyCache(), Tenant(workspace.workspace_id, "live")
    assert cache.recall(tenant, 0, "billing") is None
    with runtime.database.transaction(write=False) as db:
        loaded = cache.load(db, tenant, 0, "billing")
    assert loaded.text is not None and cache.recall(tenant, 0, "billing") is loaded
    with runtime.database.transaction(write=True) as db:
        note_workflow_policy_change(db, workspace.workspace_id)
    changed = workspace.policies()
    assert changed is not None and changed.workflow_version == 1
    assert cache.recall(tenant, 1, "billing") is None
    assert cache.recall(Tenant(workspace.workspace_id, "test"), 0, "billing") is None


def test_a_workflow_without_a_policy_is_remembered_too(runtime: Runtime) -> None:
    workspace = MaskedWorkspace(runtime, "unmasked", None, {("live", "billing"): EMAIL})
    cache, tenant = WorkflowPolicyCache(), Tenant(workspace.workspace_id, "live")
    with runtime.database.transaction(write=False) as db:
        assert cache.load(db, tenant, 0, "other").text is None
    assert cache.recall(tenant, 0, "other") == CachedPolicy(None)


def test_cached_policies_have_a_size_together(runtime: Runtime) -> None:
    policy = {"builtins": [], "patterns": [pattern("account", "A" * 900)]}
    workspace = MaskedWorkspace(runtime, "size", None, {("live", f"flow_{n}"): policy for n in range(20)})
    cache, tenant = WorkflowPolicyCache(size_bytes=5_000), Tenant(workspace.workspace_id, "live")
    with runtime.database.transaction(write=False) as db:
        for n in range(20):
            cache.load(db, tenant, 0, f"flow_{n}")
    assert [n for n in range(20) if cache.recall(tenant, 0, f"flow_{n}")] == [17, 18, 19]


def test_a_workflow_masks_in_its_workspace_alone(runtime: Runtime) -> None:
    MaskedWorkspace(runtime, "first", None, {("live", "billing"): {"builtins": ["card"]}})
    second = MaskedWorkspace(runtime, "second", None, {("live", "billing"): null()})
    assert second.policies() is None and second.rules("billing") is None
    assert MaskedWorkspace(runtime, "third", EMAIL, {}).rules("billing") == ["email"]


def test_replacements_are_those_of_the_workspace(runtime: Runtime) -> None:
    with runtime.database.transaction(write=True) as db:
        for workspace_id, replacement in (("wsp_1", "ACC"), ("wsp_2", "IBAN")):
            masking = {"builtins": [], "patterns": [pattern("account", "a+", replacement)]}
            store_masking_replacements(db, workspace_id, masking)
        assert list_masking_replacements(db, "wsp_1") == {"ACC"}


def test_equal_policies_are_compiled_once(runtime: Runtime) -> None:
    policies = [MaskedWorkspace(runtime, name, EMAIL, {}).policy("any") for name in ("equal_1", "equal_2")]
    maskers = [policy.masker() for policy in policies if policy is not None]
    assert maskers[0].rules is maskers[1].rules
    assert maskers[0].key != maskers[1].key


def test_the_largest_policies_fit_together(runtime: Runtime) -> None:
    largest: dict[str, Any] = {
        "builtins": ["email", "card", "token"],
        "patterns": [pattern(f"unicode{n}", r"\pL[0-9]{30}") for n in range(14)]
        + [pattern(f"plain{n}", f"{n:02}[0-9]{{30}}") for n in range(30)],
    }
    assert Masking.model_validate(largest)
    workspace = MaskedWorkspace(runtime, "largest", largest, {("live", "billing"): largest})
    assert len(workspace.rules("billing") or []) == 2 * 44 + 3


def test_workflows_of_sessions_are_remembered_by_workspace_and_not_without_end(
    runtime: Runtime,
) -> None:
    known = SessionWorkflows(size=2)
    with open_desk(runtime) as desk:
        ids = [desk.record(workflow=f"flow_{n}", events=()) for n in range(3)]
        stranger = Caller(Tenant(desk.caller.workspace_id, "test"), "key_other")
        with runtime.database.transaction(write=False) as db:
            results = [known.look_up(db, desk.caller, session_id) for session_id in ids]
            assert known.look_up(db, stranger, ids[2]) is None
    assert results == ["flow_0", "flow_1", "flow_2"]
    assert [known.recall(desk.caller, session_id) for session_id in ids] == [None, "flow_1", "flow_2"]
    assert known.recall(stranger, ids[2]) is None
