"""Request bodies of event and frame batches: readers that check and mask them, and their answers.

Contract §1 (idempotency), §3.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from fastapi import Request, Response

from api.bodies.body_costs import has_many_values, is_costly_body
from api.bodies.body_masking import BodyMasking
from api.bodies.worker_checks import (
    check_event_body_file,
    check_frame_upload_file,
    read_multipart_body,
    restore_frame_bytes,
)
from api.bodies.worker_pool import TURN_SECONDS, BodyWorkers, WorkerBodyFile, open_body_file_for_workers
from api.dependencies import run_slow_work
from recorder.access.keys import Caller
from recorder.errors import Overloaded
from recorder.ids import encode_ulid, id_range, is_id, reserve_ulid_values
from recorder.masking.policies import MaskingPolicy
from recorder.masking.scanner import Scanner
from recorder.media_types import JSON, require_media_type
from recorder.models.frame import FrameItem
from recorder.recording.event_batches import (
    CheckedBody,
    CheckedItems,
    EventBatch,
    TimedItem,
    check_and_pack_event_batch,
    check_event_batch,
    pack_event_batch,
)
from recorder.recording.event_digests import read_assigned_event_digests
from recorder.recording.frame_validation import CheckedFrame, unpack_uploaded_frame_dom, validate_frames_json
from recorder.recording.ingest_statements import RepeatedAnswer
from recorder.recording.item_masking import list_event_items_to_mask
from recorder.storage.database import Database

#: Large batches of one workspace that are read at the same time: one is checked in a worker process while
#: another one is packed. Without this bound, other workspaces waited 1.5 times as long.
_LARGE_BATCHES_AT_ONCE = 2
#: Small batches of one workspace that are masked at the same time: each takes milliseconds of worker threads.
_MASKED_BATCHES_AT_ONCE = 2
#: A larger upload is read in a worker process; pictures of a smaller one take less time than the transfer.
_LARGE_UPLOAD_BYTES = 256 * 1024


def respond_batch_accepted(answer: bytes) -> Response:
    """Return 202 with the batch's answer; the answer to a repeated batch is marked as replayed."""
    headers = {"Idempotent-Replayed": "true"} if isinstance(answer, RepeatedAnswer) else None
    return Response(answer, 202, headers, "application/json")


class _WorkspaceSemaphores:
    """Semaphores of workspaces: few requests of each at a time hold a thread for milliseconds."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._semaphores: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, workspace_id: str) -> asyncio.Semaphore:
        """Return the semaphore of a workspace, which is kept while a request holds or awaits it."""
        semaphore = self._semaphores.get(workspace_id)
        if semaphore is None:
            semaphore = self._semaphores[workspace_id] = asyncio.Semaphore(self._at_once)
        return semaphore


class EventBatches:
    """Reader of event batches in one process; used from its event loop."""

    def __init__(self, database: Database, masking: BodyMasking, workers: BodyWorkers) -> None:
        self._database = database
        self._masking = masking
        self._workers = workers
        self._large_bodies = anyio.CapacityLimiter(2)
        # A small body may name events of a hundred large batches: each workspace has one look-up at a time.
        self._lookups = _WorkspaceSemaphores(1)
        self._large_batches = _WorkspaceSemaphores(_LARGE_BATCHES_AT_ONCE)
        self._masked_batches = _WorkspaceSemaphores(_MASKED_BATCHES_AT_ONCE)

    async def read(
        self, caller: Caller, session_id: str, body: bytes, *, content_type: str | None, batch_key: str | None
    ) -> EventBatch:
        """Return a body of `POST …/events`, checked, masked and packed.

        Raises:
            RecorderError: if the body is invalid, or too slow to mask.
            Overloaded: if other large batches of the workspace take too long.
        """
        read = partial(
            self._read_batch, caller, session_id, body, content_type=content_type, batch_key=batch_key
        )
        if is_costly_body(body):
            semaphore = self._large_batches.of(caller.workspace_id)
            try:
                with anyio.fail_after(TURN_SECONDS):
                    await semaphore.acquire()
            except TimeoutError as error:
                raise Overloaded("worker process for large bodies") from error
            try:
                batch = await read(is_large=True)
            finally:
                semaphore.release()
        else:
            batch = await read(is_large=False)
        event_ids = [item.id for item in batch.named if is_id(item.id, "evt")]
        if event_ids:
            async with self._lookups.of(caller.workspace_id):
                batch.assigned = await anyio.to_thread.run_sync(
                    self._read_digests_of_event_ids, session_id, event_ids
                )
        return batch

    def _read_digests_of_event_ids(self, session_id: str, event_ids: list[str]) -> dict[str, bytes]:
        """Return the digests of events that a session has stored under these ids."""
        with self._database.transaction(write=False) as db:
            return read_assigned_event_digests(db, session_id, event_ids)

    async def _read_batch(
        self,
        caller: Caller,
        session_id: str,
        body: bytes,
        *,
        content_type: str | None,
        batch_key: str | None,
        is_large: bool,
    ) -> EventBatch:
        checked = await self._check_large_body(caller, body, content_type) if is_large else None
        policy = await self._masking.policy_of_session(caller, session_id)
        if policy is not None and _may_batch_body_hold_masked_text(policy, body):
            check = partial(
                check_event_batch,
                caller,
                body,
                content_type=content_type,
                batch_key=batch_key,
                checked=checked,
            )
            if is_large:
                return await self._read_masked_batch(caller, session_id, body, policy, check, is_large=True)
            async with self._masked_batches.of(caller.workspace_id):
                return await self._read_masked_batch(caller, session_id, body, policy, check, is_large=False)
        read = partial(
            check_and_pack_event_batch,
            caller,
            session_id,
            body,
            content_type=content_type,
            batch_key=batch_key,
            checked=checked,
        )
        return await anyio.to_thread.run_sync(read, limiter=self._large_bodies) if is_large else read()

    async def _check_large_body(self, caller: Caller, body: bytes, content_type: str | None) -> CheckedItems:
        """Check a body in a worker process: a hostile one of 6 MB takes more than a second.

        Raises:
            UnsupportedMediaType: if its type is not JSON; the body is then not read.
        """
        require_media_type(content_type, JSON, needed="events as application/json")
        async with open_body_file_for_workers() as file:
            await anyio.to_thread.run_sync(file.write, body)
            checked = await self._workers.run(caller.workspace_id, check_event_body_file, file)
        return [TimedItem(t_ms) for t_ms in checked.times], checked.named

    async def _read_masked_batch(
        self,
        caller: Caller,
        session_id: str,
        body: bytes,
        policy: MaskingPolicy,
        check: Callable[[], CheckedBody],
        *,
        is_large: bool,
    ) -> EventBatch:
        # Each step takes a millisecond or more, so it runs outside of the event loop.
        limiter = self._large_bodies if is_large else None
        checked = await anyio.to_thread.run_sync(check, limiter=limiter)
        documents = await anyio.to_thread.run_sync(list_event_items_to_mask, body, limiter=limiter)
        changes = await self._masking.scanner.find_changes(caller.workspace_id, policy, documents)
        return await anyio.to_thread.run_sync(
            pack_event_batch, caller, session_id, checked, changes, limiter=limiter
        )


def _may_batch_body_hold_masked_text(policy: MaskingPolicy, body: bytes) -> bool:
    """Return False if a quick check shows that nothing in a body is masked, as in most bodies."""
    return not Scanner.is_small(policy, len(body)) or policy.masker().may_change(body)


@dataclass(frozen=True, slots=True)
class FrameUploadBody:
    """Body of a frame upload.

    Attributes:
        items: of a small upload, whose frames are not checked yet.
        parts: bytes of its frames, by part name.
        checked: of a large upload: its checked frames, and the digest of its content.
    """

    items: list[FrameItem] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)
    checked: tuple[list[CheckedFrame], bytes] | None = None


@asynccontextmanager
async def open_frame_upload(
    request: Request, caller: Caller, workers: BodyWorkers
) -> AsyncIterator[FrameUploadBody]:
    """Yield a frame upload; a large one is read and checked in a worker process.

    The frames of a large upload lose their bytes at the end of the block, which frees them.

    Raises:
        UnsupportedMediaType: if it is neither JSON nor multipart.
        InvalidJson, ValidationFailed, EmptyBatch, BatchTooLarge, PayloadTooLarge: if the body is invalid.
    """
    content_type = request.headers.get("content-type", "")
    needed = "frames as application/json or multipart/form-data"
    kind = require_media_type(content_type, JSON, "multipart/form-data", needed=needed)
    stream, first, size = request.stream(), list[bytes](), 0
    async for part in stream:
        first.append(part)
        size += len(part)
        if size > _LARGE_UPLOAD_BYTES:
            break
    body = b"".join(first) if size <= _LARGE_UPLOAD_BYTES else b""
    if size > _LARGE_UPLOAD_BYTES or has_many_values(body):
        async with open_body_file_for_workers() as file:
            frames, digest = await _read_large_upload(file, first, stream, content_type, caller, workers)
            try:
                yield FrameUploadBody(checked=(frames, digest))
            finally:
                frames.clear()
    else:
        is_json = kind == JSON
        check = validate_frames_json if is_json else partial(read_multipart_body, content_type)
        read = partial(check, body)
        yield FrameUploadBody(
            *await run_slow_work(request, "frame upload", read, workspace_id=caller.workspace_id)
        )


async def _read_large_upload(
    file: WorkerBodyFile,
    first: list[bytes],
    rest: AsyncIterator[bytes],
    content_type: str,
    caller: Caller,
    workers: BodyWorkers,
) -> tuple[list[CheckedFrame], bytes]:
    for part in first:
        file.write(part)
    first.clear()
    async for part in rest:
        file.write(part)
    checked = await workers.run(caller.workspace_id, check_frame_upload_file, file, content_type)
    content = file.map_content()
    frames = await anyio.to_thread.run_sync(
        _assign_ids_to_frame_batch, restore_frame_bytes(checked, content), caller
    )
    return frames, checked.digest


def _assign_ids_to_frame_batch(frames: list[CheckedFrame], caller: Caller) -> list[CheckedFrame]:
    """Return frames with ascending ids of this process and, if the caller has masking, parsed snapshots."""
    new_ids = id_range(f"frm_{encode_ulid(reserve_ulid_values(len(frames)))}", len(frames))
    named = [
        frame if isinstance(frame.item.id, str) else replace(frame, id=new)
        for frame, new in zip(frames, new_ids, strict=True)
    ]
    return named if caller.masking is None else [unpack_uploaded_frame_dom(frame) for frame in named]
