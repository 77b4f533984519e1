"""`/v1/sessions/{id}/events`: the hot way in, and the way out. Spec §4.1, contract §3."""

from fastapi import APIRouter, Request, Response
from starlette.routing import Route

from api.batches import accepted
from api.deps import CallerDep, CursorText, Db, Limit, RuntimeDep
from api.errors import problem_responses
from api.event_batches import EventBatches
from api.event_download import EventDownload
from api.event_formats import ARROW, JSON, NDJSON, Arrow, Ndjson
from api.negotiation import choose_format
from api.openapi import EVENT_BATCH, EVENT_PAGE, EVENTS_ACCEPTED
from api.paging import Pager
from api.query_rules import NO_QUERY
from api.strict_route import BatchRoute, check_query, refuse_encoding
from recorder import limits
from recorder.recording import reads, sessions
from recorder.recording.ingest import IngestWriter

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["events"], route_class=BatchRoute)


@router.post(
    "/events",
    status_code=202,
    response_class=Response,
    openapi_extra=EVENT_BATCH,
    responses={202: EVENTS_ACCEPTED, **problem_responses(400, 401, 404, 409, 413, 415, 422, 503)},
)
async def append_events(request: Request) -> Response:
    """Add up to 100 events; answered once they are durable. All or nothing."""
    if request.scope["query_string"]:
        check_query(request, NO_QUERY)
    refuse_encoding(request)
    body = await request.body()
    batches: EventBatches = request.app.state.event_batches
    batch = await batches.read(
        request.state.caller,
        request.path_params["session_id"],
        body,
        content_type=request.headers.get("content-type"),
        batch_key=request.headers.get("idempotency-key"),
    )
    ingest: IngestWriter = request.app.state.ingest
    return accepted(await ingest.submit(batch))


#: The same endpoint without FastAPI around it, which would take as long as reading the batch does.
hot_route = Route(f"{router.prefix}/events", append_events, methods=["POST"], include_in_schema=False)


@router.get(
    "/events",
    response_class=Response,
    responses={200: EVENT_PAGE, **problem_responses(400, 401, 403, 404, 406, 422, 429)},
)
def list_events(
    session_id: str,
    request: Request,
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> Response:
    """The events of a session by `(t_ms, id)`, the same before and after sealing.

    With `Accept: application/x-ndjson` or `application/vnd.apache.arrow.stream` all of them, in portions.
    """
    pager = Pager(request, caller)
    position = pager.read(cursor)
    after = (position[0], position[1]) if position else None
    form = choose_format(request, JSON, NDJSON, ARROW)
    if form != JSON:
        return EventDownload(
            runtime,
            request.app.state.whole_reads,
            caller,
            session_id,
            after=after,
            format=Ndjson() if form == NDJSON else Arrow(),
        )
    row = sessions.find_session(db, caller.workspace_id, caller.mode, session_id)
    found = reads.list_events(db, runtime.lake, row, after=after, limit=limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    tail = pager.page([], [last.t_ms, last.id] if last else None).model_dump_json(exclude={"data"}).encode()
    data = b",".join(record.as_json() for record in found[:limit])
    return Response(b'{"data":[' + data + b"]," + tail[1:], media_type=JSON)
