"""Masking of request bodies, and admission of masking patterns. Contract §3 (masking)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Generic, TypeVar

import anyio.to_thread
from fastapi import Depends, Request

from api.dependencies import CallerDep, run_slow_work
from recorder.access.keys import Caller
from recorder.access.workspaces import LiveModeNeeded
from recorder.masking.masker import Changes
from recorder.masking.policies import CachedPolicy, MaskingPolicy, WorkflowPolicyCache
from recorder.masking.scan_pool import ScanPool
from recorder.masking.scanner import Scanner
from recorder.models.session import SessionCreate, TagCreate
from recorder.models.workflow import WorkflowUpdate
from recorder.models.workspace import WorkspaceUpdate
from recorder.recording.frames import CheckedUpload
from recorder.recording.item_masking import (
    list_frame_texts_to_mask,
    make_session_text_to_mask,
    make_tag_text_to_mask,
)
from recorder.recording.sessions import check_new_session
from recorder.recording.tags import check_tag
from recorder.recording.workflows import SessionWorkflows
from recorder.runtime import Runtime
from recorder.setting_parsers import count_cores

_Body = TypeVar("_Body")


@dataclass(frozen=True)
class MaskedBody(Generic[_Body]):
    """A checked body, and the texts that masking changes in it."""

    body: _Body
    changes: Changes


class BodyMasking:
    """Scanner of one API process, and masking policies of sessions."""

    def __init__(self, runtime: Runtime) -> None:
        self._database = runtime.database
        self._workflows = SessionWorkflows()
        self._policies = WorkflowPolicyCache()
        # At least two, so that a workspace's slow scan leaves a process to the others.
        self._pool = ScanPool(max(2, count_cores()))
        self.scanner = Scanner(self._pool)

    def close(self) -> None:
        """Stop the scan processes."""
        self._pool.close()

    async def policy_of_session(self, caller: Caller, session_id: str) -> MaskingPolicy | None:
        """Return the masking policy of a session of the caller; None if there is none.

        Raises:
            Unavailable: if the policy is unknown and cannot be loaded; the request must then fail.
        """
        policies = caller.masking
        if policies is None or policies.workflow_version is None:
            return None if policies is None else policies.of(None)
        workflow = self._workflows.recall(caller, session_id)
        if workflow is not None:
            return await self.policy_of_workflow(caller, workflow)
        load = partial(self._load_session_policy, caller, policies.workflow_version, session_id)
        return policies.of((await anyio.to_thread.run_sync(load)).text)

    async def policy_of_workflow(self, caller: Caller, workflow: str) -> MaskingPolicy | None:
        """Return the masking policy of a workflow of the caller; None if there is none.

        Raises:
            Unavailable: if the policy is unknown and cannot be loaded; the request must then fail.
        """
        policies = caller.masking
        if policies is None or policies.workflow_version is None:
            return None if policies is None else policies.of(None)
        version = policies.workflow_version
        entry = self._policies.recall(caller.tenant, version, workflow)
        if entry is None:
            entry = await anyio.to_thread.run_sync(self._load_policy, caller, version, workflow)
        return policies.of(entry.text)

    async def find_frame_changes(
        self, request: Request, caller: Caller, upload: CheckedUpload
    ) -> dict[int, Changes]:
        """Return the texts of frames that masking changes, by the frame's index."""
        policy = await self.policy_of_workflow(caller, upload.workflow)
        if policy is None:
            return {}
        read = partial(list_frame_texts_to_mask, upload.frames)
        documents = await run_slow_work(request, "frame upload", read, workspace_id=caller.workspace_id)
        return await self.scanner.find_changes(caller.workspace_id, policy, documents)

    def _load_policy(self, caller: Caller, version: int, workflow: str) -> CachedPolicy:
        with self._database.transaction(write=False) as db:
            return self._policies.load(db, caller.tenant, version, workflow)

    def _load_session_policy(self, caller: Caller, version: int, session_id: str) -> CachedPolicy:
        """Return the policy of a session's workflow; a session that does not exist has none of its own."""
        with self._database.transaction(write=False) as db:
            workflow = self._workflows.look_up(db, caller, session_id)
            if workflow is None:
                return CachedPolicy(None)
            known = self._policies.recall(caller.tenant, version, workflow)
            return known or self._policies.load(db, caller.tenant, version, workflow)


# Bodies are scanned before their route opens a transaction: on SQLite writers would wait for the scan. Only
# one dependency of a route may take the body: each that takes it reports the same errors.
async def _scan_session_body(
    request: Request, caller: CallerDep, body: SessionCreate
) -> MaskedBody[SessionCreate]:
    check_new_session(body)
    masking: BodyMasking = request.app.state.masking
    policy = await masking.policy_of_workflow(caller, body.workflow)
    return MaskedBody(
        body,
        await _find_body_masking_changes(request, caller, policy, lambda: make_session_text_to_mask(body)),
    )


async def _scan_tag_body(
    request: Request, caller: CallerDep, session_id: str, body: TagCreate
) -> MaskedBody[TagCreate]:
    check_tag(body)
    masking: BodyMasking = request.app.state.masking
    policy = await masking.policy_of_session(caller, session_id)
    return MaskedBody(
        body, await _find_body_masking_changes(request, caller, policy, lambda: make_tag_text_to_mask(body))
    )


async def _find_body_masking_changes(
    request: Request, caller: Caller, policy: MaskingPolicy | None, read_document: Callable[[], bytes]
) -> Changes:
    if policy is None:
        return {}
    scanner: Scanner = request.app.state.masking.scanner
    return (await scanner.find_changes(caller.workspace_id, policy, [read_document()])).get(0, {})


async def _admit_workspace_body_patterns(
    request: Request, caller: CallerDep, body: WorkspaceUpdate
) -> WorkspaceUpdate:
    if caller.mode == "test":
        raise LiveModeNeeded
    await _admit_body_patterns(request, caller, body)
    return body


async def _admit_workflow_body_patterns(
    request: Request, caller: CallerDep, body: WorkflowUpdate
) -> WorkflowUpdate:
    await _admit_body_patterns(request, caller, body)
    return body


async def _admit_body_patterns(
    request: Request, caller: Caller, body: WorkspaceUpdate | WorkflowUpdate
) -> None:
    """Compile and measure the patterns that a change of settings brings."""
    if "masking" in body.model_fields_set:
        patterns = [pattern.model_dump() for pattern in body.masking.patterns]
        await request.app.state.masking.scanner.admit(caller.workspace_id, patterns)


# Bodies with the texts that masking changes; settings whose patterns were admitted.
MaskedSession = Annotated[MaskedBody[SessionCreate], Depends(_scan_session_body)]
MaskedTag = Annotated[MaskedBody[TagCreate], Depends(_scan_tag_body)]
AdmittedWorkspace = Annotated[WorkspaceUpdate, Depends(_admit_workspace_body_patterns)]
AdmittedWorkflow = Annotated[WorkflowUpdate, Depends(_admit_workflow_body_patterns)]
