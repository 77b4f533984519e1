"""Receiver of deliveries for the terminal, which verifies their signatures. Contract §6."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from recorder.webhooks.signing import verify_signature

_BODY_BYTES = 64 * 1024 * 1024
_SECRET_S = 5.0


@dataclass(frozen=True)
class ReceivedDelivery:
    """Received delivery; without a payload if its signature is not valid."""

    delivery_id: str
    payload: dict[str, Any] | None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # With the default of 5 the kernel refuses simultaneous deliveries.
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        super().__init__(address, handler)


class DeliveryReceiver:
    """HTTP server that answers 204 to requests signed with the secret, and 401 to all others."""

    def __init__(self, take: Callable[[ReceivedDelivery], None], *, host: str, port: int) -> None:
        """Bind the port.

        Args:
            take: called with each delivery, one at a time.
            host: address to listen on.
            port: port to listen on; 0 takes a free one.

        Raises:
            OSError: if the address cannot be bound.
        """
        self._take = take
        self._turn = threading.Lock()
        self._secret: str | None = None
        self._has_secret = threading.Event()
        self._server = _Server((host, port), self._make_handler())

    @property
    def port(self) -> int:
        """Port that the server listens on."""
        return self._server.server_port

    def trust(self, secret: str) -> None:
        """Accept requests signed with this secret; earlier requests wait a moment for it."""
        self._secret = secret
        self._has_secret.set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receive deliveries while the block runs."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def _receive_delivery(self, body: bytes, signature: str, delivery_id: str) -> int:
        """Pass a delivery on; return the status of the answer."""
        self._has_secret.wait(_SECRET_S)
        is_valid = self._secret is not None and verify_signature(body, signature, self._secret)
        with self._turn:
            self._take(ReceivedDelivery(delivery_id, json.loads(body) if is_valid else None))
        return 204 if is_valid else 401

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        """Return an HTTP request handler that passes deliveries to this receiver."""
        receive = self._receive_delivery

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > _BODY_BYTES:
                    self.send_error(411 if not length else 413)
                    return
                body = self.rfile.read(int(length))
                signature = self.headers.get("Service-Signature", "")
                status = receive(body, signature, self.headers.get("Service-Delivery-Id", ""))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *values: object) -> None:
                """Log nothing: deliveries are passed on."""

        return Handler
