"""HTTP protocol for uvicorn that ignores offers of other protocols than WebSocket. Contract §1."""

import asyncio

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.http11 import Request
from websockets.server import ServerProtocol


class UpgradeIgnoringProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol for clients that offer HTTP/2 (`Upgrade: h2c`), as those of Java do.

    uvicorn leaves out the body of such a request, and reads it as the next request if it arrives later.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the connection, on which no upgrade is offered yet."""
        super().connection_made(transport)
        #: Whether the head that is read now is parsed again without its offer.
        self._is_upgrade_ignored = False

    def data_received(self, data: bytes) -> None:
        """Parse bytes as uvicorn does, but ignore offers of upgrades."""
        self._unset_keepalive_if_required()
        self._parse(data)

    def should_ignore_upgrade(self) -> bool:
        """Return whether the head that is complete now offers an upgrade that is ignored."""
        self._is_upgrade_ignored = (
            self.parser.should_upgrade()
            and not self._should_upgrade()
            and self.parser.get_method() != b"CONNECT"
        )
        return self._is_upgrade_ignored

    def on_message_complete(self) -> None:
        """End the request, unless its head is parsed again."""
        if not self._is_upgrade_ignored:
            super().on_message_complete()

    def is_websocket_handshake(self) -> bool:
        """Return whether the head that is complete now is a valid WebSocket handshake."""
        lines = [name + b": " + value + b"\r\n" for name, value in self.headers]
        handshake = ServerProtocol()
        method = self.scope["method"].encode()
        handshake.receive_data(b"".join([method, b" ", self.url, b" HTTP/1.1\r\n", *lines, b"\r\n"]))
        events = handshake.events_received()
        if not events or not isinstance(events[0], Request):
            return False
        return handshake.accept(events[0]).status_code == 101

    def _parse(self, data: bytes) -> bool:
        """Parse bytes; return whether they are valid."""
        try:
            self.parser.feed_data(data)
        except HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("")
            return False
        except HttpParserUpgrade as upgrade:
            if self._is_upgrade_ignored:
                return self._parse_without_upgrade(data[upgrade.args[0] :])
            if self._should_upgrade():
                self.handle_websocket_upgrade()
        return True

    def _parse_without_upgrade(self, rest: bytes) -> bool:
        """Parse the head again without its header `Upgrade`, and then the bytes after it."""
        self._is_upgrade_ignored = False
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [name + b": " + value + b"\r\n" for name, value in self.headers if name != b"upgrade"]
        head = b"".join([method, b" ", self.url, b" HTTP/", version, b"\r\n", *lines, b"\r\n"])
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own parser
        return self._parse(head) and self._parse(rest)
