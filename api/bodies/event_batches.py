"""Answers to batches of events and frames. Contract §1 (idempotency), §3."""

from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread
from fastapi import Response

from api.bodies.checks import check_event_file
from api.bodies.masking import BodyMasking
from api.bodies.worker_pool import LARGE_BYTES, BodyWorkers, body_file
from recorder.access.keys import Caller
from recorder.masking.policies import Policy
from recorder.masking.scanner import Scanner
from recorder.media_types import JSON, require_type
from recorder.recording.batch_ids import Replayed
from recorder.recording.events import (
    CheckedBody,
    CheckedItems,
    EventBatch,
    TimedItem,
    check_event_body,
    pack_event_batch,
    read_event_batch,
)
from recorder.recording.masking import event_documents


def accepted(answer: bytes) -> Response:
    """202 with the batch's answer; a batch that was sent before is marked as such."""
    headers = {"Idempotent-Replayed": "true"} if isinstance(answer, Replayed) else None
    return Response(answer, 202, headers, "application/json")


class EventBatches:
    """The reader of one process; used from its event loop."""

    def __init__(self, masking: BodyMasking, workers: BodyWorkers) -> None:
        self._masking = masking
        self._workers = workers
        self._large_bodies = anyio.CapacityLimiter(2)

    async def read(
        self, caller: Caller, session_id: str, body: bytes, *, content_type: str | None, batch_key: str | None
    ) -> EventBatch:
        """Return a body of `POST …/events`, checked, masked and packed.

        Raises:
            RecorderError: as `check_event_body` and `Scanner.find_changes` do.
        """
        is_large = len(body) > LARGE_BYTES
        checked = await self._check_large(caller, body, content_type) if is_large else None
        policy = await self._masking.policy_of_session(caller, session_id)
        if policy is not None and _may_change(policy, body):
            check = partial(
                check_event_body,
                caller,
                body,
                content_type=content_type,
                batch_key=batch_key,
                checked=checked,
            )
            return await self._read_masked(caller, session_id, body, policy, check)
        read = partial(
            read_event_batch,
            caller,
            session_id,
            body,
            content_type=content_type,
            batch_key=batch_key,
            checked=checked,
        )
        return await anyio.to_thread.run_sync(read, limiter=self._large_bodies) if is_large else read()

    async def _check_large(self, caller: Caller, body: bytes, content_type: str | None) -> CheckedItems:
        """Check a body in a worker process: a contrived one of 6 MB takes more than a second.

        Raises:
            UnsupportedMediaType: if it does not come as JSON; it is not read then.
        """
        require_type(content_type, JSON, needed="events as application/json")
        with body_file() as file:
            await anyio.to_thread.run_sync(file.write, body)
            found = await self._workers.check(caller.workspace_id, check_event_file, file)
        return [TimedItem(t_ms) for t_ms in found.times], found.named

    async def _read_masked(
        self,
        caller: Caller,
        session_id: str,
        body: bytes,
        policy: Policy,
        check: Callable[[], CheckedBody],
    ) -> EventBatch:
        # Each step takes a millisecond and more, which other requests need not wait for.
        limiter = self._large_bodies if len(body) > LARGE_BYTES else None
        checked = await anyio.to_thread.run_sync(check, limiter=limiter)
        documents = await anyio.to_thread.run_sync(event_documents, body, limiter=limiter)
        changes = await self._masking.scanner.find_changes(caller.workspace_id, policy, documents)
        return await anyio.to_thread.run_sync(
            pack_event_batch, caller, session_id, checked, changes, limiter=limiter
        )


def _may_change(policy: Policy, body: bytes) -> bool:
    """Return False where a quick look shows that nothing in a body is masked, as in most bodies."""
    return not Scanner.is_small(policy, len(body)) or policy.masker().may_change(body)
