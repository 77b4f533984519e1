"""Checks that every request to Dagster's pages passes: host name, origin, login, form of GraphQL requests.

Dagster's own server asks for no login, executes GraphQL that any page sends (as `text/plain`, by form or by
GET), and answers under every host name. Decision 0031.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Iterator
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.webserver_pages import GateRefusal, logged_in_page, logged_out_page, logout_page, refusal_page
from recorder import clock
from recorder.access.dagster_login import LINK_PATH, LOGIN_SECONDS, Login, LoginCookies, LoginLinks
from recorder.net.addresses import parse_resolved_address
from recorder.net.host_header import AllowedHosts
from recorder.settings import Settings

log = logging.getLogger("recorder.dagster")

#: Answers without a login and under any host name, with no data: for supervisors and balancers.
HEALTH_PATH: Final = "/healthz"
_LOGOUT_PATH = "/logout"
_GRAPHQL_PATH = "/graphql"
_READING = frozenset({"GET", "HEAD"})
_BEGINNINGS = frozenset({"http.response.start", "websocket.http.response.start"})
_REJECTED = 1008  # close code of WebSockets whose login has ended
_SECURITY_HEADERS = (
    # Dagster shows notebooks in frames of its own; another origin may frame nothing.
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_DEFAULT_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin"))


class DagsterGate:
    """Middleware around Dagster's application; the application sees only what passed all checks."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = AllowedHosts.from_settings(settings)
        self._links = LoginLinks(settings)
        self._cookies = LoginCookies(settings)
        self._user_header = settings.dagster_auth_header
        self._proxies = [ipaddress.ip_network(network) for network in settings.trusted_proxies]
        self._sockets: dict[str, set[asyncio.Timeout]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        send = _with_security_headers(send)
        headers = Headers(scope=scope)
        try:
            response = self._answer(scope, headers)
            login = None if response is not None else self._admit(scope, headers)
        except GateRefusal as refusal:
            wants_html = "text/html" in headers.get("accept", "")
            response = refusal_page(refusal, scope["path"], wants_html=wants_html)
        if response is not None:
            await _send_gate_answer(response, scope, receive, send)
        elif scope["type"] == "websocket" and login is not None:
            await self._serve_socket(login, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _answer(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer of the gate's own addresses; None for what is Dagster's.

        Raises:
            GateRefusal: if the request is refused whoever sends it.
        """
        path, is_http = scope["path"], scope["type"] == "http"
        if is_http and path == HEALTH_PATH and scope["method"] in _READING:
            return Response('{"status": "ok"}', media_type="application/json")
        if not self._hosts.allows(scope["headers"]):
            raise GateRefusal(
                400, "This host name is not one of this server's; RECORDER_ALLOWED_HOSTS lists others."
            )
        _check_request_origin(scope, headers)
        if is_http and path.startswith(LINK_PATH):
            return self._log_in_by_link(scope, headers)
        if is_http and path == _LOGOUT_PATH:
            return self._log_out(scope, headers)
        return None

    def _admit(self, scope: Scope, headers: Headers) -> Login | None:
        """Return the login of a request that may pass; None if a trusted proxy names its user.

        Raises:
            GateRefusal: if it may not pass.
        """
        login = None
        if not self._has_user_from_proxy(scope, headers):
            login = self._cookies.find_login(list(self._read_cookies(headers)))
            if login is None:
                raise GateRefusal(401, "These pages need a login.")
        if scope["type"] == "http" and scope["path"].rstrip("/") == _GRAPHQL_PATH:
            _check_graphql_request(scope, headers)
        return login

    def _has_user_from_proxy(self, scope: Scope, headers: Headers) -> bool:
        if self._user_header is None or not self._is_from_proxy(scope):
            return False
        named = headers.getlist(self._user_header)
        return len(named) == 1 and bool(named[0].strip())

    def _is_from_proxy(self, scope: Scope) -> bool:
        try:
            peer = parse_resolved_address(scope["client"][0])
        except (TypeError, ValueError):
            return False
        return any(peer in network for network in self._proxies)

    def _log_in_by_link(self, scope: Scope, headers: Headers) -> Response:
        """Log a browser in. A prefetch or HEAD request does not use up the link."""
        is_prefetch = "sec-purpose" in headers or "purpose" in headers
        if scope["method"] != "GET" or is_prefetch:
            raise GateRefusal(405, "Open the link in a browser.", allow="GET")
        if not self._links.redeem(scope["path"].removeprefix(LINK_PATH)):
            raise GateRefusal(401, "This link was used already, has expired, or is of another deployment.")
        log.info("login to Dagster's pages by a link")
        response = logged_in_page()
        self._set_cookie(response, self._cookies.make_cookie(), LOGIN_SECONDS, scope, headers)
        return response

    def _log_out(self, scope: Scope, headers: Headers) -> Response:
        """Show the logout page, or end the login of a POST and close its WebSockets."""
        login = self._cookies.find_login(list(self._read_cookies(headers)))
        if scope["method"] in _READING:
            return logout_page()
        if scope["method"] != "POST":
            raise GateRefusal(405, "Send POST to log out.", allow="GET, HEAD, POST")
        if login is not None:
            self._cookies.end_login(login)
            for timeout in self._sockets.get(login.id, ()):
                timeout.reschedule(asyncio.get_running_loop().time())
            log.info("logout from Dagster's pages")
        response = logged_out_page()
        self._set_cookie(response, "", 0, scope, headers)
        return response

    async def _serve_socket(self, login: Login, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket no longer than its login holds."""
        open_here = self._sockets.setdefault(login.id, set())
        timeout = asyncio.timeout(login.expires_s - clock.now_ms() / 1000)
        open_here.add(timeout)
        try:
            async with timeout:
                await self._app(scope, receive, send)
        except TimeoutError:
            if not timeout.expired():
                raise
            await send({"type": "websocket.close", "code": _REJECTED})
        finally:
            open_here.discard(timeout)
            if not open_here:
                self._sockets.pop(login.id, None)

    def _read_cookies(self, headers: Headers) -> Iterator[str]:
        """Yield every value of the login's cookie: one host name may send several."""
        for line in headers.getlist("cookie"):
            for part in line.split(";"):
                name, _, value = part.strip().partition("=")
                if name == self._cookies.name:
                    yield value

    def _set_cookie(
        self, response: Response, value: str, seconds: int, scope: Scope, headers: Headers
    ) -> None:
        """Set the login cookie of a response for so many seconds."""
        is_https = self._is_from_proxy(scope) and headers.get("x-forwarded-proto") == "https"
        response.set_cookie(
            self._cookies.name,
            value,
            max_age=seconds,
            path="/",
            secure=is_https,
            httponly=True,
            samesite="strict",
        )


def _check_request_origin(scope: Scope, headers: Headers) -> None:
    """Check that a request which may change something comes from a page of this server.

    `SameSite` does not do this: a page on another port of the same host is same-site, and its requests carry
    the cookie. Programs send the header too; a browser never leaves it out.

    Raises:
        GateRefusal: if it comes from another page, or does not say from where.
    """
    site = headers.get("sec-fetch-site")
    if scope["type"] == "http" and scope["method"] in _READING:
        is_visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if site in ("cross-site", "same-site") and not is_visit:
            raise GateRefusal(403, "Pages of other origins may link to these pages, but not load them.")
        return
    host, origins = headers["host"].lower(), headers.getlist("origin")
    if len(origins) != 1 or origins[0].lower() not in (f"http://{host}", f"https://{host}"):
        raise GateRefusal(
            403, "Send an Origin header that names this server: requests of other pages are refused."
        )
    if site not in (None, "same-origin"):
        raise GateRefusal(403, "Requests of other pages are refused.")


def _check_graphql_request(scope: Scope, headers: Headers) -> None:
    """Check that a GraphQL request is a POST of JSON, which no page of another origin can send.

    Raises:
        GateRefusal: if it is not; a GET without a query, which shows Dagster's query editor, is.
    """
    shows_editor = scope["method"] in _READING and "text/html" in headers.get("accept", "")
    if shows_editor and not scope["query_string"]:
        return
    if scope["method"] != "POST":
        raise GateRefusal(405, "Send GraphQL as POST with a body of application/json.", allow="POST")
    types = headers.getlist("content-type")
    kind, _, parameters = (types[0] if len(types) == 1 else "").partition(";")
    is_utf8 = parameters.replace(" ", "").lower() in ("", "charset=utf-8", 'charset="utf-8"')
    if kind.strip() != "application/json" or not is_utf8:
        raise GateRefusal(415, "Send GraphQL as POST with a body of application/json.")


def _with_security_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] in _BEGINNINGS:
            sent = list(message.get("headers", ()))
            names = {name.lower() for name, _ in sent}
            sent += _SECURITY_HEADERS
            sent += [header for header in _DEFAULT_HEADERS if header[0] not in names]
            message["headers"] = sent
        await send(message)

    return send_with_headers


async def _send_gate_answer(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": _REJECTED})
        return
    await response(scope, receive, send)
