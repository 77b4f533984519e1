"""Refusal of requests to a foreign host name, before anything else is read. Contract §1."""

from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import problem
from api.gate.rate_limits import Limiting
from api.gate.responses import Answer, first_headers, refuse
from recorder.errors import InvalidHost
from recorder.ids import IdCounter
from recorder.net.host_names import AllowedHosts

#: Balancers ask for it under the address of a machine.
_EXEMPT = "/healthz"


class HostCheck:
    """Middleware that answers 400 `invalid_host`, to WebSocket handshakes too, unless the name is allowed."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, limiting: Limiting) -> None:
        self._app = app
        self._hosts = hosts
        self._limiting = limiting
        self._ids = IdCounter("req")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "lifespan"
            or self._hosts.allows(scope["headers"])
            or (scope["type"] == "http" and scope["path"] == _EXEMPT)
        ):
            await self._app(scope, receive, send)
            return
        request_id = self._ids.next()
        state = scope.setdefault("state", {})
        state.update(request_id=request_id, endpoint=None, caller=None, admission=None)
        client_id = dict(scope["headers"]).get(b"x-request-id")
        answer = Answer(send, scope, self._limiting, first_headers(request_id, client_id))
        await refuse(problem(InvalidHost(), request_id), scope, receive, answer)
