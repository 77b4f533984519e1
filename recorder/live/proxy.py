"""Forward proxy that lets the browser of a live replay reach allowed hosts and nothing else. Contract §8.

Every connection is checked here, whatever opened it: a page, a redirect, a worker or the browser itself. A
name is resolved once, and the connection goes to an address that was checked (docs/decisions/0045).
"""

import asyncio
import base64
import secrets
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import httpcore

from recorder.errors import InvalidUrl
from recorder.live.http_heads import REQUEST_LINE, STATUS_LINE, Fields, format_http_head, read_http_head
from recorder.live.tunnel_certificate import TunnelCertificate
from recorder.net.addresses import CalledAddress, parse_called_address
from recorder.net.outbound_guard import AddressGuard, BlockedAddress, UnresolvedName
from recorder.net.reachable_hosts import ReachableHosts

_HEAD_BYTES = 65_536
_CHUNK_BYTES = 65_536
_HEAD_S = 10.0
_LOOK_UP_S = 5.0
_CONNECT_S = 5.0
_START_S = 10.0
_STOP_S = 5.0
#: Different targets of which refusals are told apart.
_KEPT_TARGETS = 100
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
#: Opens a connection to an address that was checked.
Dial = Callable[[str, int], Awaitable[_Streams]]


@dataclass(frozen=True)
class ProxyLimits:
    """Limits of one replay in all."""

    #: Bytes in both directions.
    total_bytes: int = 500_000_000
    connections: int = 64
    #: A connection on which nothing moves for so long is closed.
    idle_s: float = 120.0


class _Refused(Exception):
    """The request is not passed on."""

    def __init__(self, status: str, target: str | None = None, *, header: str = "") -> None:
        super().__init__(status)
        self.status, self.target, self.header = status, target, header


class FilteringProxy:
    """Proxy of one replay, in a thread of its own, on a free port of loopback; it asks for a password."""

    def __init__(
        self,
        hosts: ReachableHosts,
        guard: AddressGuard,
        limits: ProxyLimits | None = None,
        dial: Dial = asyncio.open_connection,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """Create a proxy; `start` begins to serve.

        Args:
            hosts: hosts that may be reached.
            guard: checks the addresses that they have.
            limits: by default those of the deployment.
            dial: opens connections.
            trust: certificates of hosts whose methods are limited; by default those that browsers trust.
        """
        self._hosts, self._guard, self._dial = hosts, guard, dial
        self._limits = limits or ProxyLimits()
        self._certificate: TunnelCertificate | None = None
        if hosts.limits_methods:
            self._certificate = TunnelCertificate()
            self._trust = trust or httpcore.default_ssl_context()
        self._bytes_left = self._limits.total_bytes
        self._open = 0
        self._stopped: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run_event_loop, name="live-proxy", daemon=True)
        self._refusals: Counter[str] = Counter()
        #: Requests that were refused.
        self.blocked_requests = 0
        self.port = 0
        self.user, self.password = "replay", secrets.token_hex(16)
        #: Value of the field `Proxy-Authorization`.
        self.credentials = "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    def start(self) -> None:
        """Start the proxy's thread, and wait until it listens.

        Raises:
            OSError: if no port can be opened.
        """
        self._thread.start()
        if not self._is_ready.wait(_START_S) or not self.port:
            raise OSError("The proxy of the live sandbox could not listen on loopback.")

    def stop(self) -> None:
        """Close every connection, and end the thread."""
        if self._loop is not None and self._stopped is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(_STOP_S)

    @property
    def key_hash(self) -> str | None:
        """Hash of the key that the browser must trust; None if no methods are limited."""
        return None if self._certificate is None else self._certificate.key_hash

    @property
    def is_serving(self) -> bool:
        """Return whether the thread is at work."""
        return self._thread.is_alive()

    def has_refused(self, url: str) -> bool:
        """Return whether a request to the host and port of a URL was refused."""
        try:
            return _name_proxy_target(parse_called_address(url.partition("#")[0])) in self._refusals
        except InvalidUrl:
            return False

    def may_reach(self, url: str) -> bool:
        """Return whether host and port of a URL are among the allowed ones."""
        try:
            return self._hosts.contains_target(parse_called_address(url.partition("#")[0]))
        except InvalidUrl:
            return False

    def _run_event_loop(self) -> None:
        try:
            asyncio.run(self._serve_until_stopped())
        finally:
            self._is_ready.set()

    async def _serve_until_stopped(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._handle_connection, "127.0.0.1", 0, limit=_HEAD_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        await self._stopped.wait()
        server.close()
        # asyncio.run cancels the handlers that are left.

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= 2 * self._limits.connections:
                await self._forward_request(reader, writer)
        except _Refused as refused:
            if refused.target is not None:
                self._count_refused_target(refused.target)
            answer = (
                f"HTTP/1.1 {refused.status}\r\n{refused.header}Content-Length: 0\r\nConnection: close\r\n\r\n"
            )
            with suppress(OSError):
                writer.write(answer.encode())
                await writer.drain()
        except (OSError, TimeoutError, EOFError, ValueError):
            pass  # either side went away, or sent no HTTP
        finally:
            self._open -= 1
            writer.close()

    async def _forward_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_S):
            line, fields = await read_http_head(reader)
        if self._open > self._limits.connections or self._bytes_left <= 0:
            raise _Refused("503 Service Unavailable")
        parts = REQUEST_LINE.fullmatch(line)
        if parts is None:
            raise _Refused("400 Bad Request")
        if not any(
            name == b"proxy-authorization" and secrets.compare_digest(value, self.credentials.encode())
            for name, value in fields
        ):
            raise _Refused(
                "407 Proxy Authentication Required", header='Proxy-Authenticate: Basic realm="replay"\r\n'
            )
        method, address = parts[1].decode(), parts[2].decode("latin-1")
        is_tunnel = method.upper() == "CONNECT"
        target = _read_proxy_target(f"https://{address}/" if is_tunnel else address, is_tunnel=is_tunnel)
        if not is_tunnel:
            await self._pass_request_on(method, fields, target, reader, writer)
        elif self._hosts.list_methods(target) is not None:
            await self._read_tunnel(target, reader, writer)
        else:
            upstream_reader, upstream_writer = await self._connect(target)
            try:
                writer.write(_ESTABLISHED)
                answer = self._copy_bytes(upstream_reader, writer)
                await _copy_until_proxy_answered(self._copy_bytes(reader, upstream_writer), answer)
            finally:
                upstream_writer.close()

    async def _read_tunnel(
        self, target: CalledAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read the request inside a tunnel to a host whose methods are limited, and pass it on."""
        if not self._hosts.contains_target(target):
            raise _Refused("403 Forbidden", _name_proxy_target(target))
        assert self._certificate is not None
        writer.write(_ESTABLISHED)
        async with asyncio.timeout(_HEAD_S):
            await writer.drain()
            try:
                await writer.start_tls(self._certificate.context)
            except (OSError, ssl.SSLError):
                self._count_refused_target(_name_proxy_target(target))  # a WebSocket without TLS, say
                raise
            line, fields = await read_http_head(reader)
        parts = REQUEST_LINE.fullmatch(line)
        if parts is None or not parts[2].startswith(b"/"):
            raise _Refused("400 Bad Request")
        inside = replace(target, path=parts[2].decode("latin-1"))
        await self._pass_request_on(parts[1].decode(), fields, inside, reader, writer)

    async def _pass_request_on(
        self,
        method: str,
        fields: Fields,
        target: CalledAddress,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Pass one request on if its host takes its method, and then the answer."""
        methods = self._hosts.list_methods(target)
        if methods is not None and method.upper() not in methods:
            raise _Refused("403 Forbidden", _name_proxy_target(target))
        upstream_reader, upstream_writer = await self._connect(target)
        try:
            if target.scheme == "https":
                async with asyncio.timeout(_CONNECT_S):
                    await upstream_writer.start_tls(self._trust, server_hostname=target.host)
            head = f"{method} {target.path} HTTP/1.1".encode("latin-1")
            upstream_writer.write(format_http_head(head, fields, target))
            answer = self._answer(upstream_reader, writer)
            await _copy_until_proxy_answered(self._copy_bytes(reader, upstream_writer), answer)
        except ssl.SSLError as error:
            raise _Refused("502 Bad Gateway") from error
        finally:
            upstream_writer.close()

    async def _connect(self, target: CalledAddress) -> _Streams:
        """Connect to the first address of an allowed target that answers; all of them are checked."""
        name = _name_proxy_target(target)
        if not self._hosts.contains_target(target):
            raise _Refused("403 Forbidden", name)
        try:
            async with asyncio.timeout(_LOOK_UP_S):
                addresses = await self._guard.resolve_allowed_addresses(target)
        except BlockedAddress as error:
            raise _Refused("403 Forbidden", name) from error
        except (UnresolvedName, TimeoutError) as error:
            raise _Refused("502 Bad Gateway") from error
        for address in addresses:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_S):
                    return await self._dial(str(address), target.port)
        raise _Refused("502 Bad Gateway")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass an answer on, as the last one of its connection: the next request may be for another host."""
        while True:
            line, fields = await read_http_head(reader)
            status = STATUS_LINE.fullmatch(line)
            if status is None or status[1] == b"101":
                raise _Refused("502 Bad Gateway")
            head = format_http_head(line, fields, None)
            self._count_passed_bytes(len(head))
            writer.write(head)
            if not status[1].startswith(b"1"):
                break
        await self._copy_bytes(reader, writer)

    async def _copy_bytes(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(self._limits.idle_s):
                chunk = await reader.read(_CHUNK_BYTES)
            if not chunk:
                break
            self._count_passed_bytes(len(chunk))
            writer.write(chunk)
            async with asyncio.timeout(self._limits.idle_s):
                await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    def _count_passed_bytes(self, size: int) -> None:
        """Count bytes that pass the proxy, against the limit of the replay.

        Raises:
            ConnectionAbortedError: if the replay has used up its bytes.
        """
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise ConnectionAbortedError

    def _count_refused_target(self, target: str) -> None:
        self.blocked_requests += 1
        if target in self._refusals or len(self._refusals) < _KEPT_TARGETS:
            self._refusals[target] += 1


async def _copy_until_proxy_answered(request: Awaitable[None], answer: Awaitable[None]) -> None:
    """Copy both ways until the answer is through, or either side fails.

    The end of the request alone ends nothing: a client may close its side and still read.
    """
    tasks = [asyncio.ensure_future(request), asyncio.ensure_future(answer)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[1].done():
            tasks[0].result()
        await tasks[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _read_proxy_target(address: str, *, is_tunnel: bool) -> CalledAddress:
    try:
        target = parse_called_address(address)
    except InvalidUrl as error:
        raise _Refused("403 Forbidden", address[:200]) from error
    if is_tunnel != (target.scheme == "https") or (is_tunnel and target.path != "/"):
        raise _Refused("403 Forbidden", _name_proxy_target(target))
    return target


def _name_proxy_target(target: CalledAddress) -> str:
    return f"{target.host}:{target.port}"
