"""`/v1/sessions/{id}/events/stream` and `…/events/ws`: live events of a session. Spec §4.1, §6.5."""

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from api.dependencies import CallerDep
from api.errors import make_problem_response, problem_responses
from api.gate.responses import send_handshake_refusal
from api.openapi.raw_body_routes import EVENT_STREAM
from api.streams.stream_responses import EventStream, close_websocket_connection, run_websocket_connection
from api.strict_routes import StrictQueryRules, StrictRoute, check_query_parameters
from recorder.access.rate_limits.stream_slots import StreamSlots
from recorder.errors import InvalidEventId, RecorderError, ValidationFailed
from recorder.recording.streams import Ending, Hub, StreamStart, parse_catch_up_position

router = APIRouter(prefix="/v1/sessions/{session_id}/events", tags=["streams"], route_class=StrictRoute)

_SOCKET_QUERY = StrictQueryRules(frozenset({"from", "last_event_id"}))


@router.get(
    "/stream",
    response_class=Response,
    responses={
        200: EVENT_STREAM,
        204: {"description": "The stream has ended, and no message follows the position"},
        **problem_responses(404, 410),
    },
)
async def stream_events(
    session_id: str,
    request: Request,
    caller: CallerDep,
    from_: Annotated[
        Literal["start"] | None, Query(alias="from", description="`start` sends all earlier messages first.")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", description="Position of the last message received.")
    ] = None,
) -> Response:
    """Stream server-sent events: from now on, from the start, or after the last message received.

    The WebSocket `/v1/sessions/{session_id}/events/ws` sends the same messages, one text each. It takes
    `from`, and `last_event_id` where a client cannot set the header.
    """
    sent = [] if last_event_id is None else request.headers.getlist("last-event-id")
    start = StreamStart(is_from_start=from_ is not None, after=_read_last_stream_position(sent))
    state = request.app.state
    return EventStream(state.streams, state.stream_slots, caller, session_id, start)


class SocketEndpoint:
    """WebSocket endpoint that sends the messages of a session's stream, one text each."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the stream and write it to its end; a refused handshake gets an HTTP answer."""
        websocket = WebSocket(scope, receive, send)
        hub: Hub = websocket.app.state.streams
        slots: StreamSlots = websocket.app.state.stream_slots
        try:
            start = _read_stream_start(websocket)
            caller = websocket.state.caller
            async with slots.hold(caller):
                reader = await hub.open(caller, websocket.path_params["session_id"], start)
                await receive()  # `websocket.connect`
                if reader is None:
                    await websocket.send({"type": "websocket.accept"})
                    await close_websocket_connection(Ending.FINISHED, send)
                    return
                try:
                    headers = [(b"last-event-id", str(reader.position).encode())]
                    await send({"type": "websocket.accept", "headers": headers})
                    await run_websocket_connection(reader, scope, receive, send)
                finally:
                    hub.leave(reader)
        except RecorderError as error:
            await send_handshake_refusal(
                make_problem_response(error, websocket.state.request_id), scope, receive, send
            )


router.add_websocket_route(f"{router.prefix}/ws", SocketEndpoint())  # type: ignore[arg-type]


def _read_stream_start(websocket: WebSocket) -> StreamStart:
    """Return the start of the stream, from the query or, where the client can set one, from the header.

    Raises:
        ValidationFailed: if the query has other parameters or values.
        InvalidEventId: if the position is malformed, or header and query differ.
    """
    check_query_parameters(websocket, _SOCKET_QUERY)
    begin = websocket.query_params.get("from")
    if begin not in (None, "start"):
        raise ValidationFailed.of("from", "invalid_value", message="from takes start.", where="query")
    headers = websocket.headers.getlist("last-event-id")
    after = _read_last_stream_position([*headers, *websocket.query_params.getlist("last_event_id")])
    return StreamStart(is_from_start=begin is not None, after=after)


def _read_last_stream_position(sent: list[str]) -> int | None:
    """Return the position of the last message received; None where none was sent.

    Raises:
        InvalidEventId: if it is malformed, or two that were sent differ.
    """
    if len(set(sent)) > 1:
        raise InvalidEventId
    return parse_catch_up_position(sent[0]) if sent else None
