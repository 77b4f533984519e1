"""`/v1/sessions/{id}/events`: append, list and download events. Spec §4.1, contract §3."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.routing import Route

from api.bodies.batch_bodies import EventBatches, respond_batch_accepted
from api.dependencies import CallerDep, Db, PagerDep, RuntimeDep
from api.errors import problem_responses
from api.gate.idempotency import read_idempotency_header
from api.negotiation import negotiate_format
from api.openapi.raw_body_routes import EVENT_BATCH, EVENT_PAGE, EVENTS_ACCEPTED
from api.streams.event_download import ARROW, ArrowDownload, EventDownload, NdjsonDownload
from api.streams.portioned_download import JSON, NDJSON
from api.strict_routes import NO_QUERY, BatchRoute, check_query_parameters, refuse_compressed_body
from recorder import limits
from recorder.errors import InvalidRange
from recorder.recording import sessions
from recorder.recording.ingest import IngestWriter
from recorder.recording.session_events import read_session_events_page
from recorder.recording.stored_events import EventFilter

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["events"], route_class=BatchRoute)


@router.post(
    "/events",
    status_code=202,
    response_class=Response,
    openapi_extra=EVENT_BATCH,
    responses={202: EVENTS_ACCEPTED, **problem_responses(404, 409, 415)},
)
async def append_events(request: Request) -> Response:
    """Add up to 100 events, all or none; the answer is sent once they are durable."""
    if request.scope["query_string"]:
        check_query_parameters(request, NO_QUERY)
    refuse_compressed_body(request)
    body = await request.body()
    batches: EventBatches = request.app.state.event_batches
    batch = await batches.read(
        request.state.caller,
        request.path_params["session_id"],
        body,
        content_type=request.headers.get("content-type"),
        batch_key=read_idempotency_header(request),
    )
    ingest: IngestWriter = request.app.state.ingest
    return respond_batch_accepted(await ingest.submit(batch))


#: The same endpoint without FastAPI, which would take as long as reading the batch.
hot_route = Route(f"{router.prefix}/events", append_events, methods=["POST"], include_in_schema=False)


_Type = Annotated[str, Query(pattern=limits.EVENT_TYPE_PATTERN)]
_Elapsed = Query(ge=0, le=limits.T_MS_MAX)


async def get_event_filter(
    type: Annotated[
        list[_Type], Query(max_length=limits.EVENT_TYPES_WANTED, description="Repeat it for several.")
    ] = [],  # noqa: B006
    from_t_ms: Annotated[int | None, _Elapsed] = None,
    to_t_ms: Annotated[int | None, _Elapsed] = None,
) -> EventFilter:
    """Return the types and times that a query selects: from `from_t_ms` on, and before `to_t_ms`.

    Raises:
        InvalidRange: if the range ends before it begins.
    """
    if from_t_ms is not None and to_t_ms is not None and from_t_ms > to_t_ms:
        raise InvalidRange("from_t_ms", "to_t_ms")
    return EventFilter(frozenset(type), from_t_ms, to_t_ms)


Wanted = Annotated[EventFilter, Depends(get_event_filter)]


@router.get(
    "/events",
    response_class=Response,
    responses={200: EVENT_PAGE, **problem_responses(404, 406)},
)
def list_events(
    session_id: str,
    request: Request,
    pager: PagerDep,
    db: Db,
    caller: CallerDep,
    runtime: RuntimeDep,
    wanted: Wanted,
) -> Response:
    """List the events of a session by `(t_ms, id)`, the same before and after sealing.

    With `Accept: application/x-ndjson` or `application/vnd.apache.arrow.stream` all events are sent.
    """
    after = pager.read_cursor(tuple[int, str])
    form = negotiate_format(request, JSON, NDJSON, ARROW)
    if form != JSON:
        return EventDownload(
            runtime,
            request.app.state.whole_reads,
            caller,
            session_id,
            after=after,
            wanted=wanted,
            format=NdjsonDownload() if form == NDJSON else ArrowDownload(),
        )
    row = sessions.find_session(db, caller.tenant, session_id)
    page = read_session_events_page(db, runtime.lake, row, after=after, limit=pager.limit, wanted=wanted)
    return pager.make_json_answer(page.convert(lambda record: record.as_json()))
