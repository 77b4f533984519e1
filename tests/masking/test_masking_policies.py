"""Policies in force for a workspace, a mode and a workflow. Contract §3 (masking)."""

from typing import Any

import pytest
from sqlalchemy import JSON, null

from recorder import clock
from recorder.access.keys import Caller
from recorder.masking.policies import MaskingPolicies, load_masking_policies
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


def policies_of(
    runtime: Runtime, name: str, masking: Any, workflows: dict[tuple[str, str], Any], *, mode: str = "live"
) -> MaskingPolicies | None:
    """The policies of a new workspace whose workflows, by mode and name, mask these."""
    now = clock.now()
    with runtime.database.transaction(write=True) as db:
        row = WorkspaceRow(id=f"wsp_{name}", name=name, region="us", masking=masking, created_at=now)
        db.add(row)
        for (workflow_mode, workflow), policy in workflows.items():
            values = {"workspace_id": row.id, "mode": workflow_mode, "workflow": workflow, "masking": policy}
            db.add(WorkflowRow(**values, created_at=now, updated_at=now))
    with runtime.database.transaction(write=False) as db:
        stored = db.get(WorkspaceRow, row.id)
        assert stored is not None
        return load_masking_policies(db, stored, mode, secret=SECRET)


def rules_of(policies: MaskingPolicies | None, workflow: str | None) -> list[str] | None:
    """The names of the rules that mask a workflow; None where nothing does."""
    policy = None if policies is None else policies.of(workflow)
    return None if policy is None else [rule.name for rule in policy.masker().rules.rules]


@pytest.mark.parametrize(
    ("name", "masking", "workflows"),
    [
        ("nothing", None, {}),
        ("off", OFF, {("live", "billing"): OFF, ("live", "other"): null()}),
        ("json_null", JSON.NULL, {("live", "billing"): JSON.NULL}),
        ("another_mode", None, {("test", "billing"): EMAIL}),
    ],
)
def test_there_are_no_policies_where_nothing_is_masked(
    runtime: Runtime, name: str, masking: Any, workflows: Any
) -> None:
    assert policies_of(runtime, name, masking, workflows) is None


def test_a_workflow_comes_on_top_of_its_workspace(runtime: Runtime) -> None:
    values = {"builtins": ["email", "card"], "patterns": [pattern("account", "ACC")]}
    result = policies_of(runtime, "both", EMAIL, {("live", "billing"): values, ("live", "other"): OFF})
    assert rules_of(result, "billing") == ["account", "email", "card"]
    assert rules_of(result, "other") == rules_of(result, None) == ["email"]


def test_a_workflow_masks_in_its_mode_alone(runtime: Runtime) -> None:
    result = policies_of(runtime, "modes", None, {("live", "billing"): EMAIL, ("test", "signup"): EMAIL})
    assert (rules_of(result, "billing"), rules_of(result, "signup"), rules_of(result, None)) == (
        ["email"],
        None,
        None,
    )


def test_equal_policies_are_compiled_once(runtime: Runtime) -> None:
    results = [policies_of(runtime, name, EMAIL, {}) for name in ("equal_1", "equal_2")]
    policies = [item.of("any") for item in results if item is not None]
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
    result = policies_of(runtime, "largest", largest, {("live", "billing"): largest})
    assert len(rules_of(result, "billing") or []) == 2 * 44 + 3


def test_workflows_of_sessions_are_remembered_by_place_and_not_without_end(
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
