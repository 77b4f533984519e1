"""`/v1/sessions/{id}/frames`: upload, list, metadata, image, DOM snapshot. Spec §4.1, contract §3, §8."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from sqlmodel import Session as DbSession

from api.bodies.batch_bodies import open_frame_upload, respond_batch_accepted
from api.bodies.body_masking import BodyMasking
from api.bodies.worker_pool import BodyWorkers, open_body_file_for_workers
from api.dependencies import CallerDep, Db, PagerDep, RuntimeDep, read_before_transaction, run_slow_work
from api.errors import problem_responses
from api.gate.idempotency import read_idempotency_header
from api.negotiation import ByteRange, negotiate_format, respond_with_byte_range
from api.openapi.raw_body_routes import DOM, FRAME_BATCH, FRAMES_ACCEPTED, IMAGE
from api.strict_routes import BatchRoute, refuse_compressed_body
from recorder.errors import NotAcceptable, RecorderError, Unavailable
from recorder.models.frame import Frame
from recorder.models.wire import Page
from recorder.recording import item_reads, sessions
from recorder.recording.frames import FrameUpload, discard_frame_object
from recorder.recording.ingest import IngestWriter
from recorder.recording.snapshot_html import SNAPSHOT_POLICY, render_snapshot_file

_Result = TypeVar("_Result")

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["frames"], route_class=BatchRoute)


@router.post(
    "/frames",
    status_code=202,
    response_class=Response,
    openapi_extra=FRAME_BATCH,
    responses={202: FRAMES_ACCEPTED, **problem_responses(404, 409, 415)},
)
async def append_frames(
    session_id: str, request: Request, caller: CallerDep, runtime: RuntimeDep
) -> Response:
    """Add up to 50 frames, all or none; the answer is sent once pictures and index are durable."""
    refuse_compressed_body(request)
    masking: BodyMasking = request.app.state.masking
    ingest: IngestWriter = request.app.state.ingest
    batch_key = read_idempotency_header(request)

    async def run(work: Callable[[], _Result]) -> _Result:
        return await run_slow_work(request, "frame upload", work, workspace_id=caller.workspace_id)

    async with open_frame_upload(request, caller, request.app.state.body_workers) as body:
        upload = FrameUpload(caller, session_id, body.items, body.parts, batch_key, body.checked)
        checked = await run(partial(upload.check, runtime.database))
        if isinstance(checked, bytes):
            return respond_batch_accepted(checked)
        changes = await masking.find_frame_changes(request, caller, checked)
        batch = await run(partial(checked.store, runtime.blobs, changes))
    try:
        answer = await ingest.submit(batch)
    except Unavailable:
        raise  # the batch may have been stored, so its bytes must stay
    except RecorderError:
        await run(partial(discard_frame_object, runtime.blobs, batch))
        raise
    if not batch.is_used:
        await run(partial(discard_frame_object, runtime.blobs, batch))
    return respond_batch_accepted(answer)


@router.get("/frames", response_model=Page[Frame], responses=problem_responses(404))
def list_frames(session_id: str, pager: PagerDep, db: Db, caller: CallerDep, runtime: RuntimeDep) -> Response:
    """List the frames of a session by `(t_ms, id)`, the same before and after sealing."""
    after = pager.read_cursor(tuple[int, str])
    row = sessions.find_session(db, caller.tenant, session_id)
    return pager.make_answer(item_reads.list_frames(db, runtime.lake, row, after=after, limit=pager.limit))


@router.get("/frames/{frame_id}", responses=problem_responses(404))
def get_frame(session_id: str, frame_id: str, db: Db, caller: CallerDep, runtime: RuntimeDep) -> Frame:
    """Return the metadata of a frame."""
    row = sessions.find_session(db, caller.tenant, session_id)
    return item_reads.get_frame(db, runtime.lake, row, frame_id)


@router.get(
    "/frames/{frame_id}/image",
    response_class=Response,
    responses={200: IMAGE, 206: IMAGE, **problem_responses(404, 416)},
)
async def get_image(
    session_id: str,
    frame_id: str,
    request: Request,
    caller: CallerDep,
    runtime: RuntimeDep,
    range_header: ByteRange,
) -> Response:
    """Return the picture; `Range` selects a part of it."""

    def find(db: DbSession) -> item_reads.StoredImage:
        row = sessions.find_session(db, caller.tenant, session_id)
        return item_reads.find_image(db, runtime.lake, runtime.blobs, row, frame_id)

    image = await read_before_transaction(request, runtime.database, find)
    # Its store may be slow: no transaction, and no slot of the database, waits for it.
    respond = partial(respond_with_byte_range, image.read, image.size, image.content_type, range_header)
    return await run_slow_work(request, "snapshot", respond, workspace_id=caller.workspace_id)


async def get_frame_snapshot(
    session_id: str, frame_id: str, request: Request, caller: CallerDep, runtime: RuntimeDep
) -> bytes:
    """Return the stored snapshot of a frame, read in a transaction that ends before it is written as HTML.

    Raises:
        NotFound: if the caller has no such session, frame or snapshot.
    """

    def read() -> bytes:
        with runtime.database.transaction(write=False) as db:
            row = sessions.find_session(db, caller.tenant, session_id)
            return item_reads.read_dom(db, runtime.lake, runtime.blobs, row, frame_id)

    return await run_slow_work(request, "snapshot", read, workspace_id=caller.workspace_id)


Snapshot = Annotated[bytes, Depends(get_frame_snapshot)]


@router.get(
    "/frames/{frame_id}/dom",
    response_class=Response,
    responses={200: DOM, **problem_responses(404, 406)},
)
async def get_dom(frame_id: str, request: Request, snapshot: Snapshot, caller: CallerDep) -> Response:
    """Return the DOM snapshot as it was sent; with `Accept: text/html` as a document that is safe to show."""
    format = negotiate_format(request, "application/json", "text/html")
    headers = {**_DOM_HEADERS, "Content-Security-Policy": SNAPSHOT_POLICY}
    if format == "application/json":
        attachment = {"Content-Disposition": f'attachment; filename="{frame_id}.json"'}
        return Response(snapshot, headers=headers | attachment, media_type=format)
    workers: BodyWorkers = request.app.state.body_workers
    async with open_body_file_for_workers() as file:
        file.write(snapshot)
        document = await workers.run(caller.workspace_id, render_snapshot_file, file)
    if document is None:
        raise NotAcceptable("application/json for a snapshot that is not in the format nodes")
    return Response(document, headers=headers, media_type=format)


_DOM_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Vary": "Accept"}
