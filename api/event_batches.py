"""Batches of events, read and masked: a batch in which nothing is masked is not taken apart. Contract §3."""

from functools import partial

import anyio
import anyio.to_thread

from api.body_masking import BodyMasking
from recorder.access.keys import Caller
from recorder.masking.policies import Policy
from recorder.masking.scanner import Scanner
from recorder.recording.events import EventBatch, check_event_body, pack_event_batch, read_event_batch
from recorder.recording.masked import event_documents

# Reading a body of this size takes some milliseconds, and a contrived one of 6 MB more than a second.
_LARGE_BYTES = 256 * 1024


class EventBatches:
    """The reader of one process; used from its event loop."""

    def __init__(self, masking: BodyMasking) -> None:
        self._masking = masking
        self._large_bodies = anyio.CapacityLimiter(2)

    async def read(
        self, caller: Caller, session_id: str, body: bytes, *, content_type: str | None, batch_key: str | None
    ) -> EventBatch:
        """Return a body of `POST …/events`, checked, masked and packed.

        Raises:
            RecorderError: as `check_event_body` and `Scanner.find_changes` do.
        """
        policy = await self._masking.policy_of_session(caller, session_id)
        if policy is not None and _may_change(policy, body):
            return await self._read_masked(
                caller, session_id, body, policy, content_type=content_type, batch_key=batch_key
            )
        read = partial(
            read_event_batch, caller, session_id, body, content_type=content_type, batch_key=batch_key
        )
        if len(body) > _LARGE_BYTES:
            return await anyio.to_thread.run_sync(read, limiter=self._large_bodies)
        return read()

    async def _read_masked(
        self,
        caller: Caller,
        session_id: str,
        body: bytes,
        policy: Policy,
        *,
        content_type: str | None,
        batch_key: str | None,
    ) -> EventBatch:
        # Each step takes a millisecond and more, which other requests need not wait for.
        limiter = self._large_bodies if len(body) > _LARGE_BYTES else None
        check = partial(check_event_body, caller, body, content_type=content_type, batch_key=batch_key)
        checked = await anyio.to_thread.run_sync(check, limiter=limiter)
        documents = await anyio.to_thread.run_sync(event_documents, body, limiter=limiter)
        changes = await self._masking.scanner.find_changes(caller.workspace_id, policy, documents)
        return await anyio.to_thread.run_sync(
            pack_event_batch, caller, session_id, checked, changes, limiter=limiter
        )


def _may_change(policy: Policy, body: bytes) -> bool:
    """Return False where a quick look shows that nothing in a body is masked, as in most bodies."""
    return not Scanner.is_small(policy, len(body)) or policy.masker().may_change(body)
