"""WebSocket handshakes that are refused: an HTTP status with a problem body. Contract §3."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_HTTP_ANSWERS = "websocket.http.response"


def close_code(status: int) -> int:
    """The close code that says what an HTTP status says, such as 4401."""
    return 4000 + status


async def refuse_handshake(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a handshake with this response instead of a WebSocket.

    A server that cannot answer so (uvicorn can) opens it and closes it with the status as its code.
    """
    if _HTTP_ANSWERS in scope.get("extensions", {}):
        await response(scope, receive, send)
        return
    await receive()  # the message that asks to connect
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": close_code(response.status_code)})
