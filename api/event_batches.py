"""Reads batches of events; where a workspace masks, finds out first whether a batch needs it. Contract §3."""

from functools import partial

import anyio
import anyio.to_thread

from api.body_checks import check_event_file
from api.body_workers import LARGE_BYTES, BodyWorkers, body_file
from recorder.access.keys import Caller
from recorder.masking.masker import Masker
from recorder.masking.policies import MaskingPolicies
from recorder.recording.events import EventBatch, TimedItem, read_event_batch
from recorder.recording.session_workflows import SessionWorkflows
from recorder.runtime import Runtime


class EventBatches:
    """The reader of one process; used from its event loop."""

    def __init__(self, runtime: Runtime, workers: BodyWorkers) -> None:
        self._workers = workers
        self._database = runtime.database
        self._workflows = SessionWorkflows()
        # Large patterns keep a thread busy: others go on to find one.
        self._slow_scans = anyio.CapacityLimiter(2)
        self._large_bodies = anyio.CapacityLimiter(2)

    async def read(
        self, caller: Caller, session_id: str, body: bytes, *, content_type: str | None, batch_key: str | None
    ) -> EventBatch:
        """A body of `POST …/events`, checked, masked and packed; see `read_event_batch`."""
        read = partial(
            read_event_batch, caller, session_id, body, content_type=content_type, batch_key=batch_key
        )
        if len(body) > LARGE_BYTES:
            checked = await self._check_large(caller, body, content_type)
            read = partial(read, checked=checked)
        masker = None
        if caller.masking is not None:
            masker = await self._find_masker(caller.masking, caller, session_id, body)
        if len(body) > LARGE_BYTES:
            read = partial(read, masker=masker)
            return await anyio.to_thread.run_sync(read, limiter=self._large_bodies)
        if masker is None:
            return read()
        # Takes a millisecond and more, which other requests need not wait for.
        return await anyio.to_thread.run_sync(partial(read, masker=masker))

    async def _check_large(
        self, caller: Caller, body: bytes, content_type: str | None
    ) -> tuple[list[TimedItem], list[tuple[int, str]]] | None:
        """Check a body in a worker process: a contrived one of 6 MB takes more than a second.

        Returns:
            What `check_events` found; None for a body of another type, which is refused unread.
        """
        if content_type is None or content_type.partition(";")[0].strip().lower() != "application/json":
            return None
        with body_file() as file:
            await anyio.to_thread.run_sync(file.write, body)
            found = await self._workers.check(caller.workspace_id, check_event_file, file)
        return [TimedItem(t_ms) for t_ms in found.times], found.named

    async def _find_masker(
        self, policies: MaskingPolicies, caller: Caller, session_id: str, body: bytes
    ) -> Masker | None:
        """What masks this body; None where nothing in it would change, as in most."""
        workflow = None
        if policies.by_workflow:
            workflow = self._workflows.recall(caller, session_id)
            workflow = workflow or await anyio.to_thread.run_sync(self._look_up, caller, session_id)
        masker = policies.of(workflow)
        if masker is None:
            return None
        if masker.is_quick(body):
            may_change = masker.may_change(body)
        else:
            may_change = await anyio.to_thread.run_sync(masker.may_change, body, limiter=self._slow_scans)
        return masker if may_change else None

    def _look_up(self, caller: Caller, session_id: str) -> str | None:
        with self._database.transaction(write=False) as db:
            return self._workflows.look_up(db, caller, session_id)
